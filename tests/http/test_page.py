"""The page's files over HTTP: types, caching, policy, who may have them. page_chromium.py looks at it in a browser."""

import re

from lib import Server, main

FILES = {"/": "text/html", "/page/page.css": "text/css", "/page/page.js": "text/javascript",
         "/page/icon.svg": "image/svg+xml"}


def linked(server):
    """Every file that the page names, and those that they import."""
    found, seen = {"/"}, {}
    while new := found - set(seen):
        for path in new:
            seen[path] = server.request("GET", path).body.decode()
            names = re.findall(r'(?:src|href)="(page/[^"]+)"', seen[path])
            found |= {"/" + n for n in names}
            found |= {"/page/" + n for n in re.findall(r'from "\./([^"]+)"', seen[path])}
    return seen


def test_types_and_policy(s):
    for path, kind in FILES.items():
        r = s.request("GET", path)
        assert r.status == 200 and r.body, path
        assert r.headers["content-type"].startswith(kind), r.headers
        policy = r.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert r.headers["x-content-type-options"] == "nosniff"
        assert r.headers["cache-control"] == "no-cache"


def test_head_is_get_without_a_body(s):
    for path in FILES:
        get, head = s.request("GET", path), s.request("HEAD", path)
        assert head.status == 200 and head.body == b""
        for name in ("content-type", "content-length", "etag"):
            assert get.headers[name] == head.headers[name], name


def test_known_files_are_not_sent_again(s):
    tag = s.request("GET", "/").headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{16}"', tag)
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        with s.connect() as c:
            for _ in range(2):  # the connection stays in step
                c.request("GET", "/", headers={"If-None-Match": given})
                r = c.response()
                assert r.status == 304 and r.headers["etag"] == tag, (given, r.status)
            c.request("GET", "/health")
            assert c.response().status == 200
    assert s.request("GET", "/", headers={"If-None-Match": '"0"'}).status == 200


def test_all_that_is_linked_is_there_and_nothing_from_elsewhere(s):
    files = linked(s)
    assert len(files) > 8, list(files)
    for path, text in files.items():
        assert not re.search(r"""(src|href|import|url)\s*[=(]?\s*["']?(https?:)?//""", text), path
        assert "innerHTML" not in text and "eval(" not in text and "style=" not in text, path
        assert "onclick=" not in text and "<script>" not in text, path


def test_other_paths_and_methods(s):
    for path in ("/page", "/page/", "/page/none.js", "/page/../CMakeLists.txt", "/index.html", "/page/embed.cmake"):
        assert s.request("GET", path).status == 404, path
    r = s.request("POST", "/", {})
    assert r.status == 405 and r.headers["allow"] == "GET, HEAD, OPTIONS"


def test_public_beside_a_key():
    with Server("key=secret") as s:
        for path in FILES:
            assert s.request("GET", path).status == 200, path
        assert s.request("GET", "/v1/models").status == 401


def test_switched_off():
    with Server("page=0") as s:
        for path in FILES:
            r = s.request("GET", path)
            assert r.status == 404 and r.error()["code"] == "not_found", path
        assert s.request("POST", "/", {}).status == 404
        assert s.request("GET", "/health").status == 200


main(globals())
