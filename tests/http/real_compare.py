"""`ropewalk bench --compare`: against the front end with the fake engine, which tells its tokens like
any other server of this kind, and against servers that do not."""

import json
import os
import socket
import subprocess
import threading

import lib
from lib import SLOW, main
from program import tiny

FAKE = os.path.join(os.path.dirname(lib.PROGRAM), "fake_server")


class Fake(lib.Server):
    """The fake server in place of the program that this script is given."""

    def __init__(self, *settings):
        lib.PROGRAM, program = FAKE, lib.PROGRAM
        try:
            super().__init__("port=0", *settings)
        finally:
            lib.PROGRAM = program


def bench(address, *settings):
    return subprocess.run(
        [lib.PROGRAM, "bench", tiny(), "--compare", address, "--threads", "2", "--memory", "600m", "--repeat", "2",
         "--log-level", "error", *settings], capture_output=True, text=True, timeout=60 * SLOW)


def test_both_are_asked_in_turns():
    with Fake() as server:
        done = bench(f"http://127.0.0.1:{server.port}/v1", "--prompt-sizes", "24", "--generate-sizes", "8",
                     "--compare-users", "1,3", "--json")
        assert done.returncode == 0, done.stderr
        all_ = json.loads(done.stdout)
        assert all_["compared_with"].endswith("/v1")
        rows = all_["rows"]
        assert [(r["kind"], r["users"]) for r in rows] == [(k, u) for u in (1, 3) for k in ("prefill", "decode", "both")]
        for r in rows:
            assert r["tokens_per_second"] > 0 and r["theirs"] > 0, r
            assert abs(r["ratio"] - r["tokens_per_second"] / r["theirs"]) < 1e-6 * r["ratio"], r
        # one to warm up, then two rounds of three kinds of work for one and for three users
        lib.wait_until(lambda: len(server.notes("done")) == 1 + 2 * 3 * (1 + 3))


def test_a_table_for_people():
    with Fake() as server:
        done = bench(f"127.0.0.1:{server.port}", "--prompt-sizes", "24", "--generate-sizes", "8", "--compare-users", "2")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[1].split() == ["work", "prompt", "answer", "users", "ours", "theirs", "ratio"], lines
        assert [line.split()[:4] for line in lines[2:]] == [
            ["prefill", "24", "1", "2"], ["decode", "16", "8", "2"], ["both", "24", "8", "2"]], lines


def test_nobody_there():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        done = bench(f"http://127.0.0.1:{s.getsockname()[1]}")
    assert done.returncode == 1 and "nobody answers" in done.stderr, done.stderr


def answer_all(listener, answer):
    while True:
        try:
            c, _ = listener.accept()
        except OSError:
            return
        c.recv(65536)
        c.sendall(answer)
        c.close()


def says(answer, *expected):
    with socket.create_server(("127.0.0.1", 0)) as s:
        thread = threading.Thread(target=answer_all, args=(s, answer), daemon=True)
        thread.start()
        done = bench(f"http://127.0.0.1:{s.getsockname()[1]}")
        s.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert done.returncode == 1, done.stdout
    for text in expected:
        assert text in done.stderr, done.stderr


def test_other_things_than_servers_of_models():
    says(b"SSH-2.0-OpenSSH_9\r\n", "not HTTP")
    says(b"HTTP/1.1 404 Not Found\r\n\r\nnothing here", "404", "nothing here")
    says(b"HTTP/1.1 200 OK\r\n\r\n<html>", "not JSON")
    says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "before it was complete")
    says(b"HTTP/1.1 200 OK\r\n\r\n{\"choices\": []}", "does not say usage")


if __name__ == "__main__":
    main(globals())
