"""A progress bar on stderr for people, a callback for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = "bool | Callable[[int, int], None] | None"
"""``None``: a bar where stderr is a terminal. ``True``/``False``: always/never. Or called with (done, total)."""


@contextmanager
def reporting(progress: Progress, total: int, title: str) -> Iterator[Callable[[int], None]]:
    """Report how much is done.

    Args:
        progress: What the caller asked for.
        total: Number of things to do.
        title: Left of the bar.

    Yields:
        A function to call with the number of things done so far.
    """
    if callable(progress):
        called = progress
        yield lambda done: called(done, total)
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
