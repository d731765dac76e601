"""What an evaluation says, in a sentence for those who read no table."""

from __future__ import annotations

from lad_rerank.evaluation.reports import RowReport, SliceReport

UNBIASED = 5.0
"""RStd, in points, up to which recall hardly depends on the position."""


def verdict(one: SliceReport) -> str | None:
    """How biased the model is as it is, and what the debiased pass does about it.

    Args:
        one: What was measured over one set.

    Returns:
        Two sentences; ``None`` where the model's own answers were not measured.
    """
    vanilla, ours = one.row("vanilla"), one.ours
    if vanilla is None or vanilla.accuracy is None:
        return None
    told = (
        f"{one.name}, {one.n} candidates: as it is, the model's first choice is right in {_percent(vanilla.accuracy)}"
        f" (chance: {_percent(1 / one.n)})"
    )
    told += f"{_positions(vanilla)}{_same(vanilla, one.orders)}."
    if ours is None or ours.accuracy is None:
        return told + " What debiasing does about it is not known: there is no calibration."
    passes = "the same single pass" if ours.passes == 1 else f"{ours.passes:.2f} passes"
    told += f" With {ours.name}, from {passes}, it is right in {_percent(ours.accuracy)}"
    return f"{told}{_positions(ours)}{_same(ours, one.orders)}."


def _positions(row: RowReport) -> str:
    recall = [(share, i) for i, share in enumerate(row.recall_by_position or (), start=1) if share is not None]
    if len(recall) < 2 or row.recall_std is None:
        return ""
    (least, worst), (most, best) = min(recall), max(recall)
    if row.recall_std <= UNBIASED:
        between = "" if _points(least) == _points(most) else f"{_points(least)} to {_percent(most)}, "
        return f" wherever the right one stands ({between}RStd {row.recall_std:.1f})"
    return (
        f", {_percent(most)} where the right one stands at position {best} and {_percent(least)} at position {worst} "
        f"(RStd {row.recall_std:.1f})"
    )


def _same(row: RowReport, orders: int) -> str:
    if row.consistency is None:
        return ""
    return f", and the same in all {orders} orders for {_percent(row.consistency)} of the queries"


def _percent(share: float) -> str:
    return f"{_points(share)} %"


def _points(share: float) -> str:
    return f"{100 * share:.0f}"
