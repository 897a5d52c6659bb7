"""Mutated requests, cut into random packets, ended in random ways; the server must stay well and keep
other streams undisturbed. FUZZ_SECONDS says for how long (a few by default)."""

import json
import os
import random
import time

from lib import SLOW, Server, completion, main, open_stream, stream

SECONDS = float(os.environ.get("FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("TEST_SEED", time.time_ns() % 10**9))


def requests():
    body = json.dumps(completion("hello", n=2, logprobs=2, stop=["x"]))
    lazy = json.dumps(stream("@pace=3;x", max_tokens=8))
    chat = json.dumps({"messages": [{"role": "user", "content": "@pace=2;x"}], "stream": True,
                       "max_tokens": 5})
    for path, b in (("/v1/completions", body), ("/v1/completions", lazy),
                    ("/v1/chat/completions", chat), ("/tokenize", '{"content":"abc"}'),
                    ("/detokenize", '{"tokens":[1,2]}')):
        yield (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(b)}\r\n\r\n{b}").encode()
        half = len(b) // 2
        yield (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
               f"{half:x}\r\n{b[:half]}\r\n{len(b) - half:x};e=f\r\n{b[half:]}\r\n0\r\nT: x\r\n\r\n").encode()
    for line in ("GET /health", "HEAD /metrics", "OPTIONS /v1/models", "GET /v1/models/fake",
                 "GET /v1/models/%66%zz", "PUT /x?y=z"):
        yield f"{line} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n".encode()
    yield b"GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"


WORDS = [b"\r\n", b"\n", b"\0", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"chunked",
         b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/2.0", b"Host: a\r\n", b" ", b"\t", b"%00",
         b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"ffffffff\r\n", b"0\r\n\r\n", b"-1", b"\xff\xfe",
         b"Connection: close\r\n", b"a" * 300, b"{" * 50, b"[" * 3000]


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:at + rng.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = rng.choice(WORDS)
        else:
            data[at:at] = data[at:at + rng.randrange(1, 60)]
    return bytes(data)


def one(rng, server, seeds):
    data = b"".join(mutate(rng, rng.choice(seeds)) for _ in range(rng.choice((1, 1, 2, 3))))
    c = server.connect(2)
    try:
        while data:
            n = rng.choice((1, 7, 100, len(data), len(data)))
            c.send(data[:n])
            data = data[n:]
            if rng.random() < 0.02:
                break
        if rng.random() < 0.3:
            c.sock.settimeout(rng.random() * 0.05)
            while c.more():
                pass
    except OSError:
        pass
    end = rng.randrange(4)
    try:
        if end == 0:
            c.reset()
        elif end == 1:
            c.sock.shutdown(1)
            c.sock.settimeout(0.02)
            while c.more():
                pass
    except OSError:
        pass
    c.close()


def test_mutated_requests():
    print(f"        TEST_SEED={SEED}")
    rng = random.Random(SEED)
    seeds = list(requests())
    with Server("header_seconds=2", "body_seconds=2", "idle_seconds=3", "body=200000",
                env={"FAKE_QUIET": "1"}) as server:
        quiet = open_stream(server, "@pace=20;x", events=1, max_tokens=4000)
        end, n = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            one(rng, server, seeds)
            n += 1
            if n % 200 == 0:
                server.alive()
        texts = [quiet.event()["choices"][0]["text"] for _ in range(20)]
        assert "".join(texts) in "abcdefghij" * 3000, texts
        quiet.close()
        end = time.monotonic() + 15 * SLOW
        while server.metric("ropewalk:connections") > 1 or server.metric("vllm:num_requests_running"):
            assert time.monotonic() < end
            time.sleep(0.1)
        print(f"        {n} connections")


main(globals())
