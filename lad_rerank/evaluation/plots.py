"""Pictures of an evaluation as SVG that lies inside a page and takes its colours from the page's style."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lad_rerank.evaluation.reports import RowReport, SliceReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Mapping[str, str] = {
    "ink": "#010203",
    "quiet": "#040506",
    "line": "#070809",
    "strong": "#0a0b0c",
    "on-strong": "#0d0e0f",
    "vanilla": "#101112",
    "lad": "#131415",
    "ours": "#161718",
    "other": "#191a1b",
    "card": "#1c1d1e",
}
"""Colours that stand for the page's: each is replaced by the style's variable of that name."""

STYLES: Mapping[str, tuple[str, str, str]] = {
    "vanilla": ("vanilla", "s", ":"),
    "lad": ("lad", "^", "--"),
    "auto": ("ours", "o", "-"),
}
"""Colour, marker and line of the rows that are looked at first; told apart without colour too."""

SIZE = (4.2, 2.8)
"""Inches of a picture with axes: about as wide as it is shown, so that its letters are as large as they say."""

CELL_TEXT = 12
"""Up to so many positions, cells of a matrix hold their number."""


def confusion(one: SliceReport, key: str) -> str | None:
    """Vanilla and ours side by side (paper, Figure 1); ``None`` where neither has a matrix.

    Args:
        one: The set.
        key: Names the set among those of the page.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    rows = [row for row in (one.row("vanilla"), one.ours) if row is not None and row.confusion is not None]
    if not rows:
        return None
    n = len(rows[0].confusion or ())
    side = 2.5 if n <= 8 else 3.0
    figure = _figure(side * len(rows) + 0.3, side + 0.35)
    for i, row in enumerate(rows, start=1):
        _matrix(figure.add_subplot(1, len(rows), i), row, n)
    told = "; ".join(
        f"{row.name}: recall by position {', '.join(_points(value) for value in row.recall_by_position or ())}"
        for row in rows
    )
    return _svg(figure, f"confusion-{key}", f"Target position by chosen position, in percent. {told}.")


def _matrix(axes: Axes, row: RowReport, n: int) -> None:
    from matplotlib.patches import Rectangle

    for i, line in enumerate(row.confusion or ()):
        for j, share in enumerate(line):
            if not share:
                continue
            axes.add_patch(
                Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, facecolor=COLOURS["strong"], alpha=share, linewidth=0)
            )
            if n <= CELL_TEXT and share >= 0.005:
                colour = "on-strong" if share > 0.75 else "ink"
                _text(axes, j, i, f"{100 * share:.0f}", colour, size=9 if n <= 8 else 7, ha="center", va="center")
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    step = 1 if n <= CELL_TEXT else 5
    ticks = [*range(0, n, step)]
    axes.set_xticks(ticks, [str(t + 1) for t in ticks])
    axes.set_yticks(ticks, [str(t + 1) for t in ticks])
    _dress(axes, "chosen position", "target's position", grid=False)
    spread = "" if row.recall_std is None else f", RStd {row.recall_std:.1f}"
    axes.set_title(f"{row.name}{spread}", color=COLOURS["ink"], fontsize=11, loc="left", parse_math=False)
    axes.spines[:].set_visible(False)


def recall(one: SliceReport, key: str) -> str | None:
    """Recall for each position of the target: vanilla, LAD, ours; ``None`` where no row has it.

    Args:
        one: The set.
        key: Names the set among those of the page.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    rows = [row for row in map(one.row, STYLES) if row is not None and row.recall_by_position is not None]
    if not rows:
        return None
    figure = _figure(*SIZE)
    axes = figure.add_subplot()
    ends = []
    for row in rows:
        colour, marker, line = STYLES[row.name]
        values = [float("nan") if v is None else 100 * v for v in row.recall_by_position or ()]
        places = range(1, len(values) + 1)
        axes.plot(places, values, color=COLOURS[colour], marker=marker, linestyle=line, markersize=5, linewidth=1.8)
        known = [v for v in values if v == v]
        ends.append((len(values), known[-1] if known else 0.0, row.name, colour))
    n = max(len(row.recall_by_position or ()) for row in rows)
    axes.set(ylim=(-3, 103), xlim=(0.7, n + 0.3))
    ticks = range(1, n + 1, 1 if n <= CELL_TEXT else 5)
    axes.set_xticks(list(ticks), [str(t) for t in ticks])
    _dress(axes, "target's position", "recall, %")
    _labels(axes, ends)
    told = "; ".join(f"{row.name} {', '.join(_points(v) for v in row.recall_by_position or ())}" for row in rows)
    return _svg(figure, f"recall-{key}", f"Recall by target position, in percent: {told}.")


def by_cost(one: SliceReport, key: str) -> str | None:
    """Accuracy against passes per query, with intervals; ``None`` where no row has an accuracy.

    Args:
        one: The set.
        key: Names the set among those of the page.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    rows = [row for row in one.rows if row.accuracy is not None and row.passes > 0]
    if not rows:
        return None
    figure = _figure(*SIZE)
    axes = figure.add_subplot()
    ends = []
    for row in rows:
        assert row.accuracy is not None
        colour, marker, _ = STYLES.get(row.name, ("other", "o", ""))
        y, (low, high) = 100 * row.accuracy, row.accuracy_interval or (row.accuracy, row.accuracy)
        front = 3 if row.name in STYLES else 2
        axes.plot([row.passes] * 2, [100 * low, 100 * high], color=COLOURS[colour], linewidth=1.2, zorder=front)
        axes.plot([row.passes], [y], color=COLOURS[colour], marker=marker, markersize=6, zorder=front)
        # What takes one pass crowds in one place; of those only the best known are named.
        if row.name in STYLES or row.passes > 1:
            ends.append((row.passes, y, row.name, colour if row.name in STYLES else "quiet"))
    most = max(2.0, *(row.passes for row in rows))
    axes.set_xscale("log")
    axes.set_xlim(0.85, most * 1.3)
    ticks = [t for t in (1, 2, 4, 8, 16, 32, 64, 128) if t <= most]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(-3, 103)
    _dress(axes, "passes per query", "accuracy, %")
    _labels(axes, ends, edge=most * 1.3)
    told = "; ".join(f"{row.name} {_points(row.accuracy)} with {row.passes:.3g}" for row in rows)
    return _svg(figure, f"cost-{key}", f"Accuracy in percent against passes per query: {told}.")


def by_count(name: str, slices: Sequence[SliceReport], key: str) -> str | None:
    """Accuracy against the number of candidates, over sets that differ in it; ``None`` for fewer than two.

    Args:
        name: What the sets have in common.
        slices: One for each number of candidates.
        key: Names the picture among those of the page.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    ordered = sorted(slices, key=lambda one: one.n)
    if len({one.n for one in ordered}) < 2:
        return None
    figure = _figure(*SIZE)
    axes = figure.add_subplot()
    ends, told = [], []
    for row_name, (colour, marker, line) in STYLES.items():
        found = [(one.n, row) for one in ordered if (row := one.row(row_name)) is not None and row.accuracy is not None]
        if not found:
            continue
        places = [n for n, _ in found]
        values = [100 * (row.accuracy or 0.0) for _, row in found]
        bounds = [row.accuracy_interval or (0.0, 1.0) for _, row in found]
        axes.fill_between(
            places,
            [100 * low for low, _ in bounds],
            [100 * high for _, high in bounds],
            color=COLOURS[colour],
            alpha=0.13,
            linewidth=0,
        )
        axes.plot(places, values, color=COLOURS[colour], marker=marker, linestyle=line, markersize=5, linewidth=1.8)
        ends.append((places[-1], values[-1], row_name, colour))
        told.append(f"{row_name} {', '.join(f'{v:.0f} at {n}' for n, v in zip(places, values, strict=True))}")
    counts = sorted({one.n for one in ordered})
    axes.plot(counts, [100 / n for n in counts], color=COLOURS["quiet"], linewidth=1, linestyle=(0, (1, 3)))
    ends.append((counts[-1], 100 / counts[-1], "chance", "quiet"))
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_ylim(-3, 103)
    _dress(axes, "candidates", "accuracy, %")
    axes.set_title(name, color=COLOURS["ink"], fontsize=11, loc="left", parse_math=False)
    _labels(axes, ends)
    return _svg(figure, f"count-{key}", f"Accuracy in percent against candidates: {'; '.join(told)}.")


def _figure(width: float, height: float) -> Figure:
    """An empty figure without a window, in inches.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Pictures of an evaluation need matplotlib: pip install "lad-rerank[plots]"') from error
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _dress(axes: Axes, x: str, y: str, *, grid: bool = True) -> None:
    axes.set_facecolor("none")
    axes.set_xlabel(x, color=COLOURS["quiet"], fontsize=9)
    axes.set_ylabel(y, color=COLOURS["quiet"], fontsize=9)
    axes.tick_params(length=0, labelsize=9, labelcolor=COLOURS["quiet"])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])
    if grid:
        axes.grid(axis="y", color=COLOURS["line"], linewidth=0.8)
        axes.set_axisbelow(True)


def _text(axes: Axes, x: float, y: float, text: str, colour: str, **how: Any) -> None:
    # Names come from users: a dollar sign is no formula.
    axes.text(x, y, text, color=COLOURS[colour], parse_math=False, **how)


def _labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]], edge: float | None = None) -> None:
    """Names to the right of points, pushed apart where they would cover each other.

    Args:
        axes: With percent upwards.
        ends: x, y, name, colour of each point.
        edge: Where all names stand, each with a line from its point; right behind the points by default.
    """
    ordered = sorted(ends, key=lambda end: end[1])
    gap = min(8.0 if edge is None else 7.0, 106 / max(1, len(ordered)))
    places: list[float] = []
    for _, y, _, _ in ordered:
        places.append(max(y, places[-1] + gap) if places else y)
    # What was pushed over the top comes down again, and what is under it.
    top = 101.0
    for i in reversed(range(len(places))):
        places[i] = min(places[i], top)
        top = places[i] - gap
    for (x, y, name, colour), place in zip(ordered, places, strict=True):
        if edge is not None:
            axes.plot([x, edge], [y, place], color=COLOURS["other"], linewidth=0.5, zorder=1, clip_on=False)
        axes.annotate(
            name,
            (x if edge is None else edge, place),
            xytext=(8 if edge is None else 3, 0),
            textcoords="offset points",
            color=COLOURS[colour],
            fontsize=9 if edge is None else 8,
            va="center",
            parse_math=False,
            annotation_clip=False,
        )


def _points(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.0f}"


def _svg(figure: Figure, prefix: str, told: str) -> str:
    """The figure as an ``<svg>`` element for a page.

    Names inside it get a prefix, as all pictures of a page share one space of names; colours become the
    style's variables; what only a file of its own needs is taken out.
    """
    from html import escape

    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(told)}"', 1).strip()
