"""The memory budget holds whatever clients do: the plan's total is what the process takes once the
pool is full, and under hostile load it stays below; what is refused is refused with a reason.

    real_memory.py PROGRAM                 starts servers of its own on a tiny model (the test)
    real_memory.py PROGRAM hostile:PORT:SECONDS[:PID]
                                           attacks a server that runs, in a container for example
"""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

import lib
from lib import SLOW, completion, main, sanitized, wait_until
from program import MODEL, Program, tiny

MIB = 1 << 20
SHORT = bool(os.environ.get("ROPEWALK_TEST_SHORT"))
REASONS = {400, 404, 408, 413, 429, 431, 503}


def plan(model, *settings):
    out = subprocess.run([lib.PROGRAM, "plan", model, "--threads", "2", "--json", *settings],
                         capture_output=True, check=True)
    return json.loads(out.stdout)


def status(pid, field):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


class Attack:
    """Clients of every bad kind at once; counts answers and checks that refusals have a reason."""

    def __init__(self, server, seconds):
        self.server, self.end = server, time.monotonic() + seconds
        self.counts, self.wrong, self.lock = {}, [], threading.Lock()
        self.threads, self.open = [], set()

    def note(self, kind, answer):
        with self.lock:
            counts = self.counts.setdefault(kind, {})
            counts[answer] = counts.get(answer, 0) + 1

    def over(self):
        return time.monotonic() > self.end

    def judge(self, kind, r):
        streamed = r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
        try:
            last = r.events()[-1] if streamed else "[DONE]" if r.status == 200 else r.json()
            reason = last if last == "[DONE]" else last["error"]["message"]
        except (ValueError, KeyError, AssertionError, TypeError, IndexError):
            reason = ""
        self.note(kind, r.status if reason == "[DONE]" or not streamed else "cut")
        if r.status not in REASONS | {200} or not reason:
            self.wrong.append((kind, r.status, r.body[-300:]))

    def ask(self, kind, body, timeout=20, path="/v1/completions"):
        try:
            with self.server.connect(timeout) as c:
                self.open.add(c)
                try:
                    c.request("POST", path, body)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # refused before all was sent: the reason can still be read
                self.judge(kind, c.response())
        except (OSError, EOFError) as e:
            self.note(kind, "left" if self.over() else type(e).__name__)
        finally:
            self.open = {o for o in self.open if o.sock.fileno() >= 0}

    # ---- the kinds ----

    def sockets(self, rng):
        """Many connections that say nothing, or half a request."""
        held = []
        while not self.over():
            try:
                c = self.server.connect(2)
                if rng.random() < 0.5:
                    c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + "x" * 9000)
                held.append(c)
                self.note("socket", "open")
            except OSError as e:
                self.note("socket", type(e).__name__)
                time.sleep(0.02)
            if len(held) > 400:
                for c in held[:200]:
                    c.close()
                held = held[200:]
            time.sleep(0.002)

    def bodies(self, rng):
        """Bodies as long as they may be: text, many small values, token ids, nonsense."""
        size = 1400 * 1000
        forms = [
            lambda: json.dumps(completion("word " * (size // 5))),
            lambda: json.dumps(completion([rng.randrange(300) for _ in range(size // 8)])),
            lambda: '{"prompt": "x", "metadata": {' + ",".join(f'"k{i}": [1]' for i in range(size // 14)) + "}}",
            lambda: json.dumps({"messages": [{"role": "assistant", "content": None, "tool_calls": [
                {"function": {"name": "f", "arguments": '{"a": [' + "0," * (size // 2000) + "0]}"}}] * 500}]}),
            lambda: '{"prompt": [' + ",".join('"a"' for _ in range(2000)) + "]}",
            lambda: "[" * 100000,
            lambda: "x" * (12 << 20),
        ]
        while not self.over():
            body = rng.choice(forms)()
            path = "/v1/chat/completions" if body.startswith('{"messages"') else "/v1/completions"
            self.ask("body", body, path=path)

    def choices(self, rng):
        """n = 128 with many log-probabilities; whole and streamed."""
        while not self.over():
            body = completion("a b c", n=128, max_tokens=rng.choice([16, 100, 400]), logprobs=20, ignore_eos=True,
                              temperature=1, stream=rng.random() < 0.5, seed=rng.randrange(1 << 30))
            self.ask("n=128", body, timeout=15)

    def slow(self, rng):
        """Streams that are not read, then dropped."""
        while not self.over():
            held = []
            for _ in range(10):
                try:
                    c = self.server.connect(2)
                    c.request("POST", "/v1/completions", completion("slow", stream=True, max_tokens=100000 if MODEL else 100,
                                                                    ignore_eos=True, logprobs=20))
                    held.append(c)
                    self.note("slow", "open")
                except OSError as e:
                    self.note("slow", type(e).__name__)
            time.sleep(rng.random() * 3)
            for c in held:
                c.reset()

    def prompts(self, rng):
        """Long prompts, all different, short answers."""
        while not self.over():
            n = rng.choice([100, 1000, 3000, 20000])
            self.ask("prompt", completion([rng.randrange(3, 300) for _ in range(n)], max_tokens=4), timeout=30)

    def run(self):
        kinds = [self.sockets, self.bodies, self.bodies, self.bodies, self.choices, self.choices, self.slow,
                 self.slow, self.prompts, self.prompts]
        for i, kind in enumerate(kinds):
            t = threading.Thread(target=kind, args=(random.Random(i),), daemon=True)
            t.start()
            self.threads.append(t)
        time.sleep(max(0, self.end - time.monotonic()))
        for c in list(self.open):  # the attackers leave
            try:
                c.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for t in self.threads:
            t.join(60 * SLOW)
        for kind, counts in sorted(self.counts.items()):
            print(f"  {kind:8}", ", ".join(f"{k}: {n}" for k, n in sorted(counts.items(), key=str)))
        assert not self.wrong, self.wrong[:5]


def recovers(server):
    """An honest request is answered again within some seconds."""
    end = time.monotonic() + 90 * SLOW
    while True:
        try:
            r = server.post("/v1/completions", completion("hello", max_tokens=3), timeout=60)
            if r.status == 200:
                return
        except (OSError, EOFError, TimeoutError):
            r = None
        assert time.monotonic() < end, r and (r.status, r.body[:300])
        time.sleep(0.5)


def fill(server, tokens, length, vocabulary):
    rng = random.Random(1)
    for _ in range(0, tokens, length):
        r = server.post("/v1/completions", completion([rng.randrange(3, vocabulary) for _ in range(length)], max_tokens=1),
                        timeout=120)
        assert r.status == 200, r.body


# ---- tests ----

def test_a_full_pool_takes_what_the_plan_says():
    with_budget = ("--memory", "64m", "--kv", "f32")
    p = plan(tiny(), *with_budget)
    with Program(tiny(), *with_budget) as server:
        fill(server, p["memory"]["keys_and_values"] // p["kv_bytes_per_token"], 120, p["vocabulary"])
        rss, total = server.memory(), p["memory"]["budget"]
        print(f"  RSS {rss / MIB:.1f} MiB of {total / MIB:.1f} MiB")
        assert sanitized() or total - 16 * MIB <= rss <= total, (rss, total)


def watch_window(server, prompt):
    """The lengths of a prompt while it is computed, and the blocks that it holds then."""
    seen, answers = [], []
    asking = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", completion(prompt, max_tokens=1),
                                                                        timeout=300 * SLOW)))
    asking.start()
    while asking.is_alive():
        for s in server.request("GET", "/debug/kv").json()["running"]:
            seen.append((s["length"], s["blocks"]["window"]))
        asking.join(0.02)
    assert answers[0].status == 200, answers[0].body
    return seen


def test_a_long_prompt_holds_a_window_and_the_full_pool_what_the_plan_says():
    window, length = 4096, 6000 if SHORT or sanitized() else 40000
    settings = ("--window", str(window), "--ctx", "131072", "--memory", "96m", "--kv", "f32")
    p = plan(tiny("mistral-window"), *settings)
    rng = random.Random(1)
    with Program(tiny("mistral-window"), *settings) as server:
        seen = watch_window(server, [rng.randrange(3, 300) for _ in range(length)])
        beyond = [blocks for at, blocks in seen if at > window + 512]
        print(f"  {len(seen)} looks, up to {max(seen)[0]} tokens: at most {max(beyond)} blocks")
        assert window // 32 <= max(beyond) <= (window + 512) // 32 + 1, seen  # and a step's tokens
        if not SHORT:
            fill(server, p["memory"]["keys_and_values"] // p["kv_bytes_per_token"], 8000, p["vocabulary"])
            rss, total = server.memory(), p["memory"]["budget"]
            print(f"  RSS {rss / MIB:.1f} MiB of {total / MIB:.1f} MiB")
            assert sanitized() or total * 0.97 - 16 * MIB <= rss <= total, (rss, total)


def test_plan_and_log_show_the_same_lines():
    settings = ("--memory", "200m")
    out = subprocess.run([lib.PROGRAM, "plan", tiny(), "--threads", "2", *settings], capture_output=True, text=True,
                         check=True).stdout
    lines = out.split("\nMemory")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == 8, out
    with Program(tiny(), *settings) as server:
        log = "".join(server.lines)
        for line in lines:
            assert " ".join(line.split()) in " ".join(log.split()), (line, log)


def test_small_budgets_take_fewer_connections():
    small, large = (plan(tiny(), "--memory", m)["memory"] for m in ("100m", "8g"))
    assert small["connections"] < large["connections"], (small, large)
    assert small["body"] < large["body"] == 4 * MIB, (small, large)
    asked = plan(tiny(), "--memory", "1g", "--max-connections", "2000")["memory"]
    assert asked["connections"] == 2000 and asked["sockets"] > small["sockets"]


def test_hostile_clients_stay_within_the_budget():
    seconds = 6 if SHORT else 15
    p = plan(tiny(), "--memory", "64m")
    with Program(tiny(), "--memory", "64m") as server:
        Attack(server, seconds).run()
        peak = status(server.process.pid, "VmHWM")
        print(f"  peak {peak / MIB:.1f} MiB of {p['memory']['budget'] / MIB:.1f} MiB")
        recovers(server)
        server.alive()
        wait_until(server.idle, 20)
        assert sanitized() or peak <= p["memory"]["budget"], (peak, p)


class Running(lib.Server):
    def __init__(self, port, pid):
        self.address, self.port, self.pid = f"127.0.0.1:{port}", port, pid


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2].startswith("hostile:"):
        words = sys.argv[2].split(":")
        running = Running(int(words[1]), int(words[3]) if len(words) > 3 else 0)
        Attack(running, float(words[2])).run()
        recovers(running)
        if running.pid:
            print(f"  peak {status(running.pid, 'VmHWM') / MIB:.1f} MiB, now {status(running.pid, 'VmRSS') / MIB:.1f} MiB")
    else:
        main(globals())
