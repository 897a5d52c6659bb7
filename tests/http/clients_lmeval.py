"""lm-eval's local-completions model against the program: its log-likelihoods are those of the golden logits, and tasks of
local data run. The tokenizer is the one of a conformance case (ROPEWALK_CONFORMANCE names their folder)."""

import json
import logging
import math
import os
import sys
import tarfile
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

try:
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager
    import transformers  # noqa: F401 (the tokenizer)
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

from lib import main
from program import GOLDEN, Program, tiny
from real_golden import log_softmax, tensors

CASE, BOS, EOS = "llama-gqa", 312, 313
HERE = os.path.dirname(os.path.abspath(__file__))
CONFORMANCE = os.environ.get("ROPEWALK_CONFORMANCE") or os.path.join(HERE, "../../../shared/conformance")
archive = os.path.join(CONFORMANCE, "cases", CASE, "data.tar.xz")
if not os.path.exists(archive) or not GOLDEN:
    print("skipped: no conformance data")
    sys.exit(77)

logging.disable(logging.WARNING)
folder = tempfile.TemporaryDirectory()
with tarfile.open(archive) as tar:
    tar.extractall(folder.name, [m for m in tar.getmembers() if "hf/" in m.name and m.name.endswith(".json")],
                   filter="data")
TOKENIZER = next(root for root, _, files in os.walk(folder.name) if "tokenizer.json" in files)


def arguments(server, **more):
    return dict(base_url=f"http://127.0.0.1:{server.port}/v1/completions", model="tiny", tokenizer=TOKENIZER,
                tokenizer_backend="huggingface", max_length=250, **more)


# ---- against the golden logits ----

def expected(golden, row, context):
    """Log-likelihood of the rest of a row after `context` tokens, whether it is greedy, and how many tokens it has."""
    (_, length), ids = golden["input_ids"]
    shape, logits = golden["logits"]
    total, greedy = 0.0, True
    for p in range(context, length):
        at = (row * length + p - 1) * shape[-1]
        scores = log_softmax(logits[at:at + shape[-1]])
        token = ids[row * length + p]
        total += scores[token]
        greedy &= scores[token] == max(scores)
    return total, greedy, length - context


def golden_requests(golden):
    (rows, length), ids = golden["input_ids"]
    requests, wanted = [], []
    for row in range(rows):
        line = list(ids[row * length:(row + 1) * length])
        for context in (1, length // 3, length - 1):
            requests.append((("", ""), line[:context], line[context:]))
            wanted.append(expected(golden, row, context))
    return requests, wanted


def compare(server, **more):
    with open(os.path.join(GOLDEN, CASE, "case.json")) as f:
        tolerance = 2 * json.load(f)["tolerance"]["max_abs"]
    requests, wanted = golden_requests(tensors(os.path.join(GOLDEN, CASE, "golden.safetensors")))
    for (mine, greedy), (theirs, is_greedy, n) in zip(LocalCompletionsAPI(**arguments(server, **more))
                                                      ._loglikelihood_tokens(requests), wanted, strict=True):
        assert abs(mine - theirs) <= tolerance * n + 1e-4, (mine, theirs, n)
        assert greedy == is_greedy


def test_loglikelihoods_are_the_golden_ones():
    with Program(tiny(CASE), "--kv", "f32") as server:
        compare(server)
        compare(server, batch_size=4)
        compare(server, batch_size=2, num_concurrent=3)


def test_an_end_is_a_token_like_others():
    """lm-eval drops the last token of an echo: the one that was generated must be there, even if it is the end."""
    with Program(tiny(CASE)) as server:
        for bias in ({}, {str(EOS): 100}):
            choice = server.complete([[40, 41, 42]], max_tokens=1, temperature=0, logprobs=1, echo=True,
                                     logit_bias=bias)["choices"][0]
            assert len(choice["logprobs"]["token_logprobs"]) == 4, choice


# ---- tasks ----

CHOICES = [{"question": "The rope is made of", "choices": [" hemp", " glass", " water and salt"], "answer": 0},
           {"question": "A knot that holds is a", "choices": [" bowline", " cloud", " barometer"], "answer": 0},
           {"question": "In the rising tide the pier", "choices": [" stands", " sings", " walks"], "answer": 0}]
TEXTS = [{"text": "The sea was calm, and the lamps along the pier were lit one after another."},
         {"text": "Strands of yarn, twisted against each other: that is all a rope is."}]

TASKS = {
    "ropes_choice": {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
                     "doc_to_target": "{{answer}}", "target_delimiter": "",
                     "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]},
    "ropes_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                      "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte",
                                       "higher_is_better": False}]},
    "ropes_until": {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[0]}}",
                    "generation_kwargs": {"until": ["\n\n", "."], "max_gen_toks": 12, "do_sample": False},
                    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]},
}


def write_tasks(where):
    for name, task in TASKS.items():
        data = os.path.join(where, name + ".jsonl")
        with open(data, "w") as f:
            for line in TEXTS if name == "ropes_rolling" else CHOICES:
                f.write(json.dumps(line) + "\n")
        with open(os.path.join(where, name + ".yaml"), "w") as f:  # JSON is YAML
            json.dump({"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data}},
                       "test_split": "test", **task}, f)


def ids_of(server, text):
    return server.post("/tokenize", {"content": text}).json()["tokens"]


def score_ids(server, context, rest):
    scored = server.complete([context + rest], echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    return sum(scored["token_logprobs"][len(context):])


def score(server, context, answer):
    """The same by hand, with the server's own tokenizer."""
    before = ids_of(server, context)
    return score_ids(server, before, ids_of(server, context + answer)[len(before):])


def test_tasks_of_local_data():
    with tempfile.TemporaryDirectory() as where, Program(tiny(CASE)) as server:
        write_tasks(where)
        result = lm_eval.simple_evaluate(model="local-completions", model_args=arguments(server, num_concurrent=2),
                                         tasks=list(TASKS), task_manager=TaskManager(include_path=where),
                                         log_samples=True, bootstrap_iters=0, cache_requests=False)
        for sample in result["samples"]["ropes_choice"]:
            doc = sample["doc"]
            for choice, ((mine, _greedy),) in zip(doc["choices"], sample["resps"], strict=True):
                theirs = score(server, doc["question"], choice)
                assert abs(mine - theirs) < 1e-3, (choice, mine, theirs)
        bits = next(v for k, v in result["results"]["ropes_rolling"].items() if k.startswith("bits_per_byte,"))
        total = sum(score_ids(server, [BOS], ids_of(server, t["text"])) for t in TEXTS)
        size = sum(len(t["text"].encode()) for t in TEXTS)
        assert abs(bits + total / size / math.log(2)) < 1e-3, bits
        for sample in result["samples"]["ropes_until"]:
            alone = server.complete(sample["doc"]["question"], max_tokens=12, temperature=0, stop=["\n\n", "."],
                                    add_special_tokens=False)["choices"][0]["text"]
            assert sample["resps"][0][0] == alone, (sample["resps"], alone)
        print({name: {k: round(v, 4) for k, v in r.items() if isinstance(v, float)}
               for name, r in result["results"].items()})


main(globals())
