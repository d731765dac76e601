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
    from clip_faiss import ClipFaissIndex
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.calibration.samples import CalibrationSample

MOST_BY_DEFAULT = 12


@unfolded
def calibrate(
    model: options.Model,
    *,
    samples: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines {"query": ..., "images": [...], "target": index or path}; paths beside the file.'
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
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write, in place of where it is found by itself.")
    ] = None,
    allow_urls: options.AllowUrls = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Learn a model's position bias from a handful of samples and keep it on disk.

    Once per model and settings. Each number of candidates N costs N forward passes per sample. Titles of indexed
    images are their metadata's "title", or else the words of their file names.
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
            made = make_calibration(backbone, chosen, candidate_counts=counts, allow_urls=allow_urls, progress=progress)
        if out is None:
            path = CalibrationStore().save(made)
        else:
            with replacing(out) as temporary:
                temporary.write_text(made.to_json(), encoding="utf-8")
            path = out
        document = _document(made, path, round(time.perf_counter() - started, 3))
        output.emit(
            document,
            lambda console: console.print(
                f"{model} is calibrated for {document['candidates'][0]} to {document['candidates'][-1]} candidates"
                f" ({document['passes']} passes, {document['seconds']:.1f} s).\nKept in {path}",
                soft_wrap=True,
            ),
        )


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
        "labels": made.identity.labels,
        "candidates": list(made.covers),
        "samples": max(count.samples for count in made.counts.values()),
        "passes": sum(n * count.samples for n, count in made.counts.items()),
        "path": str(path),
        "seconds": seconds,
    }
