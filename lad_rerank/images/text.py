"""Strings that hold or name a picture: base64, ``data:`` URIs, ``file:`` URLs, paths."""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from lad_rerank.errors import ImageError
from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.sniff import describe

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters at least: "C:" is a drive
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_SHORTEST_IMAGE = 32  # characters of base64; no picture is smaller
_SHOWN = 80


def shorten(text: str) -> str:
    """``repr`` of a string, cut in the middle: nobody reads a megabyte of base64 in a log."""
    if len(text) <= _SHOWN:
        return repr(text)
    return f"{text[: _SHOWN // 2]!r}…{text[-_SHOWN // 4 :]!r} ({len(text):,} characters)"


def scheme_of(text: str) -> str | None:
    """``http`` of ``http://…``, lower case; ``None`` for paths, base64 and ``data:`` URIs."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else None


def is_data_uri(text: str) -> bool:
    """Whether it starts with ``data:``, after any copied white space."""
    return text[:64].lstrip()[:5].lower() == "data:"


def read_data_uri(text: str, limits: ImageLimits) -> bytes:
    """The payload of a ``data:`` URI. Its media type is not believed.

    Raises:
        ImageError: No comma, an empty payload, damaged base64, or over ``max_bytes``.
    """
    head, comma, payload = text.lstrip().partition(",")
    name = f"The data: URI {shorten(text)}"
    if not comma:
        raise ImageError(f'{name} has no comma; it must read "data:image/png;base64,…".')
    if not payload.strip():
        raise ImageError(f"{name} has no payload; give the picture's bytes in base64.")
    if head.split(";")[-1].strip().lower() != "base64":
        return unquote_to_bytes(payload)
    return decode_base64(unquote(payload), name, limits)


def read_base64(text: str, limits: ImageLimits) -> bytes | None:
    """The bytes of a bare base64 string, or ``None`` where the text cannot be one.

    Raises:
        ImageError: It is base64 of base64, the ``repr`` of bytes, or over ``max_bytes``.
    """
    if re.match(r"\s*b['\"][A-Za-z0-9+/]{16}", text):
        raise ImageError(
            f"{shorten(text)} is the repr of a bytes object, not base64. "
            f"Use base64.b64encode(data).decode(), not str(...)."
        )
    squeezed = "".join(text.split())
    if len(squeezed) < _SHORTEST_IMAGE or not _BASE64.fullmatch(squeezed):
        return None
    name = f"The base64 text {shorten(text)}"
    limits.check_bytes(len(squeezed.rstrip("=")) * 3 // 4, name)
    try:
        data = decode_base64(squeezed, name, limits)
    except ImageError:
        return None
    if len(data) >= _SHORTEST_IMAGE and _BASE64.fullmatch(data[:256].decode("latin-1").rstrip("=")):
        raise ImageError(f"{name} is base64 inside base64. Encode the picture's bytes once.")
    return data


def decode_base64(text: str, name: str, limits: ImageLimits) -> bytes:
    """Strict base64, but for white space, the URL alphabet and stripped padding.

    Raises:
        ImageError: Other characters, an impossible length, or over ``max_bytes``.
    """
    squeezed = "".join(text.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
    limits.check_bytes(len(squeezed) * 3 // 4, name)
    try:
        return base64.b64decode(squeezed + "=" * (-len(squeezed) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"{name} is damaged base64 ({error}). Encode the picture again.") from None


def file_url_path(text: str) -> Path:
    """The path of a ``file:`` URL, with its percent escapes undone once.

    Raises:
        ImageError: It names another machine.
    """
    rest = text.strip()[len("file://") :]
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost"):
        raise ImageError(f"{shorten(text)} names the host {host!r}; only files of this machine are opened.")
    path = unquote(slash + path)
    # file:///C:/pictures/mug.jpg: the slash before the drive belongs to the URL.
    return Path(path[1:] if re.match(r"/[A-Za-z]:[/\\]", path) else path)


def existing_path(text: str) -> Path | None:
    """The path that ``text`` names as it stands or after expanding ``~``, if something is there."""
    for spelled in dict.fromkeys((text, os.path.expanduser(text) if text.startswith("~") else text)):
        try:
            if os.path.lexists(spelled):
                return Path(spelled)
        except (OSError, ValueError):  # a NUL, or base64 longer than a name may be
            return None
    return None


def not_found(text: str) -> ImageError:
    """The error for text that is no file, no URL and no base64."""
    hint = ""
    if re.match(r"[A-Za-z]:[\\/]|\\\\", text) and os.name != "nt":
        hint = " It is a Windows path, and this is another machine."
    elif "\x00" in text:
        hint = " A path cannot contain a NUL character."
    elif text.lstrip().startswith("<"):
        hint = f" It is {describe(text[:1024].encode('utf-8', 'replace'))}."
    elif len(text) > 255:
        hint = " It is no valid base64 either."
    return ImageError(
        f"There is no file {shorten(text)}.{hint} Give a path that exists, base64, a data: URI, bytes or a PIL image."
    )
