"""An evaluation as tables in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lad_rerank.evaluation.reports import Evaluation, Interval, RowReport, SliceReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """One column of the table, the same in the terminal and on the page.

    Attributes:
        title: Heading.
        cell: What stands in it.
        told: What it means, in a few words.
        spared: Which column a narrow terminal does without first: the one with the largest number.
    """

    title: str
    cell: Callable[[RowReport], str]
    told: str
    spared: int = 0


def percent(value: float | None) -> str:
    """A share in points without the sign, or a dash."""
    return "-" if value is None else f"{100 * value:.1f}"


def interval(value: Interval | None) -> str:
    """An interval of shares in points, or a dash."""
    return "-" if value is None else f"{100 * value[0]:.1f}–{100 * value[1]:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _accuracy(row: RowReport) -> str:
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.1f}"
    return percent(row.accuracy) + spread


def seconds(value: float | None) -> str:
    """Seconds, in milliseconds below one, or a dash."""
    if value is None or value == 0:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def megabytes(value: int | None) -> str:
    """Bytes in MB, or a dash."""
    return "-" if not value else f"{value / 1e6:.0f} MB"


COLUMNS: Sequence[Column] = (
    Column("accuracy", _accuracy, "right first choices in %, mean ± standard deviation over orders"),
    Column("95 %", lambda r: interval(r.accuracy_interval), "bootstrap interval of the accuracy over queries", 3),
    Column("RStd", lambda r: _number(r.recall_std, 1), "standard deviation of recall over target positions, in points"),
    Column("Cons.", lambda r: percent(r.consistency), "Consistency: same first choice in all orders, in %"),
    Column(
        "95 %", lambda r: interval(r.consistency_interval), "bootstrap interval of the Consistency over queries", 10
    ),
    Column("tau", lambda r: _number(r.kendall_tau, 2), "Kendall's tau between the rankings of two orders", 6),
    Column("R@3", lambda r: percent(r.recall_at.get(3)), "Recall@3 in %", 8),
    Column("R@5", lambda r: percent(r.recall_at.get(5)), "Recall@5 in %", 11),
    Column("MRR", lambda r: _number(r.mrr, 3), "mean reciprocal rank", 5),
    Column(
        "nDCG@10", lambda r: _number(r.ndcg_at.get(10), 3), "normalised discounted cumulative gain of the first 10", 7
    ),
    Column(
        "ECE", lambda r: percent(r.ece), "expected calibration error of the first choice's probability, in points", 4
    ),
    Column("passes", lambda r: _number(r.passes, 2).removesuffix(".00"), "forward passes per query"),
    Column("time", lambda r: seconds(r.seconds), "per query", 2),
    Column("memory", lambda r: megabytes(r.peak_bytes), "peak", 9),
)
_NO_ANSWER = Column("no answer", lambda r: percent(r.no_answer), "passes without a ranking, each a miss, in %")
_NONE = Column(
    "AUROC", lambda r: percent(r.none_auroc), "how well the first choice's probability tells that something is right", 1
)


def columns(one: SliceReport) -> list[Column]:
    """The columns that say something of these rows: times that nobody measured, say, are left out."""
    shown = [*COLUMNS]
    if any(row.no_answer for row in one.rows):
        shown.append(_NO_ANSWER)
    shown.append(_NONE)
    return [column for column in shown if any(column.cell(row) != "-" for row in one.rows)]


def facts(one: SliceReport) -> list[str]:
    """What must be known to read the rows, one sentence each."""
    said = [f"{one.instances} queries in {one.orders} {'order' if one.orders == 1 else 'orders'}"]
    if one.not_retrieved:
        found = one.instances - one.not_retrieved - one.unanswerable
        share = found / max(1, one.instances - one.unanswerable)
        said.append(
            f"target not retrieved by the first stage: {one.not_retrieved}, a miss for every row "
            f"(at most {percent(share)} % can be right)"
        )
    if one.unanswerable:
        said.append(f"without a right answer: {one.unanswerable}, counted for the AUROC only")
    if one.confidence is not None:
        said.append(
            f"Ranking.confident: {percent(one.confidence.present_confident)} % of the lists with a right answer, not "
            f"{percent(one.confidence.absent_unsure)} % of those without (AUROC {percent(one.confidence.auroc)})"
        )
    return said


def show(console: Console, evaluation: Evaluation) -> None:
    """Print an evaluation: one table for each set, with digests and what was left out.

    Args:
        console: Where to.
        evaluation: What was measured.
    """
    from rich.text import Text

    if not console.is_terminal:
        # In a file or a pipe a line may be as long as it must.
        console.width = max(console.width, 1000)
    console.print(Text(f"{evaluation.model}, {evaluation.created}", style="bold"))
    for one in evaluation.slices:
        console.print()
        console.print(Text(f"{one.name}, {one.n} candidates", style="bold"), Text(f"({'; '.join(facts(one))})"))
        shown = _fitting(console, one)
        console.print(_table(one, shown))
        if spared := [column.title for column in columns(one) if column not in shown]:
            console.print(Text(f"no room here for {', '.join(dict.fromkeys(spared))}", style="dim"))
        for name, reason in one.left_out.items():
            console.print(Text(f"left out: {name}. {reason}", style="dim"))
        console.print(Text(f"set {one.set_digest}, calibration {one.calibration_digest or 'none'}", style="dim"))


def _fitting(console: Console, one: SliceReport) -> list[Column]:
    """The columns for which there is room: a folded table can hardly be read."""
    from rich.measure import Measurement

    shown = columns(one)
    unbounded = console.options.update(max_width=10_000)
    while (
        any(c.spared for c in shown) and Measurement.get(console, unbounded, _table(one, shown)).maximum > console.width
    ):
        shown.remove(max(shown, key=lambda column: column.spared))
    return shown


def _table(one: SliceReport, shown: Sequence[Column]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("row", overflow="fold")
    for column in shown:
        table.add_column(column.title, justify="right", overflow="fold")
    for row in one.rows:
        style = "bold" if row is one.ours else ""
        table.add_row(*(Text(cell, style=style) for cell in (row.name, *(column.cell(row) for column in shown))))
    return table
