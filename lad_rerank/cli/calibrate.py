"""``lad-rerank calibrate``: learn a model's position bias, and keep it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import command
from lad_rerank.cli.progress import bar
from lad_rerank.cli.unfolding import unfolded

if TYPE_CHECKING:
    from rich.console import Console

    from clip_faiss import ClipFaissIndex
    from lad_rerank.calibration.record import Calibration, CountCalibration
    from lad_rerank.calibration.samples import CalibrationSample

MOST_BY_DEFAULT = 12


@unfolded
def calibrate(
    model: options.Model,
    *,
    samples: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines {"query": ..., "images": [...], "target": index or path}; paths beside the file. '
            '"candidates": [{"image": ..., "text": ...}] in place of "images" for texts, or for both.'
        ),
    ] = None,
    from_index: Annotated[
        Path | None,
        typer.Option("--from-index", help="Make samples of an index's titled images; no labels are needed."),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Numbers of candidates to cover: 8, 2-12 or 2,4,8. As many as there are, up to 12."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many samples to make of an index.")] = 5,
    seed: Annotated[int, typer.Option(help="Chooses the samples made of an index.")] = 0,
    loading: options.Loading,
    null_query: Annotated[
        bool,
        typer.Option("--null-query", help="Also try evidence against a query that says nothing; costs a little more."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write, in place of where it is found by itself.")
    ] = None,
    allow_urls: options.AllowUrls = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Learn a model's position bias from a handful of samples and keep it on disk.

    Once per model and settings, and for images, for texts and for both apart. Each number of candidates N costs N
    forward passes per sample, and two short ones. Titles of indexed images are their metadata's "title", or else the
    words of their file names.
    """
    counts = options.parse_counts(candidates)
    if (samples is None) == (from_index is None):
        raise typer.BadParameter("Give either --samples or --from-index.")
    with command(as_json=as_json, debug=debug) as output:
        from lad_rerank.calibration.making import make_calibration
        from lad_rerank.calibration.samples import read_samples
        from lad_rerank.calibration.store import CalibrationStore
        from lad_rerank.cli.models import load_reranker
        from lad_rerank.files import replacing

        if samples is not None:
            chosen = read_samples(samples)
        else:
            from clip_faiss import ClipFaissIndex

            assert from_index is not None
            chosen = _from_index(ClipFaissIndex.load(from_index), count, counts, seed)
        backbone = load_reranker(model, loading, allow_urls=allow_urls).backbone
        if counts is None:
            largest = max((len(sample.candidates) for sample in chosen), default=2)
            counts = list(range(2, min(largest, MOST_BY_DEFAULT) + 1))
        started = time.perf_counter()
        with bar("Calibrating") as progress:
            made = make_calibration(
                backbone,
                chosen,
                candidate_counts=counts,
                null_query=null_query,
                allow_urls=allow_urls,
                progress=progress,
            )
        if out is None:
            path = CalibrationStore().save(made)
        else:
            with replacing(out) as temporary:
                temporary.write_text(made.to_json(), encoding="utf-8")
            path = out
        document = _document(made, path, round(time.perf_counter() - started, 3))
        output.emit(document, lambda console: _show(console, document))


def _from_index(index: ClipFaissIndex, count: int, counts: Sequence[int] | None, seed: int) -> list[CalibrationSample]:
    from lad_rerank.calibration.samples import samples_from_titles
    from lad_rerank.errors import CalibrationSampleError
    from lad_rerank.evaluation.titled import titled_index

    titled = titled_index(index)
    titles = len({one.key for one in titled})
    if titles < 2:
        raise CalibrationSampleError(
            f"{len(titled)} of {len(index)} images of the index have a title: the metadata's 'title', or the words of "
            "the file name (numbers are none). Name the files, or give samples with --samples FILE.jsonl."
        )
    most = max(counts) if counts else min(MOST_BY_DEFAULT, titles)
    return samples_from_titles([one.pair for one in titled], count=count, candidates=max(most, 2), seed=seed)


def _document(made: Calibration, path: Path, seconds: float) -> dict[str, Any]:
    return {
        "model": made.provenance.model,
        "kind": made.identity.candidates,
        "labels": made.identity.labels,
        "candidates": list(made.covers),
        "samples": max(count.samples for count in made.counts.values()),
        "passes": sum(n * count.samples for n, count in made.counts.items()),
        "counts": [_chosen(n, made.counts[n]) for n in made.covers],
        "path": str(path),
        "seconds": seconds,
    }


def _chosen(n: int, count: CountCalibration) -> dict[str, Any]:
    """What was chosen for n candidates, and what to expect of it; ``None`` where a choice needs more samples."""
    choice, presence = count.choice, count.presence
    return {
        "candidates": n,
        "samples": count.samples,
        "recipes": None if choice is None else choice.recipes,
        "expected_accuracy": None if choice is None else choice.expected_accuracy,
        "expected_consistency": None if choice is None else choice.expected_consistency,
        "first_stage_weight": None if choice is None else choice.first_stage_weight,
        "presence": None
        if presence is None
        else {"signal": presence.signal, "separation": presence.separation, "threshold": presence.threshold},
    }


def _show(console: Console, document: dict[str, Any]) -> None:
    from lad_rerank.cli.tables import percent, table

    what = {"image": "images", "text": "texts", "mixed": "images and texts"}[document["kind"]]
    samples = "1 sample" if document["samples"] == 1 else f"{document['samples']} samples"
    console.print(
        f"{document['model']} is calibrated for {_ranges(document['candidates'])} {what}"
        f" ({samples}, {document['passes']} passes, {document['seconds']:.1f} s).",
        soft_wrap=True,
    )

    def cells(one: dict[str, Any]) -> tuple[str, ...]:
        presence = one["presence"]
        told = "-" if presence is None else percent(presence["separation"])
        expected = (percent(one["expected_accuracy"]), percent(one["expected_consistency"]), told)
        return str(one["candidates"]), _recipe(one), *expected

    titles = ("N", "auto uses", "right", "same in all orders", "presence")
    table(console, titles, map(cells, document["counts"]), words=2)
    for line in _explained(document["counts"]):
        console.print(line, soft_wrap=True)
    console.print(f"Kept in {document['path']}", soft_wrap=True)


def _recipe(one: dict[str, Any]) -> str:
    """The first recipe in words, and how many vote with it."""
    if one["recipes"] is None:
        return "lad, as in the paper"
    more = len(one["recipes"]) - 1
    return f"{one['recipes'][0]}{f', and {more} more' if more else ''}"


def _explained(counts: Sequence[dict[str, Any]]) -> list[str]:
    """What the columns mean, of those that say something."""
    told = []
    if any(one["recipes"] is not None for one in counts):
        told.append(
            "right, same in all orders: of the samples when left out of the fit; a little flattering, since they made"
            " the choice."
        )
    if any(one["presence"] is not None for one in counts):
        told.append(
            "presence: how often a query whose answer is among the candidates is told from one whose answer is not"
            " (chance: 50 %)."
        )
    if any(one["recipes"] is None for one in counts):
        told.append("Too few samples to choose from: the paper's recipe is used as it is. Five are enough.")
    return told


def _ranges(counts: Sequence[int]) -> str:
    """Numbers in words: ``2 to 12``, or one by one where some are missing."""
    if len(counts) > 1 and list(counts) == list(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]} to {counts[-1]}"
    return ", ".join(map(str, counts))
