"""The real engine behind HTTP: the same answers in company as alone, what is freed when clients leave,
limits, prefixes, drain. On a tiny model, and on the default one where it is at hand."""

import signal
import subprocess
import threading
import time

import lib
from lib import SLOW, Skip, completion, main, open_stream, wait_until
from program import MODEL, Program, tiny

WORDS = "the sea calm lamps along pier barometer rising ropes twisted strands yarn hemp walks".split()


def prompt(i, n=30):
    return " ".join(WORDS[(i * 7 + j * (i + 3)) % len(WORDS)] for j in range(n))


def requests(n, tokens):
    """Greedy and seeded ones, of different lengths."""
    return [completion(prompt(i, 3 + 3 * i), max_tokens=tokens, temperature=[0, 0.8][i % 2], seed=100 + i, logprobs=3,
                       ignore_eos=True, cache_salt=f"salt {i}") for i in range(n)]


def read_stream(server, body):
    with server.connect(60) as c:
        c.request("POST", "/v1/completions", dict(body, stream=True, stream_options={"include_usage": True}))
        assert c.head()[1] == 200
        text, tokens, logprobs, usage = "", [], [], None
        while (e := c.event()) != "[DONE]":
            assert isinstance(e, dict), e
            usage = e.get("usage") or usage
            for choice in e["choices"]:
                text += choice["text"]
                tokens += choice["logprobs"]["tokens"]
                logprobs += choice["logprobs"]["token_logprobs"]
        return text, tokens, logprobs, usage["completion_tokens"]


def parallel(jobs):
    results = [None] * len(jobs)

    def run(i):
        results[i] = jobs[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(r is not None for r in results), results
    return results


def same_alone_and_together(server, n, tokens):
    bodies = requests(n, tokens)
    alone = [read_stream(server, b) for b in bodies]
    for body, (text, *_rest, count) in zip(bodies, alone):
        assert count == tokens, (count, tokens)
    fresh = [dict(b, cache_salt=b["cache_salt"] + " again") for b in bodies]
    together = parallel([lambda b=b: read_stream(server, b) for b in fresh])
    for i in range(n):
        assert together[i] == alone[i], (i, together[i], alone[i])
    cached = parallel([lambda b=b: read_stream(server, b) for b in bodies])
    assert cached == alone
    whole = server.complete(bodies[0]["prompt"], **{k: v for k, v in bodies[0].items() if k != "prompt"})
    assert whole["choices"][0]["text"] == alone[0][0]


def test_eight_streams_say_what_each_says_alone_tiny():
    with Program(tiny()) as server:
        same_alone_and_together(server, 8, 40)


def test_eight_streams_say_what_each_says_alone_real():
    if not MODEL:
        raise Skip("no model")
    with Program(MODEL) as server:
        same_alone_and_together(server, 8, 48)


def test_windowed_model_too():
    with Program(tiny("gemma3")) as server:
        same_alone_and_together(server, 8, 40)


def busy(server):
    return server.metric("vllm:num_requests_running")


def test_a_client_that_leaves_frees_its_work():
    with Program(tiny(), "--ctx", "256") as server:
        for leave in ("close", "reset"):
            clients = [open_stream(server, prompt(i), events=3, max_tokens=200, ignore_eos=True) for i in range(4)]
            for c in clients:
                getattr(c, leave)()
            wait_until(lambda: server.idle(), 2)
        # not streaming: the request is sent, nothing is read
        c = server.connect()
        c.request("POST", "/v1/completions", completion(prompt(1), n=64, max_tokens=200, ignore_eos=True))
        wait_until(lambda: busy(server) > 0, 5)
        c.close()
        wait_until(lambda: server.idle(), 2)


def test_a_queued_client_that_leaves_is_never_started():
    with Program(tiny(), "--parallel", "1") as server:
        first = open_stream(server, prompt(1), events=1, max_tokens=200, ignore_eos=True, n=1)
        waiting = [open_stream(server, prompt(i), events=0, max_tokens=100, ignore_eos=True) for i in range(3)]
        for c in waiting:
            c.close()
        first.close()
        wait_until(lambda: server.idle(), 3)


def test_limits_by_tokens_and_by_address():
    with Program(tiny(), "--parallel", "1", "--max-queue-tokens", "50", "--max-connections-per-address", "3") as server:
        running = open_stream(server, prompt(1), max_tokens=1000000, ignore_eos=True, context_shift=True)
        queued = open_stream(server, prompt(2, 10), events=0, max_tokens=1)
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1)
        r = server.post("/v1/completions", completion(prompt(3, 60)))
        assert r.status == 429 and int(r.headers["retry-after"]) >= 1 and r.error()["code"] == "queue_full", r.body
        third = server.connect()
        third.request("GET", "/health")
        assert third.response().status == 200
        r = server.request("GET", "/health")
        assert r.status == 503 and r.error()["code"] == "too_many_connections", r.body
        for c in (running, queued, third):
            c.close()
        wait_until(lambda: server.request("GET", "/health").status == 200)


def test_a_queue_is_full_when_the_places_are():
    with Program(tiny(), "--parallel", "16", "--max-queue", "2") as server:
        def burst(n):
            clients = [server.connect(60) for _ in range(n)]
            for i, c in enumerate(clients):
                c.request("POST", "/v1/completions", completion(prompt(i), max_tokens=100, ignore_eos=True))
            return [c.response().status for c in clients]
        assert burst(16) == [200] * 16
        endless = [open_stream(server, prompt(i), max_tokens=1000000, ignore_eos=True, context_shift=True)
                   for i in range(16)]
        waiting = [open_stream(server, prompt(i), events=0) for i in range(2)]
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 2)
        assert burst(5) == [429] * 5
        for c in endless + waiting:
            c.close()


def test_https_is_refused_where_it_cannot_be():
    r = subprocess.run([lib.PROGRAM, "serve", tiny(), "--port", "0", "--tls-certificate", "/dev/null"],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and ("ROPEWALK_TLS is off" in r.stderr or "both a certificate and a key" in r.stderr), r


def test_too_long_a_prompt_is_refused_with_both_numbers():
    with Program(tiny(), "--ctx", "128") as server:
        r = server.post("/v1/completions", completion([5] * 128))
        assert r.status == 400 and r.error()["code"] == "context_length_exceeded", r.body
        assert "128" in r.error()["message"], r.error()
        r = server.post("/v1/completions", completion([5] * 127, max_tokens=9, ignore_eos=True))
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] == 1, r.body
        assert r.json()["choices"][0]["finish_reason"] == "length"


def test_candidates_share_the_prompt_and_differ():
    with Program(tiny()) as server:
        answer = server.complete(prompt(2), n=4, max_tokens=20, temperature=1.5, seed=7, ignore_eos=True)
        texts = [c["text"] for c in answer["choices"]]
        assert len(set(texts)) > 1 and len(texts) == 4, texts
        assert answer["usage"]["completion_tokens"] == 80, answer["usage"]
        again = server.complete(prompt(2), n=4, max_tokens=20, temperature=1.5, seed=7, ignore_eos=True)
        assert [c["text"] for c in again["choices"]] == texts


def test_a_repeated_prompt_comes_from_the_cache():
    with Program(tiny()) as server:
        ids = [10 + i for i in range(100)]
        assert server.complete(ids)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert server.complete(ids)["usage"]["prompt_tokens_details"]["cached_tokens"] == 99
        other = server.complete(ids, cache_salt="another tenant")
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_sigterm_lets_streams_end():
    with Program(MODEL or tiny()) as server:
        clients = [open_stream(server, prompt(i, 4), events=1, max_tokens=100, ignore_eos=True) for i in range(4)]
        server.signal(signal.SIGTERM)
        for c in clients:
            last = None
            while (e := c.event()) not in (None, "[DONE]"):
                last = e
            assert e == "[DONE]" and last["choices"][0]["finish_reason"] == "length", last
        assert server.wait(10) == 0


def test_health_answers_while_the_engine_works():
    with Program(tiny()) as server:
        clients = [open_stream(server, prompt(i), events=1, max_tokens=150, ignore_eos=True) for i in range(16)]
        times = []
        for _ in range(20):
            began = time.monotonic()
            assert server.request("GET", "/health").status == 200
            times.append(time.monotonic() - began)
        assert sorted(times)[-2] < 0.25 * SLOW, times
        for c in clients:
            c.close()


if __name__ == "__main__":
    main(globals())
