"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file beside its place, and move it there when all went well.

    Readers see the old file or the new one, never a part; a failed write leaves the old one. The folder is
    made if missing, and the file gets ordinary permissions (``tempfile`` would keep it to its owner).

    Args:
        path: Where the file shall be.

    Yields:
        Where to write it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())  # a crash must not leave the name without the bytes
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
