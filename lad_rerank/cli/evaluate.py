"""``lad-rerank evaluate``: how biased a model is on these images, and what debiasing does about it."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import command
from lad_rerank.cli.progress import bar
from lad_rerank.cli.sources import Source
from lad_rerank.cli.unfolding import unfolded

if TYPE_CHECKING:
    from rich.console import Console

    from lad_rerank.evaluation.reports import Evaluation, SliceReport

MOST_CANDIDATES = 26
ROWS = {
    "identity": "the order given, the first stage's where there is one",
    "vanilla": "the model's answer as it is",
    "lad": "the paper's recipe",
    "auto": "what calibration chose",
}
"""The rows that people look at first; docs/evaluation.md has all of them."""


@unfolded
def evaluate(
    *,
    source: Source,
    candidates: Annotated[
        str, typer.Option(help="Numbers of candidates: 8, 4,8,12 or 2-6; at most 26. One set for each.")
    ] = "8",
    difficulty: Annotated[
        str, typer.Option(help="random, adversarial (images like the right one, titles unlike) or both.")
    ] = "random,adversarial",
    instances: Annotated[int, typer.Option(min=1, help="Queries of each set, at most.")] = 100,
    orders: Annotated[int, typer.Option(min=1, help="Orders in which every list is shown.")] = 5,
    samples: Annotated[
        int, typer.Option(min=0, help="Calibration samples to set apart; none of them is evaluated.")
    ] = 5,
    sample_file: Annotated[
        Path | None, typer.Option(help="Calibration samples as JSON lines, in place of samples taken from the source.")
    ] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Calibrate on those samples even where the model is calibrated.")
    ] = False,
    unanswerable: Annotated[
        bool, typer.Option("--unanswerable", help="Also evaluate every set with half of its right answers taken out.")
    ] = False,
    rows: Annotated[
        str,
        typer.Option(
            help="one-pass, all, or names separated by commas (a wrong one lists them); all takes many times longer."
        ),
    ] = "one-pass",
    null: Annotated[
        bool | None,
        typer.Option(help="Also ask a query that says nothing; by default where the calibration reads it."),
    ] = None,
    model: options.Model = "bundled",
    calibration: options.CalibrationFile = None,
    loading: options.Loading,
    save: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keep the passes in this safetensors file, to score them again.")
    ] = None,
    observations: Annotated[
        Path | None, typer.Option(help="Score passes that --save kept: no model, no images.")
    ] = None,
    report: Annotated[Path | None, typer.Option(dir_okay=False, help="HTML page with pictures to write.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses queries, candidates, samples and orders.")] = 0,
    allow_urls: options.AllowUrls = False,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Measure how much a model's answer depends on the order of the candidates, and what debiasing does about it.

    Give one of --set, --index, --images, --annotations, --shop and --observations. Every list of candidates is shown
    in several orders, one pass each; all one-pass methods are scored from the same passes. Calibration samples are
    never evaluated. A model without a calibration is calibrated first; that calibration is not kept.
    """
    counts = options.parse_counts(candidates) or []
    if max(counts) > MOST_CANDIDATES:
        raise typer.BadParameter(f"Sets have at most {MOST_CANDIDATES} candidates, got {max(counts)}.")
    difficulties = options.parse_difficulties(difficulty)
    source.check(observations)
    if observations is not None and save is not None:
        raise typer.BadParameter("--observations makes no passes that --save could keep.")
    with command(as_json=as_json, debug=debug) as output:
        if report is not None and importlib.util.find_spec("matplotlib") is None:
            # Now, and not when all passes are made.
            raise ImportError('--report draws pictures with matplotlib: pip install "lad-rerank[plots]".')
        from lad_rerank.evaluation import evaluate as evaluating
        from lad_rerank.evaluation.calibrating import is_covered
        from lad_rerank.evaluation.prepared import Wanted

        chosen = evaluating.row_names([name.strip() for name in rows.split(",")] if "," in rows else rows)
        if observations is not None:
            from lad_rerank.calibration.record import read_calibration
            from lad_rerank.evaluation.stored import load_observations

            given = None if calibration is None else read_calibration(calibration)
            made = evaluating.rescore(load_observations(observations), calibration=given, rows=chosen, bars=bar)
        else:
            from lad_rerank.cli.models import load_reranker, threads_for

            wanted = Wanted(counts, difficulties, instances, samples, seed)
            whole = replace(wanted, samples=0) if source.is_set else wanted
            prepared = source.prepare(whole, sample_file, allow_urls, unanswerable)
            reranker = load_reranker(model, loading, calibration=calibration, allow_urls=allow_urls)
            if whole != wanted and not prepared.samples and (recalibrate or not is_covered(reranker, prepared.sets)):
                prepared = source.prepare(wanted, sample_file, allow_urls, unanswerable)
            with threads_for(model):
                made = evaluating.evaluate(
                    reranker,
                    prepared.sets,
                    samples=prepared.samples,
                    recalibrate=recalibrate,
                    rows=chosen,
                    orders=orders,
                    seed=seed,
                    null=null,
                    opener=prepared.opener,
                    save=save,
                    settings={
                        "source": source.told(),
                        "samples": len(prepared.samples),
                        "items taken out": prepared.taken_out,
                    },
                    bars=bar,
                )
        if report is not None:
            from lad_rerank.evaluation import html

            html.write(made, report)
        from lad_rerank.evaluation.reports import to_document
        from lad_rerank.evaluation.verdict import verdict

        document = {
            **to_document(made),
            "verdicts": [verdict(one) for one in made.slices],
            "report": None if report is None else str(report),
            "observations": None if save is None else str(save),
        }
        output.emit(document, lambda console: _show(console, made, report, save))


def _show_positions(console: Console, one: SliceReport) -> None:
    """What is found of the right candidates at each position: as the model is, and debiased."""
    from lad_rerank.cli.tables import table
    from lad_rerank.evaluation.tables import percent

    rows = [row for row in (one.row("vanilla"), one.ours) if row is not None and row.recall_by_position is not None]
    titles = ("right at position, in %", *(str(i) for i in range(1, one.n + 1)), "RStd", "same in all orders")
    cells = (
        (
            row.name,
            *("-" if share is None else f"{100 * share:.0f}" for share in row.recall_by_position or ()),
            "-" if row.recall_std is None else f"{row.recall_std:.1f}",
            percent(row.consistency),
        )
        for row in rows
    )
    table(console, titles, cells)


def _show(console: Console, made: Evaluation, report: Path | None, save: Path | None) -> None:
    from lad_rerank.evaluation import tables
    from lad_rerank.evaluation.verdict import verdict

    for one in made.slices:
        if told := verdict(one):
            console.print(told, soft_wrap=True)
            _show_positions(console, one)
    console.print(str(made.settings.get("calibration", "")), soft_wrap=True)
    if out := made.settings.get("items taken out"):
        console.print(
            f"{out} items were taken out of the set: the samples, and what shares a picture or query with them.",
            soft_wrap=True,
        )
    console.print()
    tables.show(console, made)
    if named := [f"{name}: {meaning}" for name, meaning in ROWS.items() if any(one.row(name) for one in made.slices)]:
        console.print(f"\n{'; '.join(named)}. Small is good for RStd and ECE, large for all else.", soft_wrap=True)
    if save is not None:
        console.print(f"The passes are kept in {save}; score them again with --observations.", soft_wrap=True)
    if report is not None:
        console.print(f"With pictures: {report}", soft_wrap=True)
