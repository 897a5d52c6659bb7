"""Golden logits over HTTP: prompts of token ids with every log-probability, then the greedy answer."""

import json
import math
import os
import struct

from lib import main
from program import GOLDEN, Program, tiny

CASES = sorted(n for n in os.listdir(GOLDEN) if not n.startswith("quant-")) if GOLDEN else []


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    found = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            letter = {"F32": "f", "I64": "q"}[t["dtype"]]
            raw = data[8 + n + begin:8 + n + end]
            found[name] = (t["shape"], struct.unpack(f"<{len(raw) // struct.calcsize(letter)}{letter}", raw))
    return found


def log_softmax(row):
    top = max(row)
    norm = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - norm for x in row]


def by_id(entry):
    return {int(k.removeprefix("token_id:")): v for k, v in entry.items()}


def compare(case, server):
    golden = tensors(os.path.join(GOLDEN, case, "golden.safetensors"))
    with open(os.path.join(GOLDEN, case, "case.json")) as f:
        tolerance = 2 * json.load(f)["tolerance"]["max_abs"]
    shape, ids = golden["input_ids"]
    vocabulary, logits = golden["logits"][0][-1], golden["logits"][1]
    greedy = list(golden["greedy_ids"][1])
    prompts = [list(ids[i * shape[1]:(i + 1) * shape[1]]) for i in range(shape[0])]
    answer = server.complete(prompts, echo=True, logprobs=-1, max_tokens=len(greedy), temperature=0, ignore_eos=True,
                             return_tokens_as_token_ids=True)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts)), answer["usage"]
    for i, prompt in enumerate(prompts):
        choice = answer["choices"][i]
        assert choice["index"] == i
        scored = choice["logprobs"]
        tokens = [int(t.removeprefix("token_id:")) for t in scored["tokens"]]
        assert tokens[:len(prompt)] == prompt
        assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
        for p in range(1, len(prompt) + 1):
            at = (i * shape[1] + p - 1) * vocabulary
            expected = log_softmax(logits[at:at + vocabulary])
            mine = by_id(scored["top_logprobs"][p])
            assert len(mine) == vocabulary, len(mine)
            worst = max(abs(mine[t] - expected[t]) for t in range(vocabulary))
            assert worst <= tolerance, (case, i, p, worst, tolerance)
            assert abs(scored["token_logprobs"][p] - mine[tokens[p]]) < 1e-6
        if i == 0:
            assert tokens[len(prompt):] == greedy, (case, tokens[len(prompt):], greedy)


def make(case):
    def test():
        more = ("--window", "12") if case == "mistral-window" else ()
        with Program(tiny(case), "--kv", "f32", "--max-logprobs", "-1", *more) as server:
            compare(case, server)
    return test


if __name__ == "__main__":
    main({"test_" + case: make(case) for case in CASES})
