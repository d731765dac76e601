"""``lad-rerank search``: first stage, then the reranker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import NothingRankedError, command
from lad_rerank.cli.rerank import failed_documents, notes, refuse_empty
from lad_rerank.cli.unfolding import unfolded

if TYPE_CHECKING:
    from rich.console import Console

    from clip_faiss import ClipFaissIndex, Hit
    from lad_rerank.records import RankedCandidate, Ranking


@unfolded
def search(
    index: Annotated[Path, typer.Argument(help="Folder that `lad-rerank index` wrote.", metavar="INDEX")],
    query: options.Query,
    *,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="How many the first stage finds.")] = 8,
    rerank: Annotated[bool, typer.Option("--rerank/--no-rerank", help="Rerank what the first stage finds.")] = True,
    model: options.Model = "bundled",
    method: options.Method = "auto",
    looking: options.Looking,
    top_n: options.TopN = None,
    calibration: options.CalibrationFile = None,
    loading: options.Loading,
    images: Annotated[Path | None, typer.Option(help="Where the indexed folder is now, if it has moved.")] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Search an index of images: CLIP and FAISS find k of them, the multimodal LLM ranks those.

    First-stage scores count in the ranking where calibration learned what they are worth.
    """
    looked = looking.arguments(method)
    with command(as_json=as_json, debug=debug) as output:
        from clip_faiss import ClipFaissIndex

        loaded = ClipFaissIndex.load(index, images=images)
        hits = loaded.search(query, k)
        if not hits:
            raise NothingRankedError(f"The index {index} is empty.")
        ranking = None
        if rerank:
            from lad_rerank.cli.models import load_reranker

            reranker = load_reranker(model, loading, method=method, calibration=calibration)
            ranking = reranker.rerank(query, loaded.candidates(hits), top_n, **looked)
            refuse_empty(ranking)
        ranked: list[RankedCandidate | None] = [None] * len(hits[:top_n]) if ranking is None else [*ranking]
        chosen = [hits[i if place is None else place.index] for i, place in enumerate(ranked)]
        results = [_result(loaded, hit, place) for hit, place in zip(chosen, ranked, strict=True)]
        document = {
            "query": query,
            "index": str(index),
            "encoder": loaded.encoder.name,
            "model": None if ranking is None else ranking.model,
            "method": None if ranking is None else ranking.method,
            "passes": 0 if ranking is None else ranking.passes,
            "confidence": None if ranking is None else ranking.confidence,
            "confident": None if ranking is None else ranking.confident,
            "results": results,
            "failed": [] if ranking is None else failed_documents(ranking.failed),
        }
        output.emit(document, lambda console: _show(console, results, ranking))


def _result(index: ClipFaissIndex, hit: Hit, place: RankedCandidate | None) -> dict[str, Any]:
    """One hit; without reranking its rank is the first stage's, and it has no score."""
    path = index.file(hit)
    return {
        "rank": hit.rank if place is None else place.rank,
        "index": hit.rank - 1,
        "id": hit.id,
        "score": None if place is None else place.score,
        "evidence": None if place is None else place.evidence,
        "first_stage_rank": hit.rank,
        "first_stage_score": hit.score,
        "path": None if path is None else str(path),
        "metadata": hit.metadata,
    }


def _show(console: Console, results: Sequence[dict[str, Any]], ranking: Ranking | None) -> None:
    from lad_rerank.cli.tables import probability, table

    reranked = ranking is not None

    def cells(result: dict[str, Any]) -> list[str]:
        scores = [probability(result["score"]), probability(result["evidence"])] if reranked else []
        first = f"{result['first_stage_rank']} ({result['first_stage_score']:.3f})"
        return [str(result["rank"]), result["id"], *scores, first]

    titles = ["", "image", *(["score", "attention"] if reranked else []), "first stage"]
    table(console, titles, map(cells, results), words=len(titles) - 1)
    for line in () if ranking is None else notes(ranking):
        console.print(line, soft_wrap=True)
