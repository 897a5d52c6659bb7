"""HTTPS, where the build has it."""

import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

import lib
from lib import Server, Skip, completion, main, stream


def certificate(folder):
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    key, cert = folder + "/key.pem", folder + "/cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"],
                   check=True, capture_output=True)
    return key, cert


def wrap(server):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    c = server.connect()
    c.sock = context.wrap_socket(c.sock)
    return c


def test_https():
    with tempfile.TemporaryDirectory() as folder:
        key, cert = certificate(folder)
        r = subprocess.run([lib.PROGRAM, f"certificate={cert}", f"tls_key={folder}/none"],
                           capture_output=True, text=True, timeout=10)
        assert r.returncode == 1
        if "ROPEWALK_TLS is off" in r.stderr:
            raise Skip("this build has no TLS")
        assert "none" in r.stderr, r.stderr
        server = Server(f"certificate={cert}", f"tls_key={key}")
        with wrap(server) as c:
            c.request("POST", "/v1/completions", completion("hello"))
            assert c.response().json()["choices"][0]["text"] == "hell"
            c.request("POST", "/v1/completions", stream("@pace=30;x", max_tokens=5))
            assert c.response().events()[-1] == "[DONE]"
        c = wrap(server)
        c.request("POST", "/v1/completions", stream("@pace=3000;x", max_tokens=50))
        c.head()
        began = time.monotonic()
        c.close()
        assert server.wait_note("cancel")[0][1] - began < 0.2 * lib.SLOW
        with server.connect() as plain:
            plain.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert plain.closed(3)
        server.stop()


main(globals())
