"""What a token costs in system calls: exactly one send, and no socket option after the first."""

import os
import re
import shutil
import subprocess
import tempfile
import time

import lib
from lib import Server, Skip, completion, main, open_stream, stream


def test_one_send_per_token():
    if not shutil.which("strace"):
        raise Skip("no strace")
    with tempfile.NamedTemporaryFile("r") as log:
        trace = ["strace", "-f", "-o", log.name, "-e",
                 "trace=sendto,sendmsg,write,writev,setsockopt,epoll_ctl"]
        if subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True).returncode:
            raise Skip("strace may not trace here")
        # The leak checker is a tracer, too, and cannot work beside another.
        with Server(wrap=trace, env={"FAKE_QUIET": "1", "ASAN_OPTIONS": "detect_leaks=0"}) as server:
            r = server.post("/v1/completions", stream("@pace=30;x", max_tokens=20))
            assert len(r.events()) == 21
            pid = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True,
                                 text=True).stdout.split()
            os.kill(int(pid[0]), 15)
            server.wait(10)
        text = open(log.name).read()
    sends = [l for l in text.splitlines() if "text_completion" in l or re.search(r"sendto\(.*data:", l)]
    assert 20 <= len(sends) <= 22, len(sends)
    first = text.index("sendto(")
    fd = re.search(r"sendto\((\d+)", text)[1]
    after = text[text.index("sendto(", first + 1):]
    options = re.findall(r"setsockopt\(%s,.*" % fd, after)
    assert len(options) <= 1, options  # MHD's TCP_NODELAY after its first send
    controls = re.findall(r"epoll_ctl\(\d+, EPOLL_CTL_\w+, %s," % fd, text)
    assert len(controls) < 10, controls  # a few for the connection, none per token


main(globals())
