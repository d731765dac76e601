"""Progress bars on stderr, where a person sees them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int], None]
"""Called with (done, in all)."""

Bar: TypeAlias = Callable[[str], AbstractContextManager[Report]]
"""Called with a title."""


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """Show a progress bar on stderr; nothing where stderr is no terminal.

    Args:
        title: What is being done.

    Yields:
        A function to call with (done, in all).
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def note(text: str) -> None:
    """Say on stderr what takes a moment; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
