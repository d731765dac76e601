"""Files, streams and byte strings to encoded bytes, within a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

from lad_rerank.errors import ImageError
from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.text import shorten

_CHUNK = 1 << 20


def read_path(path: Path, limits: ImageLimits) -> bytes:
    """The bytes of a regular file.

    Raises:
        ImageError: Missing, a dangling link, a directory or device, unreadable, or over ``max_bytes``.
    """
    name = f"The file {shorten(str(path))}"
    try:
        # Before open(): opening a pipe waits for a writer, and /dev/zero never ends.
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{name} is a directory; name one picture in it.")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{name} is a device, pipe or socket, not a regular file.")
        limits.check_bytes(status.st_size, name)
        with path.open("rb") as stream:
            return read_limited(stream, name, limits)
    except FileNotFoundError:
        if path.is_symlink():
            raise ImageError(f"{name} is a link to a file that does not exist; restore its target.") from None
        raise ImageError(f"{name} does not exist. Check the path.") from None
    except PermissionError:
        raise ImageError(f"{name} may not be read by this user; check its permissions.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ImageError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{name} cannot be read: {reason}. Check the path.") from None


def read_stream(stream: IO[Any], limits: ImageLimits) -> bytes:
    """Everything a binary stream holds, from its start; the caller's position is put back.

    Raises:
        ImageError: A text stream, a closed stream, a failing ``read``, or over ``max_bytes``.
    """
    label = getattr(stream, "name", None)
    name = f"The stream {shorten(label) if isinstance(label, str) else type(stream).__name__}"
    try:
        seekable = stream.seekable() if hasattr(stream, "seekable") else hasattr(stream, "seek")
        if not seekable:
            return read_limited(stream, name, limits)
        position = stream.tell()
        stream.seek(0)
        try:
            return read_limited(stream, name, limits)
        finally:
            stream.seek(position)
    except ImageError:
        raise
    except Exception as error:  # any object with a read() may stand here
        raise ImageError(f"{name} cannot be read: {error or type(error).__name__}.") from error


def read_limited(stream: IO[Any], name: str, limits: ImageLimits) -> bytes:
    """Read to the end, but stop as soon as there are more than ``max_bytes``.

    Raises:
        ImageError: Over ``max_bytes``, or ``read`` yields no bytes object.
    """
    parts: list[bytes] = []
    count = 0
    while True:  # a raw stream may give less than it is asked for
        part = stream.read(_CHUNK)
        if not isinstance(part, bytes | bytearray):
            raise ImageError(f"{name} yields {type(part).__name__}, not bytes; open it in binary mode.")
        if not part:
            return b"".join(parts)
        count += len(part)
        limits.check_bytes(count, name)
        parts.append(bytes(part))


def as_path(source: os.PathLike[Any]) -> Path:
    """A path object from anything path-like, with ``~`` expanded."""
    path = Path(os.fsdecode(os.fspath(source)))
    try:
        # As it stands first: a file may really be called "~mug.jpg".
        return path if path.exists() or not str(path).startswith("~") else path.expanduser()
    except (OSError, RuntimeError, ValueError):
        return path
