"""The cache seen from outside: what is computed and what is found, to the token; who shares with whom; what
is told about it; and what a cached or a long prompt does to times (on the default model, and on Gemma where
ROPEWALK_TEST_GEMMA names it)."""

import os
import tempfile
import threading
import time

from lib import SLOW, Skip, completion, main, sanitized, stream
from program import MODEL, Program, tiny

GEMMA = os.environ.get("ROPEWALK_TEST_GEMMA", "")
CACHED_TOKENS, LONG_TOKENS = (1000, 1500) if sanitized() else (4000, 7000)
LONG = ("--ctx", "8192")


def ids(n, seed, first=10, size=200):
    """n token ids that depend on the seed."""
    x, out = seed * 2654435761 % 2**32 + 1, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        out.append(first + (x >> 8) % size)
    return out


def branch(common, n, own):
    """A common beginning, then tokens of its own, which part at the first."""
    return ids(common, 4711) + [10 + own] + ids(n - common - 1, own)


def sources(server):
    text = server.request("GET", "/metrics").body.decode()
    return {s: int(float(next(l for l in text.splitlines() if f'source="{s}"' in l).rsplit(" ", 1)[1]))
            for s in ("local_compute", "local_cache_hit")}


def together(server, prompts, **more):
    answers = [None] * len(prompts)

    def run(i):
        r = server.post("/v1/completions", completion(prompts[i], **more), timeout=600)
        assert r.status == 200, r.body
        answers[i] = r.json()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def four_share(model, *settings):
    with Program(model, *settings) as server:
        prompts = [branch(1500, 1520, i) for i in range(4)]
        before = sources(server)
        answers = together(server, prompts)
        after = sources(server)
        assert after["local_compute"] - before["local_compute"] == 1500 + 80, (before, after)
        assert sum(map(cached, answers)) == 3 * 1500, [a["usage"] for a in answers]
        server.adds_up()
        before = after
        answers = together(server, [branch(1500, 1520, i + 4) for i in range(4)])
        after = sources(server)
        assert after["local_compute"] - before["local_compute"] == 80, (before, after)
        assert [cached(a) for a in answers] == [1500] * 4
        assert server.metric("vllm:prefix_cache_queries_total") == 8 * 1520
        assert server.metric("vllm:prefix_cache_hits_total") == 7 * 1500
        server.adds_up()


def test_four_with_a_common_prefix_compute_it_once():
    four_share(tiny(), *LONG)


def test_four_on_a_windowed_model_too():
    four_share(tiny("gemma3"), *LONG)


def test_four_on_a_real_windowed_model():
    if not GEMMA:
        raise Skip("no Gemma")
    four_share(GEMMA, *LONG)


def test_a_branch_computes_its_own_and_at_most_a_block():
    for model in [tiny(), tiny("gemma3")] + ([GEMMA] if GEMMA else []):
        with Program(model, *LONG) as server:
            server.complete(branch(1500, 2000, 1))
            answer = server.complete(branch(1500, 2000, 2), return_cache_info=True)
            assert 1500 - 32 <= cached(answer) <= 1500, (model, answer["usage"])
            server.adds_up()


def test_candidates_do_not_count_as_cached():
    with Program(tiny(), *LONG) as server:
        answer = server.complete(ids(100, 1), n=4)
        assert cached(answer) == 0, answer["usage"]
        assert sources(server) == {"local_compute": 100 + 3, "local_cache_hit": 3 * 99}


def test_steps_are_counted_by_their_tokens():
    with Program(tiny(), *LONG, "--lookup", "off") as server:
        for i in range(3):
            server.complete(ids(100, i), max_tokens=5, ignore_eos=True)
        assert server.metric("vllm:iteration_tokens_total_sum") == 3 * (100 + 4)
        assert server.metric("vllm:iteration_tokens_total_count") == server.metric("ropewalk:steps_total") == 3 * 5
        assert server.metric("vllm:corrupted_requests_total") == 0
        assert abs(server.metric("vllm:lora_requests_info") - time.time()) < 5


def miss(server, prompt, **more):
    details = server.complete(prompt, return_cache_info=True, **more)["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details["cache_miss_reason"]


def test_a_miss_says_why():
    with Program(tiny(), *LONG) as server:
        assert miss(server, ids(100, 1)) == (0, "never_seen")
        assert miss(server, ids(100, 1)) == (99, None)
        assert miss(server, ids(100, 1), cache_salt="mine") == (0, "salt")
        assert miss(server, ids(100, 1) + ids(50, 2)) == (100, "never_seen")
        assert "cache_miss_reason" not in server.complete(ids(9, 1))["usage"]["prompt_tokens_details"]
        assert server.metric("ropewalk:prefix_cache_misses_total") == 3
        events = server.post("/v1/completions", stream(ids(100, 7), return_cache_info=True,
                                                       stream_options={"include_usage": True})).events()
        assert events[-2]["usage"]["prompt_tokens_details"]["cache_miss_reason"] == "never_seen"


def test_an_evicted_prefix_is_told():
    with Program(tiny(), "--ctx", "1024", "--memory", "32m", "--kv", "f32") as server:
        total = server.adds_up()["bytes_total"] // 512
        server.complete(ids(900, 1))
        for i in range(total // 900 + 2):
            server.complete(ids(900, 100 + i))
        n, why = miss(server, ids(900, 1))
        assert n < 899 and why == "evicted", (n, why)
        evicted = server.metric("ropewalk:evicted_blocks_total")
        assert evicted > 0
        lived, idle, again = (server.metric(f"vllm:kv_block_{name}_seconds_count")
                              for name in ("lifetime", "idle_before_evict", "reuse_gap"))
        assert lived == idle == evicted, (lived, idle, evicted)
        assert miss(server, ids(900, 1)) == (899, None)
        assert server.metric("vllm:kv_block_reuse_gap_seconds_count") == again + 29  # blocks of 32
        assert 0 < server.metric("vllm:kv_block_idle_before_evict_seconds_sum") \
            < server.metric("vllm:kv_block_lifetime_seconds_sum")
        server.adds_up()


def keyed(server, key, prompt, **more):
    r = server.post("/v1/completions", completion(prompt, return_cache_info=True, **more),
                    {"Authorization": f"Bearer {key}"})
    assert r.status == 200, r.body
    details = r.json()["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details["cache_miss_reason"]


def test_api_keys_share_nothing_but_what_is_public():
    text = "All of us sail by the same stars and the same old charts, and this is what they say. " * 4
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        with Program(tiny("llama-spm"), "--api-key", "red,blue,green", "--open-metrics", "--public-prefix",
                     f.name, *LONG) as server:
            prompt = ids(200, 1)
            assert keyed(server, "red", prompt) == (0, "never_seen")
            assert keyed(server, "red", prompt) == (199, None)
            assert keyed(server, "blue", prompt) == (0, "salt")
            assert keyed(server, "blue", prompt, cache_salt="a") == (0, "salt")
            assert keyed(server, "blue", prompt, cache_salt="a") == (199, None)
            n = keyed(server, "red", text + "Red goes north.")[0]
            assert n == 0, n
            n, why = keyed(server, "blue", text + "Blue goes south.")
            assert n >= 64 and n % 32 > 0, (n, why)
            again = keyed(server, "green", text + "Red goes north.")
            assert again[0] == n, (again, n)
            assert server.request("GET", "/debug/kv").status == 401
            r = server.request("GET", "/debug/kv", headers={"Authorization": "Bearer red"})
            assert r.status == 200


def test_a_public_prefix_may_be_a_chat():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write('{"messages": [{"role": "system", "content": "%s"}]}' % ("You keep the log of a ship. " * 12))
        f.flush()
        if not MODEL:
            raise Skip("no model")
        with Program(MODEL, "--api-key", "red,blue", "--public-prefix", f.name) as server:
            body = {"messages": [{"role": "system", "content": "You keep the log of a ship. " * 12},
                                 {"role": "user", "content": "Where are we?"}], "max_tokens": 2}
            counts = []
            for key in ("red", "blue"):
                r = server.post("/v1/chat/completions", body, {"Authorization": f"Bearer {key}"}, timeout=60)
                counts.append(cached(r.json()))
            assert counts[0] == 0 and counts[1] >= 32, counts


def test_debug_shows_texts_only_when_allowed():
    prompt = "ropes and lamps and sails and ropes and lamps and sails along the pier " * 3
    for allowed in (False, True):
        with Program(tiny(), *LONG, *(["--debug-texts"] if allowed else [])) as server:
            server.complete(prompt)
            server.complete(prompt + "once more")
            d = server.adds_up()
            assert d["prefixes"] and d["prefixes"][0]["hits"] >= 1, d
            assert all(("text" in p) == allowed for p in d["prefixes"]), d
            assert {g["name"] for g in d["groups"]} == {"full"}
            with server.connect() as c:
                c.request("POST", "/v1/completions", stream(prompt, max_tokens=2000, ignore_eos=True))
                c.head(), c.event()
                running = server.request("GET", "/debug/kv").json()["running"]
                assert len(running) == 1 and running[0]["prompt_tokens"] > 100, running
                assert sum(running[0]["blocks"].values()) > 3, running


def test_an_endless_stream_passes_the_context():
    with Program(tiny(), "--ctx", "256") as server:
        body = stream(ids(50, 1), max_tokens=2000, ignore_eos=True, context_shift=True, n_keep=10,
                      stream_options={"include_usage": True})
        events = server.post("/v1/completions", body, timeout=60).events()
        assert events[-2]["usage"]["completion_tokens"] == 2000
        answer = server.complete(ids(50, 1), max_tokens=2000, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 206
        assert answer["choices"][0]["finish_reason"] == "length"
        server.adds_up()


# ---- times ----

def token(c):
    """Waits for an event that carries a token."""
    while not isinstance(e := c.event(), dict):
        assert e != "[DONE]"
    assert "choices" in e, e


def first_token(server, prompt, **more):
    """Seconds to the first token of a stream."""
    with server.connect(600) as c:
        began = time.monotonic()
        c.request("POST", "/v1/completions", stream(prompt, ignore_eos=True, **more))
        assert c.head()[1] == 200
        token(c)
        return time.monotonic() - began


def test_a_long_cached_prefix_takes_hardly_any_time():
    if not MODEL:
        raise Skip("no model")
    for model in [MODEL] + ([GEMMA] if GEMMA else []):
        with Program(model, "--ctx", "8192", "--memory", "900m") as server:
            first_token(server, ids(64, 9), max_tokens=4)
            cold = first_token(server, branch(CACHED_TOKENS, CACHED_TOKENS + 16, 1), max_tokens=1)
            warm = min(first_token(server, branch(CACHED_TOKENS, CACHED_TOKENS + 16, i), max_tokens=1)
                       for i in range(2, 14))
            print(f"    {os.path.basename(model)}: first token after {cold:.2f} s cold, {warm * 1e3:.0f} ms cached: "
                  f"{100 * warm / cold:.2f} %")
            assert warm <= (0.1 if sanitized() else 0.02) * cold, (warm, cold)


def test_a_long_prompt_slows_a_stream_and_does_not_stop_it():
    if not MODEL:
        raise Skip("no model")
    target = 0.1 * SLOW
    with Program(MODEL, "--ctx", "8192", "--memory", "900m", "--lookup", "off",
                 "--itl-target-ms", str(1000 * target)) as server:
        alone = first_token(server, branch(1, LONG_TOKENS, 1), max_tokens=1)
        gaps, done = [], threading.Event()

        def run():
            with server.connect(600) as c:
                # One token again and again, whose text is whole: an event a step.
                c.request("POST", "/v1/completions", stream(ids(20, 5), max_tokens=4000, ignore_eos=True,
                                                            logit_bias={"260": 100}))
                c.head()
                token(c)
                last = time.monotonic()
                while not done.is_set():
                    token(c)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
        thread = threading.Thread(target=run)
        thread.start()
        while len(gaps) < 20:
            time.sleep(0.01)
        before, first = max(gaps[2:]), len(gaps)
        beside = first_token(server, branch(1, LONG_TOKENS, 2), max_tokens=1)
        worst = max(gaps[first:])
        done.set()
        thread.join()
        inside = sorted(gaps[first:])
        print("    gaps: " + ", ".join(f"{q}% {1e3 * inside[len(inside) * q // 100]:.0f} ms" for q in (10, 50, 90, 99)))
        print(f"    target {target * 1e3:.0f} ms: largest gap {worst * 1e3:.0f} ms ({before * 1e3:.0f} before); first "
              f"token after {beside:.2f} s, {alone:.2f} s alone")
        # A busy host makes single gaps long; what must be small are the parts that the prompt is computed in.
        assert inside[len(inside) * 9 // 10] <= 2 * target, inside
        assert len(inside) >= beside / (3 * target), (len(inside), beside)
        assert worst < 10 * target, inside[-5:]
        assert beside <= 2 * alone * SLOW, (beside, alone)


if __name__ == "__main__":
    main(globals())
