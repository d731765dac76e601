"""Downloads, which happen only where the caller allows them."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from lad_rerank.errors import ImageError
from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.text import shorten

if TYPE_CHECKING:
    from http.client import HTTPMessage

_CHUNK = 1 << 16


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects over the same scheme, or from http up to https, and no others."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after != before and (before, after) != ("http", "https"):
            raise urllib.error.URLError(f"it redirects from {before} to {after or 'nowhere'}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(url: str, limits: ImageLimits) -> bytes:
    """Download one picture.

    Only http and https are spoken. Addresses are not filtered: a caller that takes URLs from strangers
    must keep them away from its own network.

    Raises:
        ImageError: No connection, a status other than 2xx, a redirect to another scheme, too slow, or over
            ``max_bytes``.
    """
    url = url.strip()
    name = f"The URL {shown(url)}"
    deadline = None if limits.timeout is None else time.monotonic() + limits.timeout
    try:
        # Spaces and non-ASCII letters are what people paste; a valid URL passes unchanged.
        request = urllib.request.Request(
            quote(url, safe="%;/?:@&=+$,#[]!~*'()"), headers={"User-Agent": "lad-rerank", "Accept": "image/*"}
        )
        with _opener().open(request, timeout=limits.timeout) as response:
            length = response.headers.get("Content-Length", "")
            if length.isdecimal():
                limits.check_bytes(int(length), name)
            return _read(response, name, limits, deadline)
    except urllib.error.HTTPError as error:
        error.close()
        what = "a redirect that is not followed" if 300 <= error.code < 400 else "no picture"
        raise ImageError(f"{name} answered with HTTP status {error.code}, {what}. Check the address.") from None
    except ImageError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ImageError(f"{name} could not be downloaded: {reason}.") from None


def shown(url: str) -> str:
    """A URL for a message: without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return shorten(f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}")
    except ValueError:
        return shorten(url.split("?", 1)[0].rsplit("@", 1)[-1])


def _opener() -> urllib.request.OpenerDirector:
    """An opener without the file:, ftp: and data: handlers that urllib installs by default."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SameScheme(),
    ):
        opener.add_handler(handler)
    return opener


def _read(response: Any, name: str, limits: ImageLimits, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    count = 0
    # read1 returns what has arrived, so that a server that drips bytes meets the deadline.
    while part := response.read1(_CHUNK):
        count += len(part)
        limits.check_bytes(count, name)
        if deadline is not None and time.monotonic() > deadline:
            raise ImageError(
                f"{name} took longer than {limits.timeout:g} s. Raise ImageLimits.timeout, or fetch it first."
            )
        parts.append(part)
    return b"".join(parts)
