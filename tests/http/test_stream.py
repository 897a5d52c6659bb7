"""Streams: 40 to 51 of the front end's list, and what else a stream must be."""

import json
import os
import re
import selectors
import statistics
import socket
import time

from lib import SLOW, Events, Server, Skip, completion, main, open_stream, stream, text_of, wait_until


def lateness(server, n, tokens, pace):
    """Seconds by which each token of n streams came later than the first of them allows."""
    poll = selectors.DefaultSelector()
    arrivals, streams = {}, {}
    for _ in range(n):
        c = server.connect(20)
        c.request("POST", "/v1/completions",
                  stream(f"@pace={pace} prefill=400;x", max_tokens=tokens))
        c.sock.setblocking(False)
        poll.register(c.sock, selectors.EVENT_READ, c)
        arrivals[c], streams[c] = [], Events()
    while poll.get_map():
        for key, _ in poll.select():
            c, now = key.data, time.monotonic()
            data = c.sock.recv(65536)
            events = streams[c].feed(data)
            arrivals[c] += [now] * len(text_of(events))
            if "[DONE]" in events or not data:
                poll.unregister(c.sock)
                c.close()
    late = []
    for times in arrivals.values():
        assert len(times) == tokens, len(times)
        first = min(t - i * pace / 1000 for i, t in enumerate(times))
        late += [t - i * pace / 1000 - first for i, t in enumerate(times)]
    return late


def test_40_two_plus_streams_token_latency():
    """The pump: with 100 streams at once a token goes out when it is made, not with the next one,
    which would be 200 ms late. The best of three rounds counts, and a machine that others use is
    given more time."""
    most = 0.01 if os.getloadavg()[0] < os.cpu_count() / 2 else 0.05
    with Server("sequences=200", env={"FAKE_QUIET": "1"}) as server:
        p50s = []
        while len(p50s) < 3 and (not p50s or min(p50s) >= most * SLOW):
            late = lateness(server, 100, 10, 200)
            p50s.append(statistics.median(late))
            print(f"        p50 {p50s[-1] * 1000:.1f} ms, most {max(late) * 1000:.1f} ms")
        assert min(p50s) < most * SLOW, p50s


def test_40_first_token_is_not_held_until_the_second(server):
    with server.connect() as c:
        c.request("POST", "/v1/completions", stream("@pace=1000;x", max_tokens=3))
        began = time.monotonic()
        c.head()
        c.event()
        assert time.monotonic() - began < 0.5 * SLOW


def test_41_first_byte_is_token_or_ping_2s(server):
    with server.connect() as c:
        began = time.monotonic()
        c.request("POST", "/v1/completions", stream("@prefill=3500;x"))
        assert c.head()[1] == 200
        assert c.event().startswith(":")
        waited = time.monotonic() - began
        assert 1.8 < waited < 2.6 * SLOW, waited
        assert c.event()["choices"][0]["text"].startswith("a")
    with server.connect() as c:
        began = time.monotonic()
        c.request("POST", "/v1/completions", stream("@prefill=500;x"))
        assert c.head()[1] == 200
        assert 0.45 < time.monotonic() - began < 1 * SLOW


def test_42_late_error_has_real_status(server):
    r = server.post("/v1/completions", stream("@fail=0 prefill=300;x"))
    assert r.status == 500 and r.headers["content-type"] == "application/json"
    assert "as it was told" in r.error()["message"]
    r = server.post("/v1/completions", stream("@fit=1;x"))
    assert r.status == 400 and r.error()["code"] == "context_length_exceeded"
    r = server.post("/v1/completions", completion("@fail=2;x"))
    assert r.status == 500 and r.error()["type"] == "server_error"


def test_43_midstream_error_event_clean_end(server):
    with server.connect() as c:
        c.request("POST", "/v1/completions", stream("@fail=2 pace=30;x"))
        events = c.response().events()
        assert [e["choices"][0]["text"] for e in events[:-1]] == ["a", "b"]
        assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
        c.request("GET", "/health")
        assert c.response().status == 200


def test_44_utf8_split_across_tokens(server):
    text = "né€𝄞!"
    n = len(text.encode())
    for path, body in (("/v1/completions", stream(f"@text={text} pace=5;x", max_tokens=n)),
                       ("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": f"@text={text} pace=5;x"}],
                         "stream": True, "max_tokens": n, "logprobs": True})):
        events = server.post(path, body).events()
        pieces = [c.get("text", c.get("delta", {}).get("content", ""))
                  for e in events[:-1] for c in e["choices"]]
        assert "".join(pieces) == text and "\ufffd" not in "".join(pieces), pieces
    # one entry per token, with its bytes
    tokens = [t for e in events[:-1] for c in e["choices"] if c["logprobs"]
              for t in c["logprobs"]["content"]]
    assert bytes(b for t in tokens for b in t["bytes"]) == text.encode()
    assert len(tokens) == n


def test_45_invalid_utf8_replaced(server):
    r = server.post("/v1/completions", completion([64] + list(b"raw=1 text=a") + [0xff, 0xc3, 0x41]
                                                  + list(b";"), max_tokens=4))
    assert r.json()["choices"][0]["text"] == "a\ufffd\ufffdA", r.body
    events = server.post("/v1/completions", stream(
        [64] + list(b"raw=1 text=a") + [0xff, 0xc3, 0x41] + list(b";"), max_tokens=4)).events()
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "a\ufffd\ufffdA"


def test_46_escape_quotes_ctrl_u2028(server):
    text = "\"\\/\n\t\r\x01\x1f\x7f\u2028\u2029\u0085<>é"
    prompt = [t for t in text.encode()]
    n = len(prompt)
    r = server.post("/v1/completions", completion(prompt, max_tokens=n))
    assert r.json()["choices"][0]["text"] == text
    r = server.post("/v1/completions", stream(prompt, max_tokens=n))
    assert "".join(e["choices"][0]["text"] for e in r.events()[:-1]) == text
    # clients that split lines as Unicode does see whole events
    assert all(json.loads(l[6:]) for l in r.body.decode().splitlines()
               if l.startswith("data: {"))
    for raw in (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85"):
        assert raw not in r.body


def test_47_done_and_usage_once(server):
    for path, body in (("/v1/completions", {"prompt": "@pace=3;x"}),
                       ("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "@pace=3;x"}]})):
        body.update(max_tokens=5, n=2, stream=True, stream_options={"include_usage": True})
        events = server.post(path, body).events()
        assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
        with_usage = [e for e in events[:-1] if e["usage"]]
        assert len(with_usage) == 1 and with_usage[0] is events[-2]
        assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 10
        assert "cached_tokens" in events[-2]["usage"]["prompt_tokens_details"]
        assert sum(c["finish_reason"] is not None for e in events[:-1] for c in e["choices"]) == 2
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        counts = [e["usage"]["completion_tokens"] for e in server.post(path, body).events()[:-1]]
        assert counts == sorted(counts) and counts[-1] == 10, counts
        del body["stream_options"]
        assert all("usage" not in e for e in server.post(path, body).events()[:-1])


def test_48_ping_during_long_prefill():
    with Server("ping_seconds=0.5", "hold_seconds=0.3") as server, server.connect() as c:
        c.request("POST", "/v1/completions", stream("@prefill=3000 pace=1500;x", max_tokens=2))
        c.head()
        pings = 0
        while (e := c.event()) and isinstance(e, str):
            pings += 1
        assert 4 <= pings <= 8, pings
        assert e["choices"][0]["text"] == "a"
        assert c.event().startswith(":")


def test_49_token_gap_longer_than_conn_timeout():
    with Server("idle_seconds=1", "header_seconds=1", "body_seconds=1", "ping_seconds=60") as server:
        r = server.post("/v1/completions", stream("@pace=2500;x", max_tokens=2))
        assert [e["choices"][0]["text"] for e in r.events()[:-1]] == ["a", "b"]
        r = server.post("/v1/completions", completion("@prefill=2500;x", max_tokens=2))
        assert r.status == 200


def test_50_slow_reader_coalesces():
    """A client that stops reading for a while gets what it missed in fewer events."""
    with Server("pending=10000000") as server, server.connect(30) as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # a lot of tokens, fast, into a small window
        c.request("POST", "/v1/completions", stream("@;x", max_tokens=20000))
        server.wait_note("done", 1, 30)
        r = c.response()
        events = r.events()
        text = "".join(e["choices"][0]["text"] for e in events[:-1])
        assert text == "abcdefghij" * 2000
        print(f"        20000 tokens in {len(events)} events")
        assert len(events) < 10000


def sockets_memory():
    with open("/proc/net/sockstat") as f:
        m = re.search(r"TCP:.* mem (\d+)", f.read())
    return int(m[1]) * 4096


def test_51_non_reader_killed_bounded_memory():
    with Server("pending=65536", env={"FAKE_QUIET": "1"}) as server:
        kernel, ours = sockets_memory(), server.memory()
        clients = []
        for _ in range(20):
            c = server.connect(30)
            c.request("POST", "/v1/completions", stream("@pace=1 burst=100;x", max_tokens=10_000_000))
            clients.append(c)
        wait_until(lambda: server.metric("ropewalk:slow_readers_total") >= 20, 20)
        grown, held = server.memory() - ours, sockets_memory() - kernel
        print(f"        {grown >> 10} KiB of ours, {held >> 10} KiB of the kernel's for 20")
        assert grown < (40 << 20) * SLOW and held < (40 << 20) * SLOW
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
        for c in clients:
            c.close()


main(globals())
