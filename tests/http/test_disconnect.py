"""Clients that leave: 52 to 63 of the front end's list. What they asked for must stop at once."""

import os
import random
import signal
import socket
import subprocess
import sys
import time

from lib import SLOW, Conn, Server, Skip, completion, main, open_stream, stream, wait_until

SOON = 0.1  # from the client's act to the engine's being told


def cancelled(server, act, count=1, soon=SOON):
    """Does `act` and checks that the engine hears of it soon."""
    began = time.monotonic()
    act()
    times = [t for _, t in server.wait_note("cancel", count)]
    took = max(times) - began
    print(f"        cancelled after {took * 1000:.1f} ms")
    assert took < soon * SLOW, took
    server.wait_note("done", count)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_52_fin_midstream(server):
    c = open_stream(server, "@pace=2000;x", max_tokens=100)
    cancelled(server, c.close)


def test_53_rst_midstream(server):
    c = open_stream(server, "@pace=2000;x", max_tokens=100)
    cancelled(server, c.reset)


def test_54_half_close(server):
    c = open_stream(server, "@pace=2000;x", max_tokens=100)
    cancelled(server, lambda: c.sock.shutdown(socket.SHUT_WR))
    c.close()


def test_54_half_closed_probe_is_answered(server):
    """What is answered at once is answered to a client that has closed its sending side, too; what
    takes time is not, since libmicrohttpd takes the end of input for the end of the client."""
    for path in ("/health", "/metrics"):
        with server.connect() as c:
            c.request("GET", path)
            c.sock.shutdown(socket.SHUT_WR)
            assert c.response().status == 200


def test_55_kill9_client(server):
    code = ("import socket, sys, time\n"
            f"s = socket.create_connection(('127.0.0.1', {server.port}))\n"
            "b = b'{\"prompt\": \"@pace=2000;x\", \"stream\": true, \"max_tokens\": 100}'\n"
            "s.sendall(b'POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\n"
            "Content-Length: %d\\r\\n\\r\\n' % len(b) + b)\n"
            "s.recv(100)\ntime.sleep(100)\n")
    client = subprocess.Popen([sys.executable, "-c", code])
    server.wait_note("start")
    cancelled(server, lambda: os.kill(client.pid, signal.SIGKILL), soon=0.3)
    client.wait()


def test_56_fin_during_prefill(server):
    c = open_stream(server, "@prefill=5000;x", events=0)
    server.wait_note("start")
    cancelled(server, c.close)


def test_57_fin_while_queued_never_started():
    with Server("sequences=1") as server:
        a = open_stream(server, "@pace=500;x", max_tokens=1000)
        b = open_stream(server, "hi", events=0)
        server.wait_note("submit", 2)
        cancelled_at = time.monotonic()
        b.close()
        job, t = server.wait_note("cancel")[0]
        assert job == 2 and t - cancelled_at < SOON * SLOW
        server.wait_note("done")
        a.close()
        server.wait_note("done", 2)
        assert [j for j, _ in server.notes("start")] == [1]


def test_58_fin_with_partial_body(server):
    files = server.files()
    for _ in range(5):
        c = server.connect()
        c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"pro")
        c.close()
    wait_until(lambda: server.files() <= files, 15)
    assert not server.notes("submit")


def test_59_fin_nonstream_request(server):
    c = server.connect()
    c.request("POST", "/v1/completions", completion("@pace=2000;x", max_tokens=100))
    server.wait_note("start")
    cancelled(server, c.close)


def test_60_rst_same_tick_as_finish(server):
    for i in range(60):
        c = server.connect()
        c.request("POST", "/v1/completions", stream("@pace=5;x", max_tokens=4))
        time.sleep(0.001 * (i % 24))
        c.reset() if i % 2 else c.close()
    server.wait_note("done", 55)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_61_vanished_peer_user_timeout():
    """A peer that vanishes without a FIN: a network of its own, whose link is then taken down."""
    probe = ["unshare", "-rn", "true"] if os.geteuid() else ["unshare", "-n", "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        raise Skip("no network namespaces here")
    code = """
import os, subprocess, sys, time
sys.argv[1:] = [%r]
sys.path.insert(0, %r)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
import lib
lib.PROGRAM = sys.argv[1]
s = lib.Server("vanish_seconds=2", "ping_seconds=60")
c = lib.open_stream(s, "@pace=100;x", max_tokens=10000)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
began = time.monotonic()
t = s.wait_note("cancel", 1, 15)[0][1]
print("%%.2f" %% (t - began))
s.process.kill()
""" % (sys.argv[1], os.path.dirname(os.path.abspath(__file__)))
    run = subprocess.run(probe[:-1] + [sys.executable, "-c", code], capture_output=True, text=True,
                         timeout=60)
    if "ip" in run.stderr and "No such file" in run.stderr:
        raise Skip("no ip command")
    assert run.returncode == 0, run.stderr
    took = float(run.stdout.split()[-1])
    print(f"        gone after {took:.2f} s of 2 s")
    assert 1.5 < took < 6 * SLOW


def test_62_1000_disconnect_at_once():
    n = 1000
    with Server("sequences=2000", "queued=3000") as server:
        files = server.files()
        clients = []
        for i in range(n):
            c = server.connect(30)
            c.request("POST", "/v1/completions", stream("@pace=3000;x", max_tokens=100))
            clients.append(c)
        server.wait_note("start", n, 20)
        began = time.monotonic()
        for c in clients:
            c.close()
        last = max(t for _, t in server.wait_note("cancel", n, 20))
        print(f"        {n} cancelled within {last - began:.2f} s")
        assert last - began < 3 * SLOW
        server.wait_note("done", n, 10)
        wait_until(lambda: server.files() <= files + 1, 10)


def test_63_fd_reuse_after_disconnect(server):
    """A new connection gets the number of one that has just gone; no old event may hit it."""
    for round in range(30):
        old = [open_stream(server, "@pace=1000;x", max_tokens=50) for _ in range(4)]
        for c in old:
            random.choice((c.close, c.reset))()
        new = [server.connect() for _ in range(4)]
        for c in new:
            c.request("POST", "/v1/completions", stream("@pace=10;x", max_tokens=3))
        for c in new:
            events = c.response().events()
            assert events[-1] == "[DONE]" and len(events) == 4, events
            c.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


main(globals())
