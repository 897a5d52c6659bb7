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
        self.lines = []
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

    def complete(self, prompt, **more):
        r = self.post("/v1/completions", lib.completion(prompt, **more), timeout=60)
        assert r.status == 200, r.body
        return r.json()

    def idle(self):
        """No sequence runs or waits."""
        return self.metric("vllm:num_requests_running") == 0 and self.metric("vllm:num_requests_waiting") == 0


def tiny(name="llama-gqa"):
    return os.path.join(GOLDEN, name, "model.gguf")
