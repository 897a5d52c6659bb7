"""The official OpenAI client for Python, unmodified, against the program: every parameter of both endpoints, whole and
streamed, errors and what the client makes of them."""

import asyncio
import http.server
import json
import math
import sys
import threading
import time

try:
    import openai
except ImportError:
    print("skipped: the package openai is not installed")
    sys.exit(77)

import lib
from lib import Skip, main, wait_until
from program import MODEL, Program, tiny

_servers = {}


def served(model=None, *settings):
    """One server per model and settings, for all tests."""
    key = (model, *settings)
    if key not in _servers:
        _servers[key] = Program(model or tiny(), "--served-model-name", "tiny,also", *settings)
    return _servers[key]


def client(server=None, **more):
    server = server or served()
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", **{"api_key": "none", "max_retries": 0, **more})


def default_model():
    if not MODEL:
        raise Skip("no default model")
    return served(MODEL)


def slow(*settings):
    """A server whose answers take a while."""
    default_model()
    return Program(MODEL, "--served-model-name", "tiny", *settings)


def complete(prompt="sea", server=None, **more):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
    return client(server).completions.create(**body)


def refused(kind, param, **more):
    try:
        complete(**more)
    except kind as e:
        assert e.param == param or (e.param or "").startswith(param + "["), (e.param, param)
        assert e.type == "invalid_request_error" and e.body["message"], e.body
        return e
    raise AssertionError(f"accepted: {more}")


# ---- completions ----

def test_completion_is_what_the_client_declares():
    r = complete()
    assert isinstance(r, openai.types.Completion) and r.object == "text_completion" and r.model == "tiny"
    assert r.id.startswith("cmpl-") and abs(r.created - time.time()) < 60
    choice = r.choices[0]
    assert choice.index == 0 and choice.finish_reason == "length" and choice.logprobs is None and choice.text
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens == r.usage.prompt_tokens + 8
    assert r.usage.prompt_tokens_details.cached_tokens >= 0
    assert r._request_id  # X-Request-Id


def test_prompt_forms():
    text = complete("rope").choices[0].text
    ids = served().post("/tokenize", {"content": "rope", "add_special": True}).json()["tokens"]
    assert complete(ids).choices[0].text == text
    assert complete([ids]).choices[0].text == text
    assert complete(["rope"]).choices[0].text == text
    both = complete(["rope", "sea"], n=2)
    assert [c.index for c in both.choices] == [0, 1, 2, 3]
    assert both.choices[0].text == both.choices[1].text == text
    assert both.choices[2].text == complete("sea").choices[0].text
    assert both.usage.completion_tokens == 32
    assert both.usage.prompt_tokens == complete("rope").usage.prompt_tokens + complete("sea").usage.prompt_tokens
    assert [c.text for c in complete([ids, ids]).choices] == [text, text]


def test_stream_equals_whole():
    whole = complete("the rope", max_tokens=24, logprobs=3)
    chunks = list(complete("the rope", max_tokens=24, logprobs=3, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.text for k in chunks for c in k.choices) == whole.choices[0].text
    assert [k.usage is None for k in chunks] == [True] * (len(chunks) - 1) + [False] and not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(c.logprobs, name) for k in chunks for c in k.choices if c.logprobs]
        assert sum(parts, []) == getattr(whole.choices[0].logprobs, name), name
    assert len({k.id for k in chunks}) == 1 and len(chunks) > 5
    assert all(k.usage is None for k in complete(stream=True))


def test_stream_of_many():
    chunks = list(complete(["rope", "sea"], n=2, stream=True))
    texts = [""] * 4
    ends = [None] * 4
    for k in chunks:
        for c in k.choices:
            texts[c.index] += c.text
            ends[c.index] = c.finish_reason or ends[c.index]
    assert texts == [c.text for c in complete(["rope", "sea"], n=2).choices] and ends == ["length"] * 4


def test_logprobs_and_echo():
    r = complete("the rope", echo=True, logprobs=2, max_tokens=4).choices[0]
    l = r.logprobs
    assert r.text.startswith("the rope")
    assert l.token_logprobs[0] is None and all(x <= 0 for x in l.token_logprobs[1:])
    assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset)
    assert all(2 <= len(t) <= 3 for t in l.top_logprobs[1:])
    scored = complete("the rope", echo=True, logprobs=2, max_tokens=0)
    assert scored.choices[0].text == "the rope" and scored.usage.completion_tokens == 0
    n = len(scored.choices[0].logprobs.tokens)
    assert scored.choices[0].logprobs.token_logprobs == l.token_logprobs[:n]
    assert complete(logprobs=0).choices[0].logprobs.top_logprobs is not None


def test_seed_repeats_and_n_differs():
    hot = dict(temperature=2, max_tokens=16)
    a = complete(seed=7, n=3, **hot)
    assert [c.text for c in a.choices] == [c.text for c in complete(seed=7, n=3, **hot).choices]
    assert len({c.text for c in a.choices}) == 3
    assert complete(seed=8, **hot).choices[0].text != complete(seed=9, **hot).choices[0].text
    big = 2 ** 40
    assert complete(seed=7, **hot).choices[0].text != complete(seed=7 + big, **hot).choices[0].text


def test_best_of_is_the_best():
    r = complete(best_of=6, n=2, temperature=1.5, seed=3, logprobs=0)
    mean = lambda c: sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs)
    all_ = complete(n=6, temperature=1.5, seed=3, logprobs=0)
    best = sorted((mean(c) for c in all_.choices), reverse=True)[:2]
    assert [round(mean(c), 4) for c in r.choices] == [round(b, 4) for b in best]
    assert r.usage.completion_tokens == 48


def test_stop():
    words = dict(server=default_model(), max_tokens=24)
    text = complete(**words).choices[0].text
    stop = text[3:6]
    r = complete(**words, stop=stop).choices[0]
    assert r.text == text[:text.index(stop)] and r.finish_reason == "stop"
    r = complete(**words, stop=["never ever", stop]).choices[0]
    assert r.text == text[:text.index(stop)] and r.finish_reason == "stop"
    streamed = "".join(c.text for k in complete(**words, stop=[stop], stream=True) for c in k.choices)
    assert streamed == r.text
    kept = complete(**words, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == text[:text.index(stop) + len(stop)]


def test_bias_and_penalties():
    r = complete(logit_bias={"40": 100}, max_tokens=3, extra_body={"return_token_ids": True})
    assert r.choices[0].model_extra["token_ids"] == [40, 40, 40]
    r = complete(logit_bias={"40": 100}, max_tokens=3, frequency_penalty=2, presence_penalty=2,
                 extra_body={"return_token_ids": True})
    assert r.choices[0].model_extra["token_ids"] == [40, 40, 40]  # 100 is more than six times 2
    r = complete(logit_bias={"40": -100}, extra_body={"return_token_ids": True})
    assert 40 not in r.choices[0].model_extra["token_ids"]


def test_additions_by_extra_body():
    r = complete(extra_body={"top_k": 1, "min_tokens": 8, "ignore_eos": True, "min_p": 0.1, "repetition_penalty": 1.1,
                             "typical_p": 0.9, "top_n_sigma": 1, "xtc_probability": 0, "dry_multiplier": 0.8,
                             "skip_special_tokens": False, "stop_token_ids": [], "bad_words": ["zzz"], "priority": -1,
                             "truncate_prompt_tokens": 4, "prompt_logprobs": 1, "request_id": "mine", "max_time": 30,
                             "add_special_tokens": True, "return_token_ids": True, "cache_salt": "s"})
    assert r.usage.completion_tokens == 8 and r.id.endswith("mine")
    extra = r.choices[0].model_extra
    assert len(extra["token_ids"]) == 8 and extra["prompt_token_ids"] and extra["prompt_logprobs"][0] is None


def test_refusals_name_the_field():
    bad = openai.BadRequestError
    for name, value in (("temperature", 3), ("top_p", -1), ("n", 0), ("max_tokens", -1), ("frequency_penalty", 5),
                        ("presence_penalty", "x"), ("logprobs", 1000), ("best_of", 0), ("stop", 5), ("echo", "yes"),
                        ("logit_bias", {"x": 1}), ("logit_bias", {"1": 200}), ("seed", "one"), ("prompt", [10 ** 9]),
                        ("prompt", []), ("stream_options", 5)):
        refused(bad, name, **{name: value})
    refused(bad, "best_of", best_of=2, stream=True)
    refused(bad, "best_of", best_of=1, n=2)
    refused(bad, "suffix", suffix="after")


def test_null_means_not_given():
    r = complete(suffix=None, best_of=None, echo=None, logit_bias=None, logprobs=None, n=None, seed=None, stop=None,
                 stream=None, stream_options=None, top_p=None, user=None, frequency_penalty=None, presence_penalty=None)
    assert len(r.choices) == 1 and r.choices[0].logprobs is None


def test_context_overflow():
    e = refused(openai.BadRequestError, "prompt", prompt=[300] * 200000)
    assert e.code == "context_length_exceeded", e.body


# ---- chat ----

def chat(text="How is a rope made?", server=None, messages=None, **more):
    body = {"model": "tiny", "max_completion_tokens": 16, "temperature": 0, **more,
            "messages": messages or [{"role": "user", "content": text}]}
    return client(server or default_model()).chat.completions.create(**body)


def test_chat_is_what_the_client_declares():
    r = chat()
    assert isinstance(r, openai.types.chat.ChatCompletion) and r.object == "chat.completion"
    m = r.choices[0].message
    assert m.role == "assistant" and m.content and m.refusal is None and m.tool_calls is None
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 16
    assert chat().usage.prompt_tokens_details.cached_tokens > 0
    assert chat(max_completion_tokens=None, max_tokens=3).usage.completion_tokens == 3
    assert chat(max_completion_tokens=4, max_tokens=3).usage.completion_tokens == 4


def test_chat_stream_equals_whole():
    whole = chat(logprobs=True, top_logprobs=2, max_completion_tokens=40)
    chunks = list(chat(logprobs=True, top_logprobs=2, max_completion_tokens=40, stream=True,
                       stream_options={"include_usage": True}))
    first = chunks[0].choices[0].delta
    assert first.role == "assistant" and first.content == ""
    text = "".join(c.delta.content or "" for k in chunks for c in k.choices)
    assert text == whole.choices[0].message.content
    entries = [e for k in chunks for c in k.choices if c.logprobs for e in c.logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert bytes(b for e in entries for b in e.bytes).decode() == text
    assert all(len(e.top_logprobs) == 2 for e in entries)
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert [k.choices[0].finish_reason for k in chunks if k.choices][-1] == whole.choices[0].finish_reason


def test_chat_stream_helper():
    """The client's own accumulator, which is strict about the order of events."""
    with client(default_model()).chat.completions.stream(
            model="tiny", messages=[{"role": "user", "content": "Name a knot."}], temperature=0, stop=["a"], n=2) as s:
        kinds = [event.type for event in s]
        final = s.get_final_completion()
    assert "content.delta" in kinds and len(final.choices) == 2
    assert final.choices[0].message.content == final.choices[1].message.content
    assert final.choices[0].message.content == chat("Name a knot.", stop=["a"]).choices[0].message.content


def test_chat_roles_and_parts():
    ask = lambda *messages: chat(messages=list(messages)).choices[0].message.content
    user = {"role": "user", "content": "What are you?"}
    assert ask({"role": "developer", "content": "You are a knot."}, user) == \
        ask({"role": "system", "content": "You are a knot."}, user)
    assert ask({"role": "user", "content": [{"type": "text", "text": "What are you?"}]}) == ask(user)
    turn = [user, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": "{\"at\": \"noon\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "high"}]
    assert isinstance(ask(*turn), str)
    parts = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}
    for messages in ([parts], [{"role": "captain", "content": "x"}], [{"role": "user", "content": 5}]):
        try:
            chat(messages=messages)
            raise AssertionError(messages)
        except openai.BadRequestError as e:
            assert e.param.startswith("messages"), e.param


def test_chat_options():
    r = chat(n=2, seed=5, temperature=1.2, top_p=0.9, stop=["\n\n"], presence_penalty=0.5, frequency_penalty=0.5,
             logit_bias={"5": -100}, user="me", metadata={"a": "b"}, store=False, service_tier="auto",
             parallel_tool_calls=False, response_format={"type": "text"}, tool_choice="none", tools=[],
             prompt_cache_key="k", safety_identifier="s")
    assert [c.index for c in r.choices] == [0, 1]
    assert r.choices[0].message.content != r.choices[1].message.content
    again = chat(n=2, seed=5, temperature=1.2, top_p=0.9, stop=["\n\n"], presence_penalty=0.5, frequency_penalty=0.5,
                 logit_bias={"5": -100})
    assert [c.message.content for c in r.choices] == [c.message.content for c in again.choices]
    for name, value in (("top_logprobs", 3), ("audio", {"voice": "x", "format": "wav"})):
        try:
            chat(**{name: value})
            raise AssertionError(name)
        except openai.BadRequestError as e:
            assert e.param == name, e.body


def test_chat_goes_on_with_the_last_message():
    r = chat(messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
             extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert r.choices[0].message.content


# ---- models and names ----

def test_models():
    c = client()
    assert [m.id for m in c.models.list()] == ["tiny", "also"]
    one = c.models.retrieve("also")
    assert one.id == "also" and one.object == "model" and one.owned_by
    for ask in (lambda: c.models.retrieve("gpt-4"), lambda: complete(model="gpt-4")):
        try:
            ask()
            raise AssertionError("found")
        except openai.NotFoundError as e:
            assert "tiny" in e.message and e.code == "model_not_found", e.body
    assert complete(model="also").model == "also"


def test_any_name():
    with Program(tiny(), "--served-model-name", "a,*") as s:
        r = client(s).completions.create(model="gpt-4/whatever", prompt="x", max_tokens=1)
        assert r.model == "gpt-4/whatever"


def test_keys():
    with Program(tiny(), "--api-key", "k1,k2") as s:
        for key, good in (("k1", True), ("k2", True), ("k3", False)):
            try:
                client(s, api_key=key).models.list()
                assert good
            except openai.AuthenticationError as e:
                assert not good and e.type == "authentication_error"


# ---- errors, and what the client does about them ----

class Counting:
    """The server behind a counter of requests."""

    def __init__(self, server):
        outer = self
        self.statuses = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                r = server.request("POST", self.path, body, {"Content-Type": "application/json"}, timeout=60)
                self.send_response(r.status)
                for name in ("content-type", "retry-after", "x-request-id"):
                    if name in r.headers:
                        self.send_header(name, r.headers[name])
                self.send_header("Content-Length", str(len(r.body)))
                self.end_headers()
                self.wfile.write(r.body)
                outer.statuses.append(r.status)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def after(self, status, act):
        """Calls act when the next answer of that status has been given."""
        seen = self.statuses.count(status)

        def run():
            wait_until(lambda: self.statuses.count(status) > seen)
            act()
        threading.Thread(target=run, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def test_mistakes_are_not_tried_again():
    counter = Counting(served())
    try:
        for wrong in ({"temperature": 9}, {"prompt": [300] * 200000}, {"model": "none"}):
            before = len(counter.statuses)
            try:
                client(counter, max_retries=3).completions.create(**{"model": "tiny", "prompt": "x", **wrong})
                raise AssertionError(wrong)
            except openai.APIStatusError as e:
                assert e.status_code in (400, 404)
            wait_until(lambda: len(counter.statuses) > before)
            assert len(counter.statuses) == before + 1, wrong
    finally:
        counter.close()


def test_a_full_queue_is_tried_again():
    with slow("--parallel", "1", "--max-queue", "1") as s:
        counter = Counting(s)
        open_ = [lib.open_stream(s, "sea", max_tokens=1500, ignore_eos=True, events=1)]
        open_.append(lib.open_stream(s, "rope", max_tokens=1500, ignore_eos=True, events=0))
        wait_until(lambda: s.metric("vllm:num_requests_waiting") == 1)
        try:
            client(counter).completions.create(model="tiny", prompt="x", max_tokens=1)
            raise AssertionError("no refusal")
        except openai.RateLimitError as e:
            seconds = int(e.response.headers["retry-after"])
            assert seconds >= 1 and e.type == "rate_limit_error", e.body
        counter.after(429, lambda: [c.close() for c in open_])
        r = client(counter, max_retries=5).completions.create(model="tiny", prompt="x", max_tokens=1)
        assert r.choices and counter.statuses.count(429) >= 2
        counter.close()


def test_draining_is_503_and_tried_again():
    with slow("--drain-seconds", "20") as s:
        held = lib.open_stream(s, "sea", max_tokens=1500, ignore_eos=True)
        counter = Counting(s)
        s.signal(15)
        wait_until(lambda: s.request("GET", "/readyz").status == 503)
        try:
            client(counter, max_retries=1).completions.create(model="tiny", prompt="x", max_tokens=1)
            raise AssertionError("no refusal")
        except openai.InternalServerError as e:
            assert e.status_code == 503
        wait_until(lambda: counter.statuses == [503, 503])
        counter.close()
        held.close()
        assert s.wait(20) == 0


def test_cut_streams_raise():
    with slow("--drain-seconds", "0.2") as s:
        stream = client(s).completions.create(model="tiny", prompt="sea", max_tokens=1800, stream=True,
                                              extra_body={"ignore_eos": True})
        next(iter(stream))
        s.signal(15)
        try:
            for _ in stream:
                pass
            raise AssertionError("it looked like success")
        except openai.APIError as e:
            assert "shut" in e.message, e.message
        assert s.wait(20) == 0


def test_leaving_frees_the_work():
    server = default_model()
    stream = client(server).completions.create(model="tiny", prompt="sea", max_tokens=1800, stream=True,
                                         extra_body={"ignore_eos": True})
    next(iter(stream))
    assert server.metric("vllm:num_requests_running") == 1
    stream.close()
    wait_until(server.idle)
    try:
        client(server, timeout=0.3).completions.create(model="tiny", prompt="sea", max_tokens=1900, n=16,
                                                extra_body={"ignore_eos": True})
        raise AssertionError("it was that fast")
    except openai.APITimeoutError:
        pass
    wait_until(server.idle)


def test_async_in_parallel():
    server = served()

    async def run():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as c:
            async def one(i):
                text = ""
                async for k in await c.completions.create(model="tiny", prompt=f"rope {i}", max_tokens=12, temperature=0,
                                                          stream=True):
                    text += "".join(choice.text for choice in k.choices)
                return text
            return await asyncio.gather(*(one(i) for i in range(32)))

    together = asyncio.run(run())
    assert together[5] == complete("rope 5", max_tokens=12).choices[0].text


def test_raw_response():
    raw = client().with_raw_response.completions.create(model="tiny", prompt="x", max_tokens=1)
    assert raw.headers["content-type"] == "application/json" and raw.parse().choices


try:
    main(globals())
finally:
    for server in _servers.values():
        server.process.kill()
