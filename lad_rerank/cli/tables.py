"""Results for people: tables, and numbers as they read best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

BLOCKS = " ▏▎▍▌▋▊▉█"


def table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> None:
    """Print a plain table.

    Args:
        console: Where to.
        titles: One per column.
        rows: Cells as text; nothing in them is markup.
        words: How many columns, from the left, hold words; those of numbers are set flush right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        # In a file or a pipe a line may be as long as it must: folded ids could not be copied.
        console.width = 1000
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(titles):
        shown.add_column(title, justify="left" if i < words else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)


def probability(value: float | None, cells: int = 8) -> str:
    """A probability as a number with a small bar, or a dash."""
    if value is None:
        return "-"
    eighths = round(value * cells * 8)
    bar = "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")
    return f"{value:.3f} {bar:<{cells}}"


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{100 * value:.1f} %"
