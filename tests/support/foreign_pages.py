"""Cross-origin attacks from real Chromium pages on a server of this machine."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

from environments.webarena.browser import find_chromium

STRANGER = "stranger.example"
"""A host name that Chromium resolves to this machine, as in a DNS-rebinding attack."""

ATTACK = """async ([url, body]) => {
    const json = {'Content-Type': 'application/json'}
    const got = []
    const attempts = [
        {mode: 'no-cors', body: new Blob([body])},
        {mode: 'no-cors', body, headers: {'Content-Type': 'text/plain'}},
        {mode: 'cors', body, headers: json},
        {mode: 'cors', body, headers: {...json, 'Authorization': 'Basic YTpi', 'Prefect-Csrf-Token': 'a', 'Prefect-Csrf-Client': 'a'}},
    ]
    for (const attempt of attempts) {
        try {
            const answer = await fetch(url, {method: 'POST', credentials: 'include', ...attempt})
            if (answer.ok) got.push(await answer.text())
        } catch {}
    }
    const form = document.createElement('form')
    Object.assign(form, {action: url, method: 'POST', enctype: 'text/plain', target: 'frame'})
    const field = document.createElement('input')
    Object.assign(field, {name: body.slice(0, -1) + ', "ignored": "', value: '"}'})
    form.append(field)
    const frame = document.createElement('iframe')
    frame.name = 'frame'
    document.body.append(form, frame)
    await new Promise(done => { frame.onload = done; form.submit() })
    return got
}"""


@dataclass
class Seen:
    """The results of a page's attempts.

    Attributes:
        page: Origin of the page.
        statuses: Statuses of all responses, including those that scripts may not read.
        read: Successful responses that the page's script could read.
    """

    page: str
    statuses: list[int] = field(default_factory=list)
    read: list[str] = field(default_factory=list)


def attempts(browser: Browser, url: str, body: str) -> list[Seen]:
    """Post the JSON `body` to `url` from pages of three other origins.

    The origins are a foreign host, another port of this machine, and the server itself under a
    foreign name. Each page posts with and without a preflight, and as a form. A new browser of the
    same type as `browser` runs them.
    """
    address = urlsplit(url)
    options = ["--no-sandbox", f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1"]
    with (
        blank_pages() as port,
        browser.browser_type.launch(executable_path=find_chromium(), args=options) as chromium,
    ):
        rebound = f"http://{STRANGER}:{address.port}"
        pages = [
            (f"http://{STRANGER}:{port}", url),
            (f"http://127.0.0.1:{port}", url),
            (rebound, f"{rebound}{address.path}"),
        ]
        return [attempt(chromium.new_page(), origin, target, body) for origin, target in pages]


def attempt(page: Page, origin: str, url: str, body: str) -> Seen:
    """Try every kind of post from one page."""
    seen = Seen(origin)
    page.goto(f"{origin}/login")  # Prefect's page is not redirected from here
    page.on(
        "response",
        lambda answer: seen.statuses.append(answer.status) if answer.url == url else None,
    )
    seen.read = page.evaluate(ATTACK, [url, body])
    return seen


@contextmanager
def blank_pages() -> Iterator[int]:
    """Serve blank pages until the block ends, and yield the port."""

    class Blank(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html><body></body></html>")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
