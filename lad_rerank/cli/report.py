"""The demo as one HTML page that needs nothing but itself: no scripts, no files beside it, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from lad_rerank.cli.demo_result import FIRST_STAGE, NAMES, Choice, DemoResult, MethodResult, QueryResult, notes
from lad_rerank.cli.tables import percent

if TYPE_CHECKING:
    from PIL.Image import Image

_STYLE = Path(__file__).with_name("report.css")

_WHAT = {
    FIRST_STAGE: "CLIP and FAISS, by cosine similarity",
    "vanilla": "by label probability, as the model gives it",
    "lad": "label probability, corrected by attention",
}


def page(result: DemoResult) -> str:
    """Write the page.

    Args:
        result: What the demo did.

    Returns:
        A whole HTML document.
    """
    settings = result.settings
    title = f"Reranking in a shop of {settings.products} products"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body>",
        f"<header><h1>{escape(title)}</h1>",
        f"<p>{len(result.queries)} queries. For each, the first stage found {settings.candidates} products, and a"
        " multimodal LLM was shown them once, in shuffled order. <b>Vanilla</b> takes its answer as it is,"
        " <b>LAD</b> corrects it for the position each product stood at; both read the very same pass.</p></header>",
        f'<div class="overview">{_summary(result)}{_positions(result)}</div>',
        f'<ul class="quiet notes">{"".join(f"<li>{escape(note)}</li>" for note in notes(result))}</ul>',
        _key(),
        *(_group(*group) for group in _groups(result.queries)),
        _footer(result),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(result: DemoResult) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(NAMES[m.method])}</th><td>{percent(m.top1)}</td><td>{m.mrr:.3f}</td>'
        f"<td>{percent(m.consistency)}</td></tr>"
        for m in result.methods
    )
    return (
        f'<section class="panel"><h2>How often the first choice is right, over {result.settings.orders} orders</h2>'
        '<table><thead><tr><th scope="col">method</th><th scope="col">top-1</th><th scope="col">MRR</th>'
        f'<th scope="col">consistency</th></tr></thead><tbody>{rows}</tbody></table></section>'
    )


def _positions(result: DemoResult) -> str:
    """Where first choices stood among the candidates shown: even columns mean no position bias."""
    shown = [m for m in result.methods if m.positions is not None]
    highest = max((share for m in shown for share in m.positions or ()), default=1.0)
    ticks = "".join(f"<span>{i}</span>" for i in range(1, len(shown[0].positions or ()) + 1))
    rows = "".join(_columns(m, highest) for m in shown)
    return (
        '<section class="panel"><h2>Position at which the first choice was shown</h2>'
        f'<div class="positions">{rows}<span></span><div class="ticks" aria-hidden="true">{ticks}</div></div></section>'
    )


def _columns(method: MethodResult, highest: float) -> str:
    shares = method.positions or ()
    told = ", ".join(f"{i}: {percent(share)}" for i, share in enumerate(shares, start=1))
    columns = "".join(
        f'<i style="height:{100 * share / highest:.1f}%" title="position {i}: {percent(share)}"></i>'
        for i, share in enumerate(shares, start=1)
    )
    name = escape(NAMES[method.method])
    return (
        f'<span>{name}</span><div class="columns {method.method}" role="img"'
        f' aria-label="{name}, share of first choices by position: {told}">{columns}</div>'
    )


def _key() -> str:
    return (
        '<ul class="key panel" aria-label="How to read the strips">'
        '<li><span class="swatch ring"></span>a right product</li>'
        '<li><span class="swatch attention"></span>attention evidence</li>'
        '<li><span class="swatch label"></span>label probability</li>'
        '<li><span class="swatch final"></span>LAD score</li>'
        "<li>All in percent over the candidates of a query; the best stands first.</li></ul>"
    )


def _footer(result: DemoResult) -> str:
    settings = result.settings
    command = f"lad-rerank demo --products {settings.products} --queries {settings.queries} --seed {settings.seed}"
    return (
        f'<footer class="quiet"><p>Made by <code>{command}</code> in {result.seconds:.0f} seconds: '
        f"{1000 * result.search_seconds:.1f} ms per query for the first stage, "
        f"{1000 * result.rerank_seconds:.0f} ms for one pass of the reranker. The models are tiny, were trained on"
        " rendered products like these, and ship with the package; the products here were held out. They show"
        " that the way works, and say nothing of larger models.</p></footer>"
    )


def _groups(queries: Sequence[QueryResult]) -> Iterable[tuple[str, list[QueryResult], bool]]:
    """Queries by what reranking did to the first choice; the groups where something changed are open."""
    groups: dict[str, list[QueryResult]] = {
        "LAD put a right product first, and the first stage did not": [],
        "The first stage had it right, and LAD does not": [],
        "Right in both; vanilla is wrong": [],
        "Right everywhere": [],
        "Wrong in both, though a right product was found": [],
        "No right product was found": [],
    }
    fixed, broken, bias, right, wrong, missed = groups.values()
    for query in queries:
        before, after = query.right(FIRST_STAGE), query.right("lad")
        if not query.retrieved:
            missed.append(query)
        elif before and after:
            (right if query.right("vanilla") else bias).append(query)
        else:
            (broken if before else fixed if after else wrong).append(query)
    opened = (fixed, broken, bias)
    return [(name, group, any(group is one for one in opened)) for name, group in groups.items() if group]


def _group(name: str, queries: Sequence[QueryResult], opened: bool) -> str:
    body = "".join(_query(query, opened) for query in queries)
    return f"<section><h2>{escape(name)} <small>{len(queries)}</small></h2>{body}</section>"


def _query(query: QueryResult, opened: bool) -> str:
    verdicts = "".join(
        f"<span>{escape(NAMES[method])} {_tick(choice.right)}</span>"
        for method, choice in query.first_choices().items()
    )
    thumbnails = {choice.id: _thumbnail(choice) for choice in query.choices}
    strips = "".join(
        f'<div class="strip"><h3>{escape(NAMES[method])}<small>{escape(_WHAT[method])}</small></h3><ol>'
        + "".join(
            _item(choice, thumbnails[choice.id], method, rank)
            for rank, choice in enumerate(query.ranked(method), start=1)
        )
        + "</ol></div>"
        for method in query.orders
    )
    return (
        f"<details{' open' if opened else ''}><summary><q>{escape(query.query)}</q>"
        f'<span class="verdicts">{verdicts}</span></summary>{strips}</details>'
    )


def _tick(right: bool) -> str:
    return '<b class="ok">✓ right</b>' if right else '<b class="no">✗ wrong</b>'


def _item(choice: Choice, thumbnail: str, method: str, rank: int) -> str:
    mark = ""
    if rank == 1:
        mark = f'<span class="mark {"ok" if choice.right else "no"}">{"✓" if choice.right else "✗"} 1st</span>'
    if method == FIRST_STAGE:
        below = f'<div class="number" title="cosine similarity">{choice.similarity:.2f}</div>'
    elif method == "vanilla":
        below = _bar("label", "label probability", choice.label_probability)
        below += f'<div class="number">shown at {choice.position}</div>'
    else:
        below = _bar("attention", "attention evidence", choice.evidence)
        below += _bar("label", "label probability", choice.label_probability)
        below += _bar("final", "LAD score", choice.score)
    return f'<li{" class=hit" if choice.right else ""}><span class="thumb">{thumbnail}{mark}</span>{below}</li>'


def _bar(kind: str, what: str, share: float) -> str:
    told = f"{100 * share:.0f}"
    return (
        f'<div class="bar" role="img" aria-label="{what} {told} %" title="{what} {told} %">'
        f'<span><i class="{kind}" style="width:{100 * share:.1f}%"></i></span><b>{told}</b></div>'
    )


def _thumbnail(choice: Choice) -> str:
    told = f"{choice.title}{', right' if choice.right else ''}"
    return (
        f'<img src="{data_uri(choice.image)}" alt="{escape(told)}" title="{escape(choice.title)}"'
        f' width="{choice.image.width}" height="{choice.image.height}" loading="lazy">'
    )


def data_uri(image: Image) -> str:
    """A picture as a ``data:`` URI, in JPEG: small, and read everywhere."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=85, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
