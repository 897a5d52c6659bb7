"""The page in a headless Chromium, served by the program itself; and other sites' pages that ask the server."""

import http.server
import json
import os
import sys
import threading

import browser
import lib
from lib import Skip, main, wait_until
from program import MODEL, Program, tiny

SHOTS = os.environ.get("PAGE_SHOTS")  # a folder for pictures of what the tests saw

if not browser.find():
    print("skipped: no chromium")
    sys.exit(77)

_browser = None


def chromium():
    global _browser
    _browser = _browser or browser.Browser()
    return _browser


class Served:
    """The program on a model, and its page in the browser."""

    def __init__(self, *settings, model=None, **look):
        self.settings, self.model, self.look = settings, model or tiny(), look

    def __enter__(self):
        self.server = Program(self.model, *self.settings)
        self.url = f"http://localhost:{self.server.port}/"
        self.page = chromium().open(self.url, **self.look)
        return self.server, self.page

    def __exit__(self, kind, value, trace):
        if not kind:
            elsewhere = [u for u in self.page.requests() if not u.startswith((self.url, "about:", "data:"))]
            assert not elsewhere, elsewhere
        self.page.call("Page.close")
        self.server.__exit__(kind, value, trace)


def shot(page, name):
    if SHOTS:
        page.screenshot(os.path.join(SHOTS, name + ".png"))


def ready(page):
    page.wait("document.querySelector('#context').textContent.includes('tokens')")


def set_setting(page, name, value):
    page.js(f"""(() => {{ const e = document.querySelector('#set-{name}'); e.value = {json.dumps(str(value))};
        e.dispatchEvent(new Event('input', {{bubbles: true}})); }})()""")


def bodies(page, path):
    """What the page has posted there."""
    return [json.loads(e["params"]["request"]["postData"]) for e in page.browser.events
            if e["method"] == "Network.requestWillBeSent" and e.get("sessionId") == page.session
            and e["params"]["request"]["url"].endswith(path) and e["params"]["request"].get("postData")]


def say(page, text):
    page.click("#message")
    page.type(text)
    page.key("Enter")


def answered(page, n):
    page.wait(f"document.querySelectorAll('.message').length === {n} && "
              "document.querySelector('#send').checkVisibility()", 60)


def complete(page, text):
    page.click("#tab-completion")
    page.click("#prompt")
    page.type(text)
    page.key("Enter", modifiers=2)  # control
    completed(page)


def completed(page):
    page.wait("document.querySelector('#generate').checkVisibility() && "
              "document.querySelectorAll('.token').length > 0", 60)


def tokens(page):
    return page.js("[...document.querySelectorAll('.token:not(.end)')].map((t) => t.textContent)")


# ---- the page ----

def test_loads_without_a_complaint_and_has_names_for_all():
    with Served() as (server, page):
        ready(page)
        assert page.js("document.querySelector('#model').value") == server.request("GET", "/v1/models").json()["data"][0]["id"]
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"textbox", "button", "spinbutton", "combobox", "checkbox", "tab", "link", "dialog"}
        nameless = [n["role"]["value"] for n in tree if not n.get("ignored") and n["role"]["value"] in roles
                    and not n.get("name", {}).get("value")]
        assert not nameless, nameless
        assert sum(n["role"]["value"] == "spinbutton" for n in tree if not n.get("ignored")) >= 5
        shot(page, "empty")
        assert page.troubles() == [], page.troubles()


def test_chat_streams_counts_and_remembers():
    if not MODEL:
        raise Skip("no default model")
    with Served(model=MODEL) as (server, page):
        ready(page)
        set_setting(page, "temperature", 0)
        set_setting(page, "max_tokens", 80)
        set_setting(page, "system", "You are a sailor.")
        page.js("""window.lengths = new Set(); new MutationObserver(() => lengths.add(
            document.querySelector('.assistant .body')?.textContent.length ?? 0)).observe(
            document.querySelector('#messages'), {childList: true, subtree: true, characterData: true})""")
        say(page, "How is a rope made?")
        answered(page, 2)
        assert page.js("lengths.size") > 2, "the answer did not come piece by piece"
        foot = page.text(".assistant .foot")
        assert "tokens/s" in foot and "cached" in foot and "first after" in foot, foot
        sent = bodies(page, "/v1/chat/completions")[0]
        assert sent["temperature"] == 0 and sent["max_tokens"] == 80 and sent["top_p"] == 0.95
        assert sent["messages"] == [{"role": "system", "content": "You are a sailor."},
                                    {"role": "user", "content": "How is a rope made?"}]
        alone = server.post("/v1/chat/completions", dict(sent, stream=False, stream_options=None), timeout=60).json()
        text = page.js("JSON.parse(sessionStorage['ropewalk.chat'])[1].content")
        assert text == alone["choices"][0]["message"]["content"]
        say(page, "And then?")
        answered(page, 4)
        foot = page.text(".message:last-child .foot")
        cached = int(foot.split("prompt ")[1].split(", ")[1].split(" cached")[0].replace(",", ""))
        assert cached > 60, foot
        assert "of context used" in page.text("#chat-status")
        shot(page, "chat")
        assert page.troubles() == [], page.troubles()


def test_stop_frees_the_server_and_continue_goes_on():
    if not MODEL:
        raise Skip("no default model")
    with Served(model=MODEL) as (server, page):
        ready(page)
        set_setting(page, "max_tokens", "")
        say(page, "Tell me a very long story of the sea, in many chapters.")
        page.wait("document.querySelector('.assistant .body')?.textContent.length > 20")
        shot(page, "streaming")
        page.click("#chat-stop")
        answered(page, 2)
        assert "stopped" in page.text(".assistant .foot")
        wait_until(server.idle)
        before = page.js("JSON.parse(sessionStorage['ropewalk.chat'])[1].content")
        set_setting(page, "max_tokens", 8)
        page.js("[...document.querySelectorAll('.foot button')].find((b) => b.textContent === 'Continue').click()")
        page.wait(f"JSON.parse(sessionStorage['ropewalk.chat'])[1].content.length > {len(before)}")
        after = page.js("JSON.parse(sessionStorage['ropewalk.chat'])[1].content")
        assert after.startswith(before) and len(after) > len(before)
        set_setting(page, "max_tokens", "")
        say(page, "Another long one, please.")
        page.wait("document.querySelector('.message:last-child.assistant .body')?.textContent.length > 20")
        page.key("Escape")
        answered(page, 4)
        wait_until(server.idle)
        page.go(page.js("location.href"))  # a reload keeps the conversation
        page.wait("document.querySelectorAll('.message').length === 4")
        page.click("#new-chat")
        page.wait("document.querySelectorAll('.message').length === 0")
        assert page.shown("#welcome") and page.troubles() == [], page.troubles()


def test_completion_shows_probabilities():
    with Served() as (server, page):
        ready(page)
        set_setting(page, "temperature", 0)
        set_setting(page, "max_tokens", 12)
        page.js("document.querySelector('#echo').click()")
        complete(page, "the lamps along the pier")
        sent = bodies(page, "/v1/completions")[0]
        assert sent["logprobs"] == 5 and sent["echo"] is True
        alone = server.post("/v1/completions", dict(sent, stream=False, stream_options=None)).json()["choices"][0]
        assert "".join(tokens(page)) == alone["text"]
        last = len(alone["logprobs"]["tokens"]) - 1
        page.point(f".token:nth-child({last})")
        page.wait("document.querySelector('#card').checkVisibility()")
        top = alone["logprobs"]["top_logprobs"][last - 1]
        rows = page.js("[...document.querySelectorAll('#card .other')].map((r) => r.lastChild.textContent)")
        assert len(rows) == max(5, len(top)), rows
        chosen = 2.718281828 ** alone["logprobs"]["token_logprobs"][last - 1]
        shown = page.text("#card .chosen span:last-child")
        assert abs(float(shown.strip("< %")) / 100 - chosen) < 0.001, (shown, chosen)
        shot(page, "completion")
        assert page.troubles() == [], page.troubles()


def test_completion_asks_for_as_many_alternatives_as_there_are():
    for most, asked in ((2, 2), (0, 0), (-1, 5)):
        with Served("--max-logprobs", str(most)) as (server, page):
            ready(page)
            set_setting(page, "max_tokens", 4)
            set_setting(page, "temperature", 0)
            complete(page, "rope and yarn")
            assert bodies(page, "/v1/completions")[0]["logprobs"] == asked and tokens(page)
            assert page.troubles() == [], page.troubles()


def test_completion_by_keyboard_takes_another_token():
    with Served() as (server, page):
        ready(page)
        set_setting(page, "temperature", 0)
        set_setting(page, "max_tokens", 10)
        complete(page, "rope and yarn")
        before = tokens(page)
        page.js("document.querySelector('.token[tabindex=\"0\"]').focus()")
        for _ in range(3):
            page.key("ArrowRight")
        assert page.js("[...document.querySelectorAll('.token')].indexOf(document.activeElement)") == 3
        assert page.shown("#card")
        page.key("Enter")
        other = page.wait("document.activeElement.matches('#card button') && document.activeElement.innerText")
        page.key("Enter")
        page.wait("document.querySelector('#generate').checkVisibility() && !document.querySelector('#card').checkVisibility()")
        after = tokens(page)
        assert after[:3] == before[:3] and after[3] != before[3], (before, after, other)
        sent = bodies(page, "/v1/completions")[-1]
        assert sent["prompt"] == "rope and yarn" + "".join(after[:4]), sent
        page.click("#append")
        assert page.js("document.querySelector('#prompt').value") == "rope and yarn" + "".join(after)
        assert page.troubles() == [], page.troubles()


def test_asks_for_the_key():
    with Served("--api-key", "open-sesame") as (server, page):
        page.wait("document.querySelector('#key-dialog').open")
        shot(page, "key")
        page.type("wrong")
        page.key("Enter")
        page.wait("document.querySelector('#key-dialog').open && "
                  "document.querySelector('#key-note').textContent.includes('did not accept')")
        page.type("open-sesame")
        page.key("Enter")
        ready(page)
        assert page.js("sessionStorage['ropewalk.key']") == '"open-sesame"'
        page.wait("document.querySelector('#metrics-link').hidden")  # a link would go without the key
        assert "sesame" not in page.js("JSON.stringify(localStorage) + document.cookie + location.href")
        page.go(page.js("location.href"))
        ready(page)  # without asking again
        assert not page.js("document.querySelector('#key-dialog').open")
        set_setting(page, "max_tokens", 4)
        set_setting(page, "temperature", 0)  # a draw may be the end at once
        complete(page, "sea")
        assert tokens(page)
        page.click("#forget-key")
        page.wait("document.querySelector('#key-dialog').open")
        assert not page.js("sessionStorage['ropewalk.key']")


def test_says_what_went_wrong():
    with Served("--ctx", "64") as (server, page):
        ready(page)
        page.click("#tab-completion")
        page.click("#prompt")
        page.type("rope " * 400)
        page.key("Enter", modifiers=2)
        page.wait("document.querySelector('#completion-status.problem')?.textContent.includes('context')")
        server.stop()
        page.js("document.querySelector('#prompt').value = 'sea'")
        page.click("#generate")
        page.wait("document.querySelector('#completion-status.problem')?.textContent.includes('does not answer')")
        server.process.returncode = 0


def test_what_a_model_writes_never_runs():
    with Served() as (server, page):
        ready(page)
        evil = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
        page.js("window.md = null; import('/page/markdown.js').then((m) => { window.md = m.markdown; })")
        page.wait("Boolean(window.md)")
        page.js(f"""document.querySelector('#messages').replaceChildren(...md({json.dumps(
            evil + chr(10) + '[a](javascript:window.hit=1) [b](https://example.org/x) `' + evil + '`' + chr(10)
            + '```html' + chr(10) + evil + chr(10) + '```')}))""")
        assert page.js("window.hit") is None and page.js("document.querySelectorAll('#messages img').length") == 0
        assert page.js("[...document.querySelectorAll('#messages a')].map((a) => a.href)") == ["https://example.org/x"]
        html = page.js("""(() => { const d = document.createElement('div'); d.append(...md(
            '# T\\n\\na **b** *c* `d`\\nnext\\n\\n- x\\n  - y\\n- z\\n\\n3. p\\n4. q\\n\\n> w\\n\\n|h|i|\\n|-|-|\\n|1|2|\\n\\n2 * 3 * 4 and a_b_c'));
            return d.innerHTML; })()""")
        assert html == ("<h3>T</h3><p>a <strong>b</strong> <em>c</em> <code>d</code><br>next</p>"
                        "<ul><li>x<ul><li>y</li></ul></li><li>z</li></ul>"
                        '<ol start="3"><li>p</li><li>q</li></ol><blockquote><p>w</p></blockquote>'
                        '<div class="table"><table><thead><tr><th>h</th><th>i</th></tr></thead>'
                        "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>"
                        "<p>2 * 3 * 4 and a_b_c</p>"), html
        page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit=1'}))")
        assert page.js("window.hit") is None, "an inline script ran"


def test_settings_are_kept_and_reset():
    with Served() as (server, page):
        ready(page)
        set_setting(page, "temperature", 1.5)
        set_setting(page, "stop", "one\n\ntwo")
        set_setting(page, "max_tokens", "")
        page.js("localStorage['ropewalk.settings'] = JSON.stringify({...JSON.parse(localStorage['ropewalk.settings']), "
                "top_k: 'nonsense', gone: 5})")
        page.go(page.js("location.href"))
        ready(page)
        assert page.js("document.querySelector('#set-temperature').value") == "1.5"
        complete(page, "sea")
        sent = bodies(page, "/v1/completions")[0]
        assert sent["temperature"] == 1.5 and sent["stop"] == ["one", "two"] and "top_k" not in sent
        assert sent["max_tokens"] == 256
        set_setting(page, "temperature", 9)  # out of range: not sent
        page.click("#generate")
        completed(page)
        assert "temperature" not in bodies(page, "/v1/completions")[1]
        page.click("#reset")
        page.click("#generate")
        completed(page)
        sent = bodies(page, "/v1/completions")[2]
        assert sent["temperature"] == 0.7 and sent["max_tokens"] == 512 and "stop" not in sent
        assert page.troubles() == [], page.troubles()


def test_copies():
    if not MODEL:
        raise Skip("no default model")
    with Served(model=MODEL) as (server, page):
        ready(page)
        set_setting(page, "max_tokens", 4)
        say(page, "A text to copy")
        answered(page, 2)
        for secure in (True, False):
            if not secure:
                page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
            page.js("document.querySelector('#chat-status').textContent = ''; "
                    "document.querySelector('.message.user .foot button').click()")
            page.wait("document.querySelector('#chat-status').textContent === 'Copied.'")


def test_fits_a_phone_and_the_dark():
    with Served(width=360, height=740, dark=True) as (server, page):
        ready(page)
        for tab in ("chat", "completion"):
            page.click(f"#tab-{tab}")
            assert page.js("document.documentElement.scrollWidth <= innerWidth"), tab
            shot(page, f"phone-{tab}")
        assert not page.shown("#settings")
        page.click("#open-settings")
        assert page.shown("#settings")
        shot(page, "phone-settings")
        page.key("Escape")
        assert not page.shown("#settings")
        bright = page.js("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).reduce((a, b) => a + +b, 0)")
        assert bright < 150, bright


def test_switched_off():
    server = Program(tiny(), "--no-page")
    with server:
        page = chromium().open(f"http://localhost:{server.port}/")
        assert "nothing at this path" in page.js("document.body.innerText")
        page.call("Page.close")


# ---- pages of others ----

class Site:
    """A web site with one empty page."""

    def __enter__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>other</title>")

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self.http.server_address[1]

    def __exit__(self, *_):
        self.http.shutdown()


ASK = """(async () => {
    try {
        const r = await fetch("http://localhost:%d/v1/completions", {method: "POST",
            headers: {"Content-Type": "application/json", "Authorization": "Bearer k", "X-Request-Id": "from-a-page"},
            body: JSON.stringify({prompt: "sea", max_tokens: 4, stream: true})});
        let text = "", pieces = 0;
        for (const reader = r.body.getReader();;) {
            const {value, done} = await reader.read();
            if (done) break;
            pieces++;
            text += new TextDecoder().decode(value);
        }
        return [r.status, text.includes("[DONE]"), r.headers.get("X-Request-Id")];
    } catch (e) { return String(e); }
})()"""


def ask_from(origin, port):
    page = chromium().open(origin)
    answer = page.js(ASK % port)
    page.call("Page.close")
    return answer


GOOD = [200, True, "from-a-page"]


def test_fetch_across_origins():
    with Site() as port:
        local, foreign = f"http://localhost:{port}", f"http://other.test:{port}"
        with Program(tiny()) as server:
            assert ask_from(local, server.port) == GOOD
            assert "TypeError" in ask_from(foreign, server.port)
        with Program(tiny(), "--cors-origins", foreign) as server:
            assert ask_from(foreign, server.port) == GOOD
            assert "TypeError" in ask_from(local, server.port)
        with Program(tiny(), "--cors-origins", "*", "--api-key", "k") as server:
            assert ask_from(foreign, server.port) == GOOD


def test_a_name_made_to_point_here_is_refused():
    with Program(tiny()) as server:
        page = chromium().open(f"http://other.test:{server.port}/")
        assert "not one of this server" in page.js("document.body.innerText")
        assert page.js("fetch('/v1/models').then((r) => r.status)") == 403
        page.call("Page.close")


try:
    main(globals())
finally:
    if _browser:
        _browser.close()
