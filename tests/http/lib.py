"""What the scripts share: a server process with the fake engine, raw connections, a runner."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

# Sanitizers and a busy machine are slow; what is measured is multiplied, never the server's own times.
SLOW = float(os.environ.get("TEST_SLOW", "1"))
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else None
ONLY = sys.argv[2:]


def sanitized():
    """Sanitizers have a heap of their own and several times the memory and of the time."""
    with open(PROGRAM, "rb") as f:
        text = f.read()
    return b"__asan_init" in text or b"__tsan_init" in text


class Server:
    def __init__(self, *settings, wrap=(), env=None):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [*wrap, PROGRAM, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", env=dict(os.environ, **(env or {})))
        first = self.process.stdout.readline().split()
        threading.Thread(target=self._read, daemon=True).start()
        if not first or first[0] != "ready":
            time.sleep(0.2)
            raise RuntimeError("no server: " + "".join(self.lines))
        self.address = first[1]
        self.port = int(first[1].rsplit(":", 1)[1]) if ":" in first[1] else 0

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def notes(self, what):
        """[(job, seconds)] of the fake engine's notes of one kind."""
        found = []
        with self.changed:
            for line in self.lines:
                m = re.match(r"fake: %s (\d+) (\d+)" % what, line)
                if m:
                    found.append((int(m[1]), int(m[2]) / 1e9))
        return found

    def wait_note(self, what, count=1, seconds=5):
        end = time.monotonic() + seconds * SLOW
        while True:
            found = self.notes(what)
            if len(found) >= count:
                return found
            with self.changed:
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{len(found)} of {count} '{what}' notes in {seconds} s")
                self.changed.wait(min(left, 0.2))

    def clear(self):
        with self.changed:
            self.lines = [l for l in self.lines if "fake:" not in l]

    def connect(self, timeout=10):
        return Conn(self, timeout)

    def request(self, method, path, body=None, headers=None, timeout=10):
        with self.connect(timeout) as c:
            c.request(method, path, body, headers)
            return c.response(head=method == "HEAD")

    def post(self, path, body, headers=None, timeout=10):
        return self.request("POST", path, body, headers, timeout)

    def alive(self):
        if self.process.poll() is not None:
            time.sleep(0.2)
            raise AssertionError(f"the server has ended ({self.process.returncode}):\n"
                                 + "".join(self.lines[-40:]))
        r = self.request("GET", "/health", timeout=10 * SLOW)
        assert r.status == 200, r.status

    headers = {}  # that get in

    def metric(self, name, **labels):
        """The sum over all samples of that name that have these labels."""
        text = self.request("GET", "/metrics", headers=self.headers).body.decode()
        return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
                   if re.match(re.escape(name) + r"[ {]", l) and all(f'{k}="{v}"' in l for k, v in labels.items()))

    def memory(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=10):
        code = self.process.wait(seconds * SLOW)
        time.sleep(0.05)
        return code

    def stop(self):
        """Ends it by SIGTERM; it must end well."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            code = self.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server does not end:\n" + "".join(self.lines[-20:]))
        text = "".join(self.lines)
        assert code == 0 and "Sanitizer" not in text, f"exit code {code}\n{text[-6000:]}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.process.kill()
            self.process.wait()
        else:
            self.stop()


class Response:
    def __init__(self, status, headers, body, reason=""):
        self.status, self.headers, self.body, self.reason = status, headers, body, reason

    def json(self):
        return json.loads(self.body)

    def error(self):
        e = self.json()["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        return e

    def events(self):
        return list(sse(self.body))


def sse(data):
    """The JSON of each event; '[DONE]' and comments (as ':...') as strings."""
    for block in data.decode().split("\n\n"):
        if block.startswith(":"):
            yield block
        elif block:
            assert block.startswith("data: ") and "\n" not in block, block
            yield block[6:] if block == "data: [DONE]" else json.loads(block[6:])


class Events:
    """A chunked stream of events taken in as it comes, wherever its bytes are cut."""

    def __init__(self):
        self.raw, self.text, self.head = b"", b"", True

    def feed(self, data):
        """The events that are complete with these bytes."""
        self.raw += data
        if self.head:
            self.head = b"\r\n\r\n" not in self.raw
            self.raw = self.raw if self.head else self.raw.split(b"\r\n\r\n", 1)[1]
        while not self.head and b"\r\n" in self.raw:
            size, rest = self.raw.split(b"\r\n", 1)
            n = int(size.split(b";")[0], 16)
            if len(rest) < n + 2:
                break
            self.text += rest[:n]
            self.raw = rest[n + 2:]
        *blocks, self.text = self.text.split(b"\n\n")
        return [e for block in blocks for e in sse(block + b"\n\n")]


def text_of(events):
    """What completions' events say, several tokens in one or not."""
    return "".join(c["text"] for e in events if isinstance(e, dict) for c in e["choices"])


class Conn:
    """A raw connection that can also read answers."""

    def __init__(self, server, timeout=10):
        if server.address.startswith("/"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout * SLOW)
            self.sock.connect(server.address)
        else:
            self.sock = socket.create_connection(("127.0.0.1", server.port), timeout * SLOW)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) \
            if self.sock.family != socket.AF_UNIX else None
        self.buffer = b""

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())

    def request(self, method, path, body=None, headers=None, version="1.1"):
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        data = data.encode() if isinstance(data, str) else data
        lines = [f"{method} {path} HTTP/{version}"]
        if not headers or "Host" not in headers:
            lines.append("Host: localhost")
        for name, value in (headers or {}).items():
            lines.append(f"{name}: {value}")
        if data is not None:
            lines.append(f"Content-Length: {len(data)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + (data or b""))

    def more(self):
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def line(self):
        while b"\n" not in self.buffer:
            if not self.more():
                raise EOFError(self.buffer)
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.rstrip(b"\r")

    def exactly(self, n):
        while len(self.buffer) < n:
            if not self.more():
                raise EOFError(f"{n} bytes wanted, {len(self.buffer)} came")
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def rest(self):
        while self.more():
            pass
        data, self.buffer = self.buffer, b""
        return data

    def head(self):
        version, status, reason = (self.line().decode().split(" ", 2) + [""])[:3]
        headers = {}
        while line := self.line().decode():
            name, value = line.split(":", 1)
            assert name.lower() not in headers or name.lower() == "vary", line
            headers[name.lower()] = value.strip()
        return version, int(status), reason, headers

    def chunk(self):
        n = int(self.line().split(b";")[0], 16)
        data = self.exactly(n)
        assert self.line() == b""
        return data

    def response(self, head=False):
        while True:
            version, status, reason, headers = self.head()
            if status != 100:
                break
        if head or status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while data := self.chunk():
                body += data
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Response(status, headers, body, version)

    def event(self):
        """The next event of a chunked stream whose head has been read."""
        while b"\n\n" not in getattr(self, "stream", b""):
            data = self.chunk()
            if not data:
                return None
            self.stream = getattr(self, "stream", b"") + data
        block, self.stream = self.stream.split(b"\n\n", 1)
        return list(sse(block + b"\n\n"))[0]

    def closed(self, seconds=5):
        """True when the server closes within the time (unread data is dropped)."""
        self.sock.settimeout(seconds * SLOW)
        try:
            while self.sock.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


def completion(prompt, **more):
    return dict({"prompt": prompt, "max_tokens": 4}, **more)


def stream(prompt, **more):
    return completion(prompt, stream=True, **more)


def open_stream(server, prompt, events=1, **more):
    """A connection with a stream of which some events have come."""
    c = server.connect()
    c.request("POST", "/v1/completions", stream(prompt, **more))
    if events:
        assert c.head()[1] == 200
        for _ in range(events):
            c.event()
    return c


def wait_until(check, seconds=5):
    end = time.monotonic() + seconds * SLOW
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {check}")
        time.sleep(0.005)


def main(scope):
    """Runs every test_* function of a script; a `server` argument is one that they share."""
    tests = [(n[5:], f) for n, f in scope.items() if n.startswith("test_") and callable(f)]
    failed, shared = 0, None
    for name, test in tests:
        if ONLY and name not in ONLY:
            continue
        began = time.monotonic()
        try:
            if test.__code__.co_argcount:
                shared = shared or Server()
                shared.clear()
                test(shared)
                shared.alive()
            else:
                test()
            word = "ok"
        except Skip as skip:
            word = f"skipped: {skip}"
        except Exception:
            traceback.print_exc(file=sys.stdout)
            word, failed = "FAILED", failed + 1
            if shared and test.__code__.co_argcount:
                print("".join(shared.lines[-8:]))
                shared.process.kill()
                shared = None
        print(f"{word:8} {name} ({time.monotonic() - began:.2f} s)", flush=True)
    if shared:
        try:
            shared.stop()
        except AssertionError as e:
            print("FAILED at the end:", e)
            failed += 1
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


class Skip(Exception):
    pass
