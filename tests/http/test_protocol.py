"""Malformed requests, limits, splitting, keep-alive: 1 to 39 of the front end's list."""

import json
import time

from lib import Server, Skip, completion, main, stream

GET = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def refused(server, data, statuses, ours=None, closes=True, library=False):
    """One bad request: a status, one reply, the connection closed, nothing run. `ours` is the code that our own answer
    has; with `library` a newer libmicrohttpd may have answered before us."""
    with server.connect(5) as c:
        c.send(data)
        try:
            r = c.response()
        except (EOFError, ConnectionError):
            assert 0 in statuses, "closed without an answer"
            return None
        assert r.status in statuses, (r.status, r.body)
        if ours and not (library and b"<html>" in r.body):
            assert r.error()["code"] == ours, r.body
        if closes:
            try:
                rest = c.rest()
            except ConnectionError:
                rest = b""
            if ours:
                assert rest == b"", rest
        else:
            c.send(GET)
            assert c.response().status == 200
        assert not server.notes("submit")
        return r


def post(body, *headers, path="/v1/completions"):
    return ("\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *headers]) + "\r\n\r\n"
            + body)


def test_01_req_line_garbage(server):
    refused(server, "\x16garbage\r\n\r\n", {400, 0})
    refused(server, "GET\r\n\r\n", {400, 0})


def test_02_http09(server):
    refused(server, "GET /health\r\n\r\n", {400, 505, 0})


def test_03_h2_preface_505(server):
    refused(server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505})


def test_04_version_9_9(server):
    refused(server, "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", {505, 400})


def test_05_missing_host(server):
    refused(server, "GET /health HTTP/1.1\r\n\r\n", {400})


def test_06_dup_host(server):
    refused(server, "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", {400},
            "duplicate_host", library=True)


def test_07_cl_alpha(server):
    refused(server, post("", "Content-Length: abc"), {400})


def test_08_cl_negative_plus(server):
    refused(server, post("", "Content-Length: -1"), {400})
    refused(server, post("", "Content-Length: +5"), {400})


def test_09_cl_overflow(server):
    refused(server, post("", "Content-Length: 99999999999999999999999"), {400, 413})


def test_10_cl_twice_differ(server):
    refused(server, post("{}", "Content-Length: 2", "Content-Length: 3"), {400}, "ambiguous_length", library=True)


def test_11_cl_and_te_rejected(server):
    refused(server, post("0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), {400},
            "ambiguous_length", library=True)


def test_12_te_gzip_501_no_hang(server):
    began = time.monotonic()
    refused(server, post("", "Transfer-Encoding: gzip"), {501}, "transfer_encoding", library=True)
    refused(server, post("", "Transfer-Encoding: gzip, chunked"), {501}, "transfer_encoding", library=True)
    assert time.monotonic() - began < 3


def test_13_te_case_insensitive(server):
    body = json.dumps(completion("hi"))
    with server.connect() as c:
        c.send(post(f"{len(body):x}\r\n{body}\r\n0\r\n\r\n", "transfer-encoding: CHUNKED"))
        assert c.response().status == 200


def test_14_chunk_bad_hex(server):
    refused(server, post("zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), {400, 0})


def test_15_chunk_missing_crlf(server):
    refused(server, post("2\r\n{}XX0\r\n\r\n", "Transfer-Encoding: chunked"), {400, 0})


def test_16_chunk_huge(server):
    refused(server, post("ffffffffffffffffff\r\n{}", "Transfer-Encoding: chunked"), {400, 413, 0})


def test_17_chunk_ext_trailers_ok(server):
    body = json.dumps(completion("hi"))
    with server.connect() as c:
        c.send(post(f"{len(body):x};a=b\r\n{body}\r\n0\r\nX-Trailer: 1\r\n\r\n",
                    "Transfer-Encoding: chunked"))
        assert c.response().status == 200
        c.send(GET)
        assert c.response().status == 200


def test_18_header_too_big_431(server):
    refused(server, GET[:-2] + "X-Big: " + "a" * 40000 + "\r\n\r\n", {431, 413, 400})


def test_19_uri_too_long_414(server):
    refused(server, "GET /" + "a" * 40000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n", {414})


def test_20_2000_headers(server):
    refused(server, GET[:-2] + "".join(f"X-{i}: 1\r\n" for i in range(2000)) + "\r\n", {431, 400})


def test_21_nul_in_url_pct00(server):
    r = refused(server, "GET /health%00x HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}, "not_found",
                closes=False)
    assert r.status == 404


def test_22_nul_in_header(server):
    with server.connect() as c:
        c.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\0b\r\nX-Request-Id: kept\r\n\r\n")
        try:
            r = c.response()
            assert r.status in (200, 400)
            assert r.status == 400 or r.headers["x-request-id"] == "kept"
        except (EOFError, ConnectionError):
            pass


def test_23_tls_hello_on_plain_port(server):
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))
    refused(server, hello + b"\r\n\r\n", {400, 0})


def test_24_unknown_method_405_allow(server):
    r = refused(server, "BREW /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", {405},
                "method_not_allowed", closes=False)
    assert r.headers["allow"] == "POST, OPTIONS", r.headers
    r = refused(server, "POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
                {405}, closes=False)
    assert r.headers["allow"] == "GET, HEAD, OPTIONS", r.headers


def test_25_long_method(server):
    refused(server, "A" * 5000 + " /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
            {405, 414, 431, 400}, closes=False)


LIMIT = 10000


def padded(n):
    body = json.dumps(completion("hi"))
    return body[:-1] + " " * (n - len(body)) + "}"


def test_26_body_exact_limit_ok_plus1_413():
    with Server(f"body={LIMIT}") as server:
        assert server.post("/v1/completions", padded(LIMIT)).status == 200
        with server.connect() as c:
            c.request("POST", "/v1/completions", padded(LIMIT + 1))
            r = c.response()
            assert r.status == 413 and r.error()["code"] == "request_too_large"
            c.send(GET)
            assert c.response().status == 200


def test_27_413_expect_continue_no_body_read():
    with Server(f"body={LIMIT}") as server, server.connect() as c:
        c.send(post("", f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
        version, status, _, headers = c.head()
        assert status == 413 and headers["connection"].lower() == "close"


def test_28_413_client_that_only_writes():
    with Server(f"body={LIMIT}") as server:
        with server.connect() as c:
            c.request("POST", "/v1/completions", padded(3 * LIMIT))
            assert c.response().status == 413
        with server.connect() as c:
            try:
                c.request("POST", "/v1/completions", padded(1000 * LIMIT))
                assert c.response().status == 413
            except ConnectionError:
                pass
        server.alive()


def test_29_413_chunked_then_keepalive():
    with Server(f"body={LIMIT}") as server, server.connect() as c:
        body = padded(2 * LIMIT)
        c.send(post(f"{len(body):x}\r\n{body}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"))
        assert c.response().status == 413
        c.send(GET)
        assert c.response().status == 200


def test_30_one_byte_packets(server):
    with server.connect(20) as c:
        body = json.dumps(completion("hi"))
        for b in post(body, f"Content-Length: {len(body)}").encode():
            c.send(bytes([b]))
        assert c.response().json()["choices"][0]["text"] == "hihi"


def test_31_headers_body_same_packet(server):
    with server.connect() as c:
        body = json.dumps(completion("hi"))
        c.send(post(body, f"Content-Length: {len(body)}"))
        assert c.response().status == 200


def test_32_pipelined_json_x3(server):
    with server.connect() as c:
        bodies = [json.dumps(completion(p)) for p in ("abcd", "efgh", "ijkl")]
        c.send("".join(post(b, f"Content-Length: {len(b)}") for b in bodies))
        texts = [c.response().json()["choices"][0]["text"] for _ in bodies]
        assert texts == ["abcd", "efgh", "ijkl"], texts


def test_33_pipelined_after_sse(server):
    with server.connect() as c:
        body = json.dumps(stream("@pace=20;x", max_tokens=5))
        c.send(post(body, f"Content-Length: {len(body)}") + GET)
        events = c.response().events()
        assert events[-1] == "[DONE]"
        assert c.response().json() == {"status": "ok"}


def test_34_head_on_every_route_no_body_no_engine(server):
    for path in ("/health", "/v1/health", "/readyz", "/metrics", "/v1/models", "/v1/models/fake"):
        with server.connect() as c:
            c.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET)
            r = c.response(head=True)
            assert r.status == 200 and int(r.headers["content-length"]) > 0, (path, r.status)
            assert c.response().json() == {"status": "ok"}, path
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        with server.connect() as c:
            c.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET)
            r = c.response(head=True)
            assert r.status == 405 and "POST" in r.headers["allow"]
            assert c.response().json() == {"status": "ok"}, path
    assert not server.notes("submit")


def test_35_options_cors_preflight(server):
    headers = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    r = server.request("OPTIONS", "/v1/completions", headers=headers)
    assert r.status == 204 and r.body == b""
    assert r.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in r.headers["access-control-allow-methods"]
    assert "authorization" in r.headers["access-control-allow-headers"].lower()
    r = server.request("OPTIONS", "/v1/completions", headers={"Origin": "http://evil.example"})
    assert r.status == 403 and "access-control-allow-origin" not in r.headers
    r = server.request("OPTIONS", "/nowhere")
    assert r.status == 404
    r = server.request("OPTIONS", "*")
    assert r.status == 204


def test_36_http10_sse_close_delimited(server):
    with server.connect() as c:
        c.request("POST", "/v1/completions", stream("hi", max_tokens=6), version="1.0")
        r = c.response()
        assert r.status == 200 and "transfer-encoding" not in r.headers
        assert r.events()[-1] == "[DONE]"


def test_37_http10_keepalive(server):
    with server.connect() as c:
        for _ in range(2):
            c.request("GET", "/health", headers={"Connection": "Keep-Alive"}, version="1.0")
            r = c.response()
            assert r.status == 200 and "content-length" in r.headers
    with server.connect() as c:
        c.request("GET", "/health", version="1.0")
        assert c.response().status == 200
        assert c.closed()


def test_38_upload_20mb_through_16k_pool():
    with Server("body=30000000") as server:
        began = time.monotonic()
        r = server.post("/v1/completions", completion("a" * 20_000_000), timeout=60)
        assert r.status == 400 and r.error()["code"] == "context_length_exceeded", r.body
        assert "20000001" in r.error()["message"] and "4096" in r.error()["message"]
        print("        20 MB in %.1f s" % (time.monotonic() - began))


def test_39_expect_100(server):
    with server.connect() as c:
        body = json.dumps(completion("hi"))
        c.send(post("", f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert c.head()[1] == 100
        c.send(body)
        assert c.response().status == 200


main(globals())
