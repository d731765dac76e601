"""An evaluation as one HTML page that needs nothing but itself: no scripts, no files beside it, no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lad_rerank.evaluation import plots
from lad_rerank.evaluation.reports import Evaluation, SliceReport, to_document
from lad_rerank.evaluation.tables import columns, facts, percent
from lad_rerank.files import replacing

_STYLE = Path(__file__).with_name("report.css")


def write(evaluation: Evaluation, path: Path) -> None:
    """Write the page to a file, which appears whole or not at all.

    Args:
        evaluation: What was measured.
        path: Where to.

    Raises:
        ImportError: The extra ``plots`` is missing.
        OSError: The file cannot be written.
    """
    text = page(evaluation)
    with replacing(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def page(evaluation: Evaluation) -> str:
    """The page as text.

    Args:
        evaluation: What was measured.

    Returns:
        A whole HTML document.

    Raises:
        ImportError: The extra ``plots`` is missing.
    """
    title = f"How {evaluation.model} ranks"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="quiet">{escape(evaluation.created)}</p></header>',
        _overview(evaluation),
        _counts(evaluation.slices),
        *(_slice(one, str(i)) for i, one in enumerate(evaluation.slices, start=1)),
        _settings(evaluation),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _overview(evaluation: Evaluation) -> str:
    """What came out: vanilla against ours, one line for each set."""
    rows = []
    for one in evaluation.slices:
        vanilla, ours = one.row("vanilla"), one.ours
        if vanilla is None or ours is None:
            continue
        cells = (
            *(percent(value) for value in (vanilla.accuracy, vanilla.consistency)),
            *(f"<b>{percent(value)}</b>" for value in (ours.accuracy, ours.consistency)),
        )
        name = f'<tr><th scope="row">{escape(one.name)}</th><td>{one.n}</td><td>{escape(ours.name)}</td>'
        rows.append(name + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    if not rows:
        return ""
    titles = ("set", "candidates", "ours", "vanilla: right, %", "same in all orders, %", "ours: right, %")
    head = "".join(f'<th scope="col">{title}</th>' for title in (*titles, "same in all orders, %"))
    return (
        '<section><h2>First choices, vanilla against ours</h2><div class="scroll narrow"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _counts(slices: Sequence[SliceReport]) -> str:
    """Accuracy against the number of candidates, for each name that occurs with several."""
    named: dict[str, list[SliceReport]] = {}
    for one in slices:
        named.setdefault(one.name, []).append(one)
    pictures = [
        picture
        for i, (name, own) in enumerate(named.items(), start=1)
        if (picture := plots.by_count(name, own, str(i))) is not None
    ]
    if not pictures:
        return ""
    figures = "".join(_figure(picture, "") for picture in pictures)
    return (
        f'<section><h2>Accuracy against the number of candidates</h2><div class="pictures two">{figures}</div>'
        '<p class="quiet">Bands are 95 % intervals over queries. Dotted: one right candidate, chosen by chance.</p>'
        "</section>"
    )


def _slice(one: SliceReport, key: str) -> str:
    pictures = [
        (plots.confusion(one, key), "What is chosen, for each position of the target, in %. A diagonal is right."),
        (plots.recall(one, key), "How often the target is found, by where it stood. Level is fair."),
        (plots.by_cost(one, key), "What more passes buy. Bars are 95 % intervals over queries."),
    ]
    figures = "".join(_figure(picture, told) for picture, told in pictures if picture is not None)
    left_out = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>" for name, why in one.left_out.items())
    return (
        f"<section><h2>{escape(one.name)}, {one.n} candidates <small>{escape('; '.join(facts(one)))}</small></h2>"
        f'<div class="pictures">{figures}</div>{_table(one)}'
        + (f'<div class="quiet">Left out: <ul>{left_out}</ul></div>' if left_out else "")
        + f'<p class="quiet">Set <code>{escape(one.set_digest)}</code>, calibration samples '
        f"<code>{escape(one.calibration_digest or 'none')}</code>.</p></section>"
    )


def _figure(picture: str, told: str) -> str:
    caption = f"<figcaption>{escape(told)}</figcaption>" if told else ""
    return f"<figure>{picture}{caption}</figure>"


def _table(one: SliceReport) -> str:
    shown = columns(one)
    head = "".join(f'<th scope="col" title="{escape(column.told)}">{escape(column.title)}</th>' for column in shown)
    ours = one.ours
    rows = "".join(
        f'<tr{" class=ours" if row is ours else ""}><th scope="row">{escape(row.name)}</th>'
        + "".join(f"<td>{escape(column.cell(row))}</td>" for column in shown)
        + "</tr>"
        for row in one.rows
    )
    legend = "".join(f"<dt>{escape(column.title)}</dt><dd>{escape(column.told)}</dd>" for column in shown)
    return (
        '<div class="scroll"><table><thead><tr><th scope="col">row</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<details><summary>What the columns say</summary><dl>{legend}</dl></details>"
    )


def _settings(evaluation: Evaluation) -> str:
    rows = {"model": evaluation.model, "created": evaluation.created}
    rows |= {name: _told(value) for name, value in evaluation.settings.items()}
    body = "".join(f'<tr><th scope="row">{escape(str(n))}</th><td>{escape(v)}</td></tr>' for n, v in rows.items())
    digests = "".join(
        f'<tr><th scope="row">{escape(one.name)}, {one.n} candidates</th><td><code>{escape(one.set_digest)}</code></td>'
        f"<td><code>{escape(one.calibration_digest or 'none')}</code></td></tr>"
        for one in evaluation.slices
    )
    return (
        f'<footer><h2>Settings</h2><div class="scroll"><table class="words"><tbody>{body}</tbody></table></div>'
        '<h2>Digests</h2><div class="scroll"><table class="words"><thead><tr><th scope="col">set</th>'
        '<th scope="col">instances</th><th scope="col">calibration samples</th></tr></thead>'
        f"<tbody>{digests}</tbody></table></div></footer>"
    )


def _told(value: object) -> str:
    """A setting as text."""
    if isinstance(value, str):
        return value
    plain = to_document(Evaluation("", {"value": value}, "", ()))["settings"]["value"]
    if isinstance(plain, list) and not any(isinstance(item, (list, Mapping)) for item in plain):
        return ", ".join(map(str, plain))
    return json.dumps(plain, ensure_ascii=False)
