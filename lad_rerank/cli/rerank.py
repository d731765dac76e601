"""``lad-rerank rerank``: rank the images of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import NothingRankedError, command
from lad_rerank.cli.unfolding import unfolded

if TYPE_CHECKING:
    from rich.console import Console

    from lad_rerank.records import FailedCandidate, Ranking


@unfolded
def rerank(
    query: options.Query,
    images: Annotated[list[str], typer.Argument(help="Files; URLs with --allow-urls.", metavar="IMAGE")],
    *,
    model: options.Model = "bundled",
    method: options.Method = "lad",
    top_n: options.TopN = None,
    calibration: options.CalibrationFile = None,
    loading: options.Loading,
    allow_urls: options.AllowUrls = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Rank images for a query in one forward pass, the best first.

    An image that cannot be opened is named, and the others are ranked.
    """
    with command(as_json=as_json, debug=debug) as output:
        from lad_rerank.cli.models import load_reranker
        from lad_rerank.records import Candidate

        reranker = load_reranker(model, loading, method=method, calibration=calibration, allow_urls=allow_urls)
        ranking = reranker.rerank(query, [Candidate(image=image, id=image) for image in images], top_n)
        refuse_empty(ranking)
        output.emit(_document(ranking), lambda console: _show(console, ranking))


def refuse_empty(ranking: Ranking) -> None:
    """Make an error of a ranking that ranks nothing.

    Raises:
        NothingRankedError: No candidate could be opened; says why the first could not.
    """
    if not ranking:
        told = f" {ranking.failed[0].id}: {ranking.failed[0].error}" if ranking.failed else ""
        raise NothingRankedError(f"None of {len(ranking.failed)} images could be ranked.{told}")


def failed_documents(failed: tuple[FailedCandidate, ...]) -> list[dict[str, Any]]:
    """What ``--json`` says of candidates that failed."""
    return [{"index": f.index, "id": f.id, "error": f.error} for f in failed]


def _document(ranking: Ranking) -> dict[str, Any]:
    return {
        "query": ranking.query,
        "model": ranking.model,
        "method": ranking.method,
        "passes": ranking.passes,
        "results": [
            {"rank": hit.rank, "index": hit.index, "id": hit.id, "score": hit.score, "evidence": hit.evidence}
            for hit in ranking
        ],
        "failed": failed_documents(ranking.failed),
    }


def _show(console: Console, ranking: Ranking) -> None:
    from lad_rerank.cli.tables import probability, table

    table(
        console,
        ("", "image", "score", "attention"),
        ((str(hit.rank), hit.id, probability(hit.score), probability(hit.evidence)) for hit in ranking),
        words=4,
    )
