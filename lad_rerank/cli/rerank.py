"""``lad-rerank rerank``: rank the images and texts of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import NothingRankedError, command
from lad_rerank.cli.unfolding import unfolded

if TYPE_CHECKING:
    from rich.console import Console

    from lad_rerank.records import FailedCandidate, RankedCandidate, Ranking

SHOWN_LETTERS = 72
"""Of a text in the table for people."""


@unfolded
def rerank(
    query: options.Query,
    images: Annotated[
        list[str] | None, typer.Argument(help="Files; URLs with --allow-urls.", metavar="IMAGE", show_default=False)
    ] = None,
    *,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="A text to rank; give it once for each, beside images or without.", metavar="TEXT"),
    ] = None,
    model: options.Model = "bundled",
    method: options.Method = "auto",
    looking: options.Looking,
    top_n: options.TopN = None,
    calibration: options.CalibrationFile = None,
    loading: options.Loading,
    allow_urls: options.AllowUrls = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Rank images, texts or both for a query in one forward pass, the best first.

    An image that cannot be opened is named, and the others are ranked.
    """
    images, texts = images or [], text or []
    if not images and not texts:
        raise typer.BadParameter("There is nothing to rank; give images, texts with --text, or both.")
    if not all(one.strip() for one in texts):
        raise typer.BadParameter("A --text is blank.")
    looked = looking.arguments(method)
    with command(as_json=as_json, debug=debug) as output:
        from lad_rerank.cli.models import load_reranker
        from lad_rerank.records import Candidate

        reranker = load_reranker(model, loading, method=method, calibration=calibration, allow_urls=allow_urls)
        candidates = [Candidate(image, image) for image in images] + [Candidate(id=text, text=text) for text in texts]
        ranking = reranker.rerank(query, candidates, top_n, **looked)
        refuse_empty(ranking, "candidates" if texts else "images")
        output.emit(_document(ranking), lambda console: _show(console, ranking, len(images)))


def refuse_empty(ranking: Ranking, what: str = "images") -> None:
    """Make an error of a ranking that ranks nothing.

    Args:
        ranking: The ranking.
        what: What was to be ranked.

    Raises:
        NothingRankedError: No candidate could be opened; says why the first could not.
    """
    if not ranking:
        told = f" {ranking.failed[0].id}: {ranking.failed[0].error}" if ranking.failed else ""
        raise NothingRankedError(f"None of {len(ranking.failed)} {what} could be ranked.{told}")


def failed_documents(failed: tuple[FailedCandidate, ...]) -> list[dict[str, Any]]:
    """What ``--json`` says of candidates that failed."""
    return [{"index": f.index, "id": f.id, "error": f.error} for f in failed]


def notes(ranking: Ranking) -> list[str]:
    """What people must know beside the table, a line each.

    Args:
        ranking: The ranking.
    """
    told = []
    if ranking.confident is False:
        told.append(
            f"Perhaps none of these: what was looked for does not seem to be among them"
            f" (confidence {ranking.confidence:.2f}, below 0.5)."
        )
    if cut := [hit.cut for hit in ranking if hit.cut]:
        what = "1 text was" if len(cut) == 1 else f"{len(cut)} texts were"
        told.append(f"{what} cut at the end by {', '.join(map(str, cut))} tokens; --max-text-tokens shows more.")
    if ranking.passes > 1:
        told.append(f"{ranking.passes} passes.")
    return told


def _document(ranking: Ranking) -> dict[str, Any]:
    return {
        "query": ranking.query,
        "model": ranking.model,
        "method": ranking.method,
        "passes": ranking.passes,
        "confidence": ranking.confidence,
        "confident": ranking.confident,
        "results": [
            {
                "rank": hit.rank,
                "index": hit.index,
                "id": hit.id,
                "score": hit.score,
                "evidence": hit.evidence,
                "cut": hit.cut,
            }
            for hit in ranking
        ],
        "failed": failed_documents(ranking.failed),
    }


def _show(console: Console, ranking: Ranking, images: int) -> None:
    """Print the table; the first ``images`` candidates are images, the others texts."""
    from lad_rerank.cli.tables import probability, table

    def name(hit: RankedCandidate) -> str:
        line = hit.id if hit.index < images else " ".join(hit.id.split())
        return line if hit.index < images or len(line) <= SHOWN_LETTERS else f"{line[: SHOWN_LETTERS - 1]}…"

    kinds = {hit.index < images for hit in ranking}
    table(
        console,
        ("", "candidate" if len(kinds) > 1 else "image" if True in kinds else "text", "score", "attention"),
        ((str(hit.rank), name(hit), probability(hit.score), probability(hit.evidence)) for hit in ranking),
        words=4,
    )
    for line in notes(ranking):
        console.print(line, soft_wrap=True)
