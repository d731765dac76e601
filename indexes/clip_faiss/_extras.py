"""The two libraries of the extra ``index``, imported where they are needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_HINT = (
    'The first stage needs {name}: pip install "lad-rerank[index]" '
    '(or "lad-rerank[index-gpu]" in its place, never both).'
)


def _import(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        # Chained: a broken installation must not read like a missing one.
        raise ImportError(f"{_HINT.format(name=name)} Importing it failed with: {error}") from error


def faiss() -> ModuleType:
    """The module ``faiss``.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    return _import("faiss", "FAISS")


def open_clip() -> ModuleType:
    """The module ``open_clip``.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    return _import("open_clip", "open_clip")


@contextmanager
def root_logger_left_alone() -> Iterator[None]:
    """Keep open_clip, which logs through the root logger, from configuring that logger for everyone."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
