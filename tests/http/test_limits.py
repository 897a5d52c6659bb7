"""Load, limits and draining: 64 to 72 of the front end's list."""

import json
import multiprocessing
import os
import selectors
import signal
import socket
import tempfile
import threading
import time

from lib import SLOW, Conn, Events, Server, Skip, completion, main, open_stream, stream, text_of, wait_until


def test_64_conn_limit_then_one_closes_next_served():
    with Server("connections=5") as server:
        held = []
        for _ in range(5):
            c = server.connect()
            c.request("GET", "/health")
            assert c.response().status == 200
            held.append(c)
        with server.connect() as c:
            r = c.response()
            assert r.status == 503 and r.error()["code"] == "too_many_connections"
            assert r.headers["connection"] == "close" and c.closed()
        held.pop().close()

        def served():
            with server.connect() as c:
                c.request("GET", "/health")
                return c.response().status == 200
        wait_until(served)
        for c in held:
            c.close()


def test_64_limit_per_address():
    with Server("per_address=2") as server:
        a, b = server.connect(), server.connect()
        for c in (a, b):
            c.request("GET", "/health")
            assert c.response().status == 200
        with server.connect() as c:
            assert c.response().status == 503
        a.close()
        b.close()
        wait_until(lambda: server_ok(server))


def server_ok(server):
    try:
        return server.request("GET", "/health").status == 200
    except (ConnectionError, EOFError, OSError):
        return False


def test_65_emfile_recovers():
    with Server("files=40", "connections=1000") as server:
        clients = [server.connect() for _ in range(60)]
        statuses = []
        for c in clients:
            try:
                c.request("GET", "/health")
                statuses.append(c.response().status)
            except (ConnectionError, EOFError):
                statuses.append(0)
        assert statuses[0] == 200 and 503 in statuses, statuses
        with open(f"/proc/{server.process.pid}/stat") as f:
            before = sum(map(int, f.read().split()[13:15]))
        time.sleep(0.5)
        with open(f"/proc/{server.process.pid}/stat") as f:
            spent = (sum(map(int, f.read().split()[13:15])) - before) / os.sysconf("SC_CLK_TCK")
        assert spent < 0.2, f"{spent} s of CPU while full"
        for c in clients:
            c.close()
        wait_until(lambda: server_ok(server))


def test_66_slowloris_deadline():
    with Server("header_seconds=1.5", "body_seconds=1.5") as server:
        running = open_stream(server, "@pace=200;x", max_tokens=20)
        dripping, silent, body = server.connect(), server.connect(), server.connect()
        body.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n")
        began = time.monotonic()
        ended = {}
        for c, sent in ((dripping, b"GET /health HTTP/1.1\r\nX-A: "), (silent, b""), (body, b"{")):
            c.sock.setblocking(False)
        while len(ended) < 3 and time.monotonic() - began < 8 * SLOW:
            for name, c in (("dripping", dripping), ("silent", silent), ("body", body)):
                if name in ended:
                    continue
                try:
                    if name != "silent":
                        c.sock.send(b"x")
                    if c.sock.recv(1000) == b"":
                        ended[name] = time.monotonic() - began
                except BlockingIOError:
                    pass
                except ConnectionError:
                    ended[name] = time.monotonic() - began
            time.sleep(0.05)
        print("        closed:", {k: round(v, 1) for k, v in ended.items()})
        assert len(ended) == 3 and all(1.2 < t < 4 * SLOW for t in ended.values())
        events = list(iter(running.event, None))
        assert events[-1] == "[DONE]" and len(events) == 20


def test_67_queue_full_429_retry_after():
    with Server("sequences=1", "queued=2") as server:
        running = open_stream(server, "@pace=300;x", max_tokens=100)
        waiting = [open_stream(server, "hi", events=0) for _ in range(2)]
        server.wait_note("submit", 3)
        r = server.post("/v1/completions", completion("hi"))
        assert r.status == 429 and r.error()["type"] == "rate_limit_error", r.body
        assert r.error()["code"] == "queue_full" and int(r.headers["retry-after"]) >= 1
        assert len(server.notes("submit")) == 3
        assert server.request("GET", "/health").status == 200
        waiting.pop().close()
        server.wait_note("cancel")
        waiting.append(open_stream(server, "hi", events=0))
        server.wait_note("submit", 4)
        running.close()
        for c in waiting:
            assert c.response().events()[-1] == "[DONE]"


def test_67_queue_full_by_tokens():
    with Server("sequences=1", "queued_tokens=100") as server:
        running = open_stream(server, "@pace=300;x", max_tokens=100)
        alone = open_stream(server, "b" * 500, events=0)  # bigger than the limit, but nothing waits
        server.wait_note("submit", 2)
        r = server.post("/v1/completions", completion("hi"))
        assert r.status == 429 and int(r.headers["retry-after"]) >= 1
        running.close()
        assert alone.response().status == 200


def read_all(clients, stop):
    """Reads whatever comes to any of them until told to stop; then every text must be whole. In a process of its
    own, lest it slow down those who measure."""
    raw = dict.fromkeys(clients, b"")
    poll = selectors.DefaultSelector()
    for c in clients:
        c.sock.setblocking(False)
        poll.register(c.sock, selectors.EVENT_READ, c)
    while not stop.is_set() or min(b.count(b'"text"') for b in raw.values()) < 6:
        for key, _ in poll.select(0.1):
            raw[key.data] += key.data.sock.recv(65536)
    for data in raw.values():
        text = text_of(Events().feed(data))
        assert text == ("abcdefghij" * 400)[:len(text)], text


def health_times(server, n):
    times = []
    for _ in range(n):
        began = time.monotonic()
        assert server.request("GET", "/health").status == 200
        times.append(time.monotonic() - began)
        time.sleep(0.05)
    return sorted(times)


def test_68_health_under_1000_streams_lt_100ms():
    """The best of three rounds counts, and a machine that others use is given more time."""
    most = 0.1 if os.getloadavg()[0] < os.cpu_count() / 2 else 0.3
    n, fork = 1000, multiprocessing.get_context("fork")
    with Server("sequences=2000", "queued=3000", env={"FAKE_QUIET": "1"}) as server:
        clients = [server.connect(60) for _ in range(n)]
        before = server.memory()
        for c in clients:
            c.request("POST", "/v1/completions", stream("@pace=500;x", max_tokens=4000))
        wait_until(lambda: server.metric("vllm:num_requests_running") == n, 20)
        stop = fork.Event()
        reader = fork.Process(target=read_all, args=(clients, stop))
        reader.start()
        rounds = [health_times(server, 40)]
        while len(rounds) < 3 and rounds[-1][36] >= most * SLOW:
            rounds.append(health_times(server, 40))
        times = min(rounds, key=lambda r: r[36])
        grown = server.memory() - before
        stop.set()
        reader.join(30 * SLOW)
        print(f"        health p50 {times[20] * 1000:.1f} ms, most {times[-1] * 1000:.1f} ms; "
              f"{grown / n / 1024:.1f} KiB a stream")
        assert reader.exitcode == 0, reader.exitcode
        assert times[36] < most * SLOW, rounds
        for c in clients:
            c.close()
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0, 20)


def test_68_1000_idle_and_1000_slow_streams_in_64_mib():
    with Server("sequences=2000", "queued=3000", env={"FAKE_QUIET": "1"}) as server:
        clients = [server.connect(60) for _ in range(2000)]
        for c in clients[:1000]:
            c.request("GET", "/health")
            assert c.response().status == 200
        for c in clients[1000:]:
            c.request("POST", "/v1/completions", stream("@pace=200;x", max_tokens=4000))
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1000, 20)
        time.sleep(3)
        used = server.memory()
        print(f"        {used >> 20} MiB, the fake engine's included")
        assert used < (64 << 20) * SLOW
        for c in clients:
            c.close()
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0, 20)


def test_69_sigterm_finishes_streams_exit0():
    server = Server("sequences=1", "hold_seconds=0.1")
    running = open_stream(server, "@pace=150;x", max_tokens=10)
    begun = open_stream(server, "hi")  # queued, but its 200 is out
    idle = server.connect()
    idle.request("GET", "/health")
    assert idle.response().status == 200
    queued = server.connect()
    queued.request("POST", "/v1/completions", completion("hi"))
    server.wait_note("submit", 3)
    server.signal(signal.SIGTERM)
    assert begun.event()["error"]["code"] == "server_shutting_down" and begun.event() is None
    r = queued.response()
    assert r.status == 503 and r.headers["connection"].lower() == "close", r.status
    assert int(r.headers["retry-after"]) > 0 and r.error()["code"] == "server_shutting_down"
    assert server.request("GET", "/readyz").status == 503
    assert server.request("GET", "/health").status == 200
    r = server.post("/v1/completions", completion("hi"))
    assert r.status == 503 and r.headers["connection"].lower() == "close"
    idle.request("POST", "/v1/completions", completion("hi"))
    assert idle.response().status == 503
    events = list(iter(running.event, None))
    assert events[-1] == "[DONE]" and len(text_of(events)) == 9, events  # the first token has come before
    assert server.wait(5) == 0
    server.stop()


def test_70_sigterm_deadline_cuts_with_error_event():
    server = Server("drain_seconds=1")
    running = open_stream(server, "@pace=100;x", max_tokens=4000)
    whole = server.connect()
    whole.request("POST", "/v1/completions", completion("@pace=100;x", max_tokens=4000))
    server.wait_note("start", 2)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    events = list(iter(running.event, None))
    assert events[-1]["error"]["code"] == "server_shutting_down"
    assert whole.response().status == 503
    assert server.wait(5) == 0
    assert 0.9 < time.monotonic() - began < 2.5 * SLOW
    server.stop()


def test_70_reader_that_does_not_read_cannot_hold_it():
    server = Server("drain_seconds=0.5", "pending=100000000", env={"FAKE_QUIET": "1"})
    c = server.connect()
    c.request("POST", "/v1/completions", stream("@pace=1 burst=500;x", max_tokens=1000000))
    time.sleep(0.5)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert time.monotonic() - began < 4 * SLOW
    server.stop()


def test_71_second_sigterm_immediate():
    server = Server("drain_seconds=60")
    running = open_stream(server, "@pace=100;x", max_tokens=4000)
    server.signal(signal.SIGTERM)
    wait_until(lambda: server.request("GET", "/readyz").status == 503)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    events = list(iter(running.event, None))
    assert events[-1]["error"]["code"] == "server_shutting_down"
    assert server.wait(5) == 0 and time.monotonic() - began < 2 * SLOW
    server.stop()


def test_72_drain_while_suspended_no_panic():
    for signals in (1, 2):
        server = Server("drain_seconds=0.3")
        held = [open_stream(server, "@prefill=60000;x", events=0) for _ in range(20)]
        server.wait_note("start", 20)
        for _ in range(signals):
            server.signal(signal.SIGTERM)
            time.sleep(0.05)
        for c in held:
            assert c.response().status == 503
        assert server.wait(5) == 0
        server.stop()


main(globals())
