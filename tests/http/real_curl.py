"""curl against the program: what people type, and what curl does by itself (100-continue, chunks, kept connections)."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from lib import main
from program import Program, tiny

if not shutil.which("curl"):
    print("skipped: no curl")
    sys.exit(77)

_server = None


def url(path="/v1/completions"):
    global _server
    _server = _server or Program(tiny())
    return f"http://127.0.0.1:{_server.port}{path}"


def curl(*arguments, stdin=None):
    """Standard output, and what -w prints after it."""
    r = subprocess.run(["curl", "-sS", "--max-time", "30", "-w", "\n%{http_code} %{num_connects}", *arguments],
                       input=stdin, capture_output=True, text=True)
    assert r.returncode == 0, (r.returncode, r.stderr)
    body, _, last = r.stdout.rpartition("\n")
    return body, last.split()[0], r.stderr


BODY = json.dumps({"prompt": "sea", "max_tokens": 4, "temperature": 0})


def test_as_people_type_it():
    body, status, _ = curl(url(), "-d", BODY)  # curl calls this a form
    assert status == "200" and json.loads(body)["usage"]["completion_tokens"] == 4
    text = json.loads(body)["choices"][0]["text"]
    body, status, _ = curl("--json", BODY, url())
    assert status == "200" and json.loads(body)["choices"][0]["text"] == text
    body, status, _ = curl("-N", url(), "-d", BODY.replace("{", '{"stream": true, ', 1))
    assert status == "200" and body.rstrip().endswith("data: [DONE]")


def test_old_and_new_protocols():
    for version in ("--http1.0", "--http1.1", "--http2"):  # an upgrade that is not taken up
        body, status, _ = curl(version, url(), "-d", BODY)
        assert status == "200" and json.loads(body)["choices"], version
        body, status, _ = curl(version, "-N", url(), "-d", BODY.replace("{", '{"stream": true, ', 1))
        assert status == "200" and body.rstrip().endswith("data: [DONE]"), version


def test_long_and_chunked_bodies():
    long = json.dumps({"prompt": "sea", "max_tokens": 1, "user": "x" * (1 << 19)})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(long)
        f.flush()
        body, status, log = curl("-v", url(), "-H", "Expect: 100-continue", "-d", "@" + f.name)
        assert status == "200" and "100 Continue" in log, log[-800:]
        body, status, log = curl("-v", url(), "-H", "Transfer-Encoding: chunked", "-d", "@" + f.name)
        assert status == "200", body
    body, status, _ = curl("-X", "POST", "-T", "-", url(), stdin=BODY)
    assert status == "200" and json.loads(body)["choices"]


def test_connections_are_kept():
    out, *_ = curl(url("/health"), url("/v1/models"), url("/health"))
    assert out.count('"status":"ok"') == 2
    r = subprocess.run(["curl", "-sS", "-o", os.devnull, "-w", "%{num_connects}\n", url("/health"), "--next", "-sS", "-o",
                        os.devnull, "-w", "%{num_connects}\n", url(), "-d", BODY, "--next", "-sS", "-o", os.devnull, "-w",
                        "%{num_connects}\n", url("/health")], capture_output=True, text=True, check=True)
    assert r.stdout.split() == ["1", "0", "0"], r.stdout


def test_heads_and_other_methods():
    head = subprocess.run(["curl", "-sSI", url("/")], capture_output=True, text=True, check=True).stdout
    assert "200" in head.splitlines()[0] and "text/html" in head
    for method, path, status in (("PUT", "/v1/completions", "405"), ("GET", "/v1/completions", "405"),
                                 ("DELETE", "/nothing", "404"), ("OPTIONS", "/v1/completions", "204")):
        assert curl("-X", method, url(path))[1] == status, (method, path)


try:
    main(globals())
finally:
    if _server:
        _server.process.kill()
