"""The program under many clients: 64 streams at once, 2,000 connections held, 10,000 that come and go."""

import multiprocessing
import os
import resource
import selectors
import time

from lib import SLOW, Events, completion, main, sanitized, stream, text_of, wait_until
from program import MODEL, Program, tiny

SHORT = bool(os.environ.get("ROPEWALK_TEST_SHORT"))
FORK = multiprocessing.get_context("fork")
MIB = 1 << 20


def prompt(i):
    return f"Sailor number {i} of the rope walk told the others that"


def held(server):
    """What the cache holds, in bytes: running, and cached."""
    debug = server.request("GET", "/debug/kv").json()
    return debug["bytes_used"], debug["bytes_cached"]


# ---- 64 streams ----

def read_streams(clients, results):
    """Of each stream: its events' times, its text, how it ended. In a process of its own, to disturb nobody."""
    poll, found = selectors.DefaultSelector(), {}
    for c in clients:
        poll.register(c.sock, selectors.EVENT_READ, c)
        found[c] = (Events(), [], [])
    while poll.get_map():
        for key, _ in poll.select():
            events, times, all_ = found[key.data]
            data = key.data.sock.recv(65536)
            new = [e for e in events.feed(data) if not isinstance(e, str) or e == "[DONE]"]
            times += [time.monotonic()] * len(new)
            all_ += new
            if not data or "[DONE]" in new:
                poll.unregister(key.data.sock)
    results.send([(times, text_of(events), events[-1], events[-2]["usage"]) for _, times, events in found.values()])


def probe(server, over):
    """Times of /health until it is over."""
    times = []
    while not over():
        began = time.monotonic()
        assert server.request("GET", "/health").status == 200
        times.append(time.monotonic() - began)
        time.sleep(0.01)
    return sorted(times)


def test_64_streams_all_complete_none_starves_health_answers():
    n, tokens = 64, 16 if SHORT else 48
    with Program(MODEL or tiny(), "--memory", "1g") as server:
        server.complete(prompt(0))
        clients = [server.connect(300) for _ in range(n)]
        began = time.monotonic()
        for i, c in enumerate(clients):
            c.request("POST", "/v1/completions",
                      stream(prompt(i), max_tokens=tokens, ignore_eos=True, temperature=0,
                             stream_options={"include_usage": True}))
        ours, theirs = FORK.Pipe()
        reader = FORK.Process(target=read_streams, args=(clients, theirs))
        reader.start()
        health = probe(server, ours.poll)
        results = ours.recv()
        reader.join()
        first = [times[0] - began for times, *_ in results]
        last = [times[-1] - began for times, *_ in results]
        gaps = [max(b - a for a, b in zip(times, times[1:])) for times, *_ in results]
        p95, p99 = (health[len(health) * q // 100] for q in (95, 99))
        print(f"        first token after {min(first):.2f} to {max(first):.2f} s, ends after {min(last):.2f} to "
              f"{max(last):.2f} s, longest gap {max(gaps):.2f} s; {len(health)} x /health: "
              f"p99 {p99 * 1000:.1f} ms, most {health[-1] * 1000:.1f} ms")
        for _, text, end, usage in results:
            assert end == "[DONE]" and usage["completion_tokens"] == tokens, (end, usage, text)
        if not sanitized():  # there the first short answers end before the last prompts are computed
            assert max(last) < 1.5 * min(last) + 0.5, last  # the same work takes all about as long
        assert max(gaps) < 2 * SLOW, gaps
        assert p95 < 0.05 * SLOW and p99 < 0.25 * SLOW, (p95, health[-10:])
        wait_until(server.idle)
        alone = server.complete(prompt(5), max_tokens=tokens, ignore_eos=True, temperature=0, cache_salt="alone")
        assert alone["choices"][0]["text"] == results[5][1]


# ---- 2,000 connections ----

def sip(clients, go):
    """Reads a little of each stream from time to time."""
    for c in clients:
        c.sock.setblocking(False)
    while not go.is_set():
        for c in clients:
            try:
                c.sock.recv(2000)
            except BlockingIOError:
                pass
        time.sleep(0.5)


def test_1000_idle_and_1000_slow_streams_take_less_than_64_mib():
    n = 200 if SHORT else 1000
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with Program(MODEL or tiny(), "--memory", "2g", "--max-connections", "2100", "--max-queue", "2000") as server:
        server.complete([5 + i % 90 for i in range(600)], max_tokens=2)  # scratch has been touched
        before = server.memory() - sum(held(server))
        clients = [server.connect(60) for _ in range(2 * n)]
        for c in clients[:n]:
            c.request("GET", "/health")
            assert c.response().status == 200
        for i, c in enumerate(clients[n:]):
            c.request("POST", "/v1/completions", stream(prompt(i), max_tokens=2000, ignore_eos=True))
        wait_until(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == n,
                   30)
        go = FORK.Event()
        reader = FORK.Process(target=sip, args=(clients[n:], go))
        reader.start()
        most = 0
        for _ in range(10 if SHORT else 40):
            time.sleep(0.25)
            most = max(most, server.memory() - sum(held(server)) - before)
        connections = server.metric("ropewalk:connections")
        go.set()
        reader.join()
        print(f"        {most / MIB:.1f} MiB for {connections:.0f} connections, keys and values left out")
        assert connections > 2 * n and most < 64 * MIB, most
        for c in clients:
            c.close()
        wait_until(server.idle, 30)
        wait_until(lambda: server.metric("ropewalk:connections") == 1, 30)
        assert held(server)[0] == 0


# ---- connections that come and go ----

def come_and_go(server, n):
    for i in range(n):
        c = server.connect(30)
        if i % 4 == 1:
            c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        elif i % 4 == 2:
            c.request("POST", "/v1/completions", stream("the same words", max_tokens=200, ignore_eos=True))
        elif i % 4 == 3:
            c.request("GET", "/v1/models")
        if i % 8 > 3:
            c.reset()
        else:
            c.close()


def settled(server):
    wait_until(lambda: server.metric("ropewalk:connections") == 1, 30)
    wait_until(server.idle, 30)
    time.sleep(0.6)  # a sweep gives memory back
    used, cached = held(server)
    return server.files(), server.memory() - cached, used


def test_10000_connections_leave_nothing():
    n = 1000 if SHORT else 5000
    with Program(tiny(), "--memory", "200m") as server:
        come_and_go(server, n)
        files, memory, blocks = settled(server)
        come_and_go(server, n)
        more_files, more_memory, more_blocks = settled(server)
        print(f"        {(more_memory - memory) >> 10} KiB more after {n} more")
        assert more_files <= files + 1 and blocks == more_blocks == 0, (files, more_files, blocks, more_blocks)
        assert more_memory - memory < 2 * MIB or SLOW > 4, (memory, more_memory)
        assert server.post("/v1/completions", completion("hi")).status == 200


if __name__ == "__main__":
    main(globals())
