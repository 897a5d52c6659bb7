"""The real program in tests: `ropewalk serve` on a model file."""

import os
import re
import subprocess
import threading
import time

import lib
from lib import SLOW

GOLDEN = os.environ.get("GOLDEN_DIR", "")
MODEL = os.environ.get("ROPEWALK_TEST_MODEL", "")


class Program(lib.Server):
    def __init__(self, model, *settings, env=None):
        self.lines, self.blocks, self.headers = [], None, {}
        if "--api-key" in settings:
            self.headers["Authorization"] = "Bearer " + settings[settings.index("--api-key") + 1].split(",")[0]
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [lib.PROGRAM, "serve", model, "--port", "0", "--threads", "2", "--memory", "600m", *settings],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            env=dict(os.environ, **(env or {})))
        threading.Thread(target=self._read, daemon=True).start()
        self.address = self._wait_address()
        self.port = int(self.address.rsplit(":", 1)[1])

    def _wait_address(self):
        end = time.monotonic() + 30 * SLOW
        while time.monotonic() < end:
            with self.changed:
                for line in self.lines:
                    if m := re.search(r" on (127\.0\.0\.1:\d+)$", line.rstrip()):
                        return m[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError("no server: " + "".join(self.lines))

    def stop(self):
        if self.process.poll() is None:
            lib.wait_until(self.idle, 30)
            self.adds_up()
        super().stop()

    def adds_up(self):
        """What the cache holds by state, as /debug/kv and, when nothing runs, /metrics tell it; and that
        nothing is held then."""
        r = self.request("GET", "/debug/kv", headers=self.headers)
        assert r.status == 200, r.body
        d = r.json()
        assert d["bytes_free"] + d["bytes_used"] + d["bytes_cached"] == d["bytes_total"], d
        used = sum(g["block_bytes"] * (g["held"] + g["shared"]) for g in d["groups"])
        kept = sum(g["block_bytes"] * g["cached"] for g in d["groups"])
        assert used <= d["bytes_used"] and kept <= d["bytes_cached"], d  # blocks are rounded up
        if d["running"]:
            return d
        assert d["bytes_used"] == 0 and self.metric("vllm:kv_cache_usage_perc") == 0, d
        for g in d["groups"]:
            for state in ("free", "held", "shared", "cached"):
                told = self.metric("ropewalk:kv_blocks", group=g["name"], state=state)
                assert told == g[state], (g, state, told)
            if len(d["groups"]) == 1:
                blocks = g["free"] + g["held"] + g["shared"] + g["cached"]
                assert self.blocks in (None, blocks), (self.blocks, d)
                self.blocks = blocks
        return d

    def complete(self, prompt, **more):
        r = self.post("/v1/completions", lib.completion(prompt, **more), timeout=60)
        assert r.status == 200, r.body
        return r.json()

    def idle(self):
        """No sequence runs or waits."""
        return self.metric("vllm:num_requests_running") == 0 and self.metric("vllm:num_requests_waiting") == 0


def tiny(name="llama-gqa"):
    return os.path.join(GOLDEN, name, "model.gguf")
