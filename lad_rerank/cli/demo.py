"""``lad-rerank demo``: the whole way on what ships with the package, and what reranking changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.demo_result import NAMES, DemoResult, DemoSettings, examples, notes
from lad_rerank.cli.output import command
from lad_rerank.cli.progress import bar

if TYPE_CHECKING:
    from rich.console import Console


def demo(
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="HTML page to write: every query before and after.")
    ] = None,
    products: Annotated[int, typer.Option(min=8, max=100_000, help="Products in the shop.")] = 600,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="Queries to ask.")] = 48,
    seed: Annotated[int, typer.Option(help="Chooses products, queries and orders.")] = 0,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Index a shop of rendered products, search it, rerank, and show what changes.

    Everything is real and ships with the package: a tiny CLIP and FAISS find 8 products per query, a tiny
    Qwen2.5-VL ranks them in one pass, and LAD corrects its position bias. No network, no GPU.
    """
    with command(as_json=as_json, debug=debug) as output:
        from lad_rerank.cli.demo_run import run_demo

        result = run_demo(DemoSettings(products=products, queries=queries, seed=seed), bar)
        if report is not None:
            from lad_rerank.cli.report import page

            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(page(result), encoding="utf-8")
        output.emit(_document(result, report), lambda console: _show(console, result, report))


def _document(result: DemoResult, report: Path | None) -> dict[str, Any]:
    settings = result.settings
    return {
        "products": settings.products,
        "queries": len(result.queries),
        "candidates": settings.candidates,
        "orders": settings.orders,
        "seed": settings.seed,
        "retrieved": result.retrieved,
        "methods": [
            {"method": m.method, "top1": m.top1, "mrr": m.mrr, "consistency": m.consistency} for m in result.methods
        ],
        "examples": [
            {
                "query": query.query,
                **{m: {"title": c.title, "right": c.right} for m, c in query.first_choices().items()},
            }
            for query in examples(result)
        ],
        "seconds": {
            "total": round(result.seconds, 2),
            "first_stage_per_query": round(result.search_seconds, 5),
            "rerank_per_query": round(result.rerank_seconds, 5),
        },
        "report": None if report is None else str(report),
    }


def _show(console: Console, result: DemoResult, report: Path | None) -> None:
    from lad_rerank.cli.tables import percent, table

    settings = result.settings
    console.print(
        f"{settings.products} products, {len(result.queries)} queries, the {settings.candidates} nearest of each"
        f" shown in {settings.orders} shuffled orders.",
        soft_wrap=True,
    )
    table(
        console,
        ("method", "top-1", "MRR", "consistency"),
        ((NAMES[m.method], percent(m.top1), f"{m.mrr:.3f}", percent(m.consistency)) for m in result.methods),
    )
    for note in notes(result):
        console.print(note, soft_wrap=True)
    for query in examples(result):
        console.print(f'\n"{query.query}"', soft_wrap=True)
        for method, choice in query.first_choices().items():
            console.print(f"  {'✓' if choice.right else '✗'} {NAMES[method]:<11} {choice.title}", soft_wrap=True)
    console.print(
        f"\nTime per query: first stage {1000 * result.search_seconds:.1f} ms, reranking"
        f" {1000 * result.rerank_seconds:.0f} ms; {result.seconds:.0f} s in all.",
        soft_wrap=True,
    )
    if report is not None:
        console.print(f"Every query, before and after: {report}", soft_wrap=True)
    else:
        console.print("See every query with: lad-rerank demo --report demo.html", soft_wrap=True)
