"""Downloads, against a real server on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pytest
from PIL import Image

from lad_rerank.errors import ImageError
from lad_rerank.images import ImageLimits, open_image


def png() -> bytes:
    out = BytesIO()
    Image.new("RGB", (6, 4), (200, 40, 90)).save(out, "PNG")
    return out.getvalue()


PNG = png()


class Handler(BaseHTTPRequestHandler):
    seen: list[str] = []  # noqa: RUF012 - the server makes one handler a request

    def do_GET(self) -> None:
        self.seen.append(self.path)
        path = self.path.partition("?")[0]
        if path in ("/mug.png", "/caf%C3%A9%20mug.png"):
            self._send(200, PNG)
        elif path == "/page":
            self._send(200, b"<!doctype html><html>log in</html>")
        elif path == "/missing":
            self._send(404, PNG)
        elif path == "/error":
            self._send(500, b"")
        elif path == "/moved":
            self._send(302, b"", Location="/mug.png")
        elif path == "/loop":
            self._send(302, b"", Location="/loop")
        elif path == "/to-file":
            self._send(302, b"", Location="file:///etc/hostname")
        elif path == "/to-ftp":
            self._send(302, b"", Location="ftp://127.0.0.1/mug.png")
        elif path == "/claims":
            self.send_response(200)
            self.send_header("Content-Length", str(10**12))
            self.end_headers()
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            self._write_until_refused(b"x" * 65536, 0.0)
        elif path == "/drip":
            self.send_response(200)
            self.end_headers()
            self._write_until_refused(b"x", 0.05)
        elif path == "/silent":
            time.sleep(2)

    def _write_until_refused(self, part: bytes, pause: float) -> None:
        try:
            for _ in range(200):
                self.wfile.write(part)
                time.sleep(pause)
        except OSError:
            return

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.seen.clear()


@pytest.mark.parametrize("path", ["/mug.png", "/mug.png?w=200&sig=a%2Fb#frag", "/moved", "/café mug.png"])
def test_pictures_are_downloaded(server: str, path: str) -> None:
    assert open_image(server + path, allow_urls=True).getpixel((5, 3)) == (200, 40, 90)
    assert open_image(f"  {server}{path}\n", allow_urls=True).size == (6, 4)


def test_nothing_is_fetched_by_default(server: str) -> None:
    with pytest.raises(ImageError, match="allow_urls=True"):
        open_image(f"{server}/mug.png")
    assert Handler.seen == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/missing", "HTTP status 404"),
        ("/error", "HTTP status 500"),
        ("/page", "HTML page"),
        ("/loop", "HTTP status 302"),
        ("/to-file", "not followed"),
        ("/to-ftp", "not followed"),
        ("/claims", "larger than"),
        ("/endless", "larger than"),
    ],
)
def test_what_is_refused(server: str, path: str, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        open_image(f"{server}{path}?sig=secret", allow_urls=True, limits=ImageLimits(max_bytes=200_000))


@pytest.mark.parametrize("path", ["/drip", "/silent"])
def test_slow_servers_meet_the_deadline(server: str, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(ImageError, match=r"took longer|timed out"):
        open_image(server + path, allow_urls=True, limits=ImageLimits(timeout=0.3))
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/none.jpg", "http://", "http://[::1", "http://127.0.0.1:port/a"])
def test_addresses_that_do_not_work(url: str) -> None:
    with pytest.raises(ImageError, match="could not be downloaded"):
        open_image(url, allow_urls=True, limits=ImageLimits(timeout=2))
