"""The bundled model on held-out products: all rows, harder pictures, transfer, none of these, first-stage fusion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.quality_rows import (
    VARIANTS,
    Calibrated,
    chosen_scores,
    measured,
    recipe_row,
    row_of,
    through_reranker,
)
from lad_rerank import Candidate, LADReranker
from lad_rerank.bundled.shop import candidate_set
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.contents import Content
from lad_rerank.debias.scoring import score
from lad_rerank.evaluation.extra_passes import EXTRA_ROWS
from lad_rerank.evaluation.orders import Instance, ObservedRuns, observe_orders
from lad_rerank.evaluation.reports import RowReport
from lad_rerank.evaluation.rows import stored_rows

SEED = 5_000_000
"""Held-out sets that nothing was tuned on."""
SAMPLE_SEED = 0
"""Of the calibration samples: those of the shipped calibration."""
EXTRA_INSTANCES = 200
"""Rows with up to ten passes a query are run over the first instances, in two orders."""
WRITTEN = ("free_generation", "instruction", "chain_of_thought", "self_consistency", "sofa")
AVERAGED = ("average_random", "average_cyclic", "average_williams")


def hardened(image: Image.Image, seed: int) -> Image.Image:
    """The picture as a bad camera sees it: 16 x 16 pixels, enlarged, with noise."""
    rng = np.random.default_rng(seed)
    small = image.resize((16, 16), Image.Resampling.BILINEAR).resize(image.size, Image.Resampling.BILINEAR)
    noisy = np.asarray(small).astype(np.float64) + rng.normal(0, 30, (image.height, image.width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def instances(count: int, n: int, difficulty: str, *, hard: bool = False, seed: int = SEED) -> list[Instance]:
    made = []
    for i in range(count):
        drawn = candidate_set(n, seed=seed + i, difficulty=difficulty, side="held_out")  # type: ignore[arg-type]
        images = [item.image() for item in drawn.candidates]
        if hard:
            images = [hardened(image, (seed + i) * 100 + k) for k, image in enumerate(images)]
        made.append(Instance.of(drawn.caption, images, {drawn.target}, id=str(i)))
    return made


def samples(count: int, n: int, difficulty: str, *, hard: bool = False) -> list[CalibrationSample]:
    made = []
    for i in range(count):
        drawn = candidate_set(n, seed=10_000 * SAMPLE_SEED + i, difficulty=difficulty, side="train")  # type: ignore[arg-type]
        images = [item.image() for item in drawn.candidates]
        if hard:
            images = [hardened(image, i * 100 + k) for k, image in enumerate(images)]
        made.append(CalibrationSample(drawn.caption, images, drawn.target))
    return made


@lru_cache(maxsize=1)
def bundled() -> LADReranker:
    return LADReranker.from_pretrained("bundled", device="cpu", canonical=False)


@lru_cache(maxsize=16)
def calibrated(count: int, n: int, difficulty: str, hard: bool = False) -> Calibrated:
    return Calibrated(bundled().backbone, samples(count, n, difficulty, hard=hard))


def table(n: int, difficulty: str, *, count: int, orders: int, written: bool, hard: bool = False) -> list[RowReport]:
    """All rows of one slice."""
    reranker = bundled()
    some = instances(count, n, difficulty, hard=hard)
    observed = observe_orders(reranker.backbone, some, orders=orders, null=True)
    rows = list(stored_rows(observed, some, reranker.calibration).rows)
    rows += [
        recipe_row(name, recipe, observed, calibrated(5, n, "random"), 5)
        for name, recipe in VARIANTS.items()
        if "length" not in name and "mean over tokens" not in name
    ]
    shown = observed.shown if n == 8 else observed.shown[:2]
    name = "auto, passes='auto', mean_passes=1.1"
    rows.append(through_reranker(name, reranker, some, shown, passes="auto", mean_passes=1.1))
    rows.append(through_reranker("auto, passes=2", reranker, some, observed.shown[:2], passes=2))
    canonical = LADReranker(reranker.backbone, store=reranker.store)
    rows.append(through_reranker("auto, canonical order", canonical, some, observed.shown[:2]))
    reports = [measured(row, some, observed.shown[: len(row.ranked)]) for row in rows]
    first = some[:EXTRA_INSTANCES]
    for name in (*AVERAGED, "label_ensemble", *(WRITTEN if written else ())):
        row = EXTRA_ROWS[name].run(reranker.backbone, first, 2, 0, reranker.calibration)
        reports.append(measured(row, first))
    return reports


def transfer(*, count: int, orders: int, n: int = 8, hard: bool = False) -> list[dict[str, Any]]:
    """Calibrated on one difficulty, used on another; 1 to 20 samples."""
    lines = []
    for difficulty in ("random", "adversarial"):
        some = instances(count, n, difficulty, hard=hard)
        observed = observe_orders(bundled().backbone, some, orders=orders)
        for source in ("random", "adversarial"):
            for size in (1, 2, 3, 5, 10, 20):
                bias = calibrated(20, n, source, hard).bias(size)
                line: dict[str, Any] = {"used on": difficulty, "calibrated on": source, "samples": size}
                for method in ("pride", "lad", "auto"):
                    scores = [[score(s.observation, bias, method).log_scores for s in run] for run in observed.runs]
                    report = measured(row_of(method, observed, scores), some, observed.shown)
                    line[method] = report.accuracy
                line["expected"] = bias.choice.expected_accuracy if bias.choice is not None else None
                line["recipe"] = str(bias.choice.members[0].recipe) if bias.choice is not None else "the paper's"
                lines.append(line)
    return lines


def none_of_these(*, count: int, n: int = 8) -> list[dict[str, Any]]:
    """How well the absolute signal tells lists with a right answer from lists without one."""
    lines = []
    reranker = bundled()
    for hard in (False, True):
        for difficulty in ("random", "adversarial"):
            some = instances(2 * count, n, difficulty, hard=hard, seed=SEED + 1_000_000)
            confidences: dict[bool, list[float]] = {True: [], False: []}
            scores: dict[bool, list[float]] = {True: [], False: []}
            for i, instance in enumerate(some):
                present = i % 2 == 0
                # With a caption of another list's product nothing here is right.
                query = instance.query if present else some[i - 1].query
                ranking = reranker.rerank(query, [c.image for c in instance.contents if c.image is not None])
                assert ranking.confidence is not None
                confidences[present].append(ranking.confidence)
                scores[present].append(ranking[0].score)
            lines.append(
                {
                    "pictures": f"{difficulty}{', hard' if hard else ''}",
                    "AUC of confidence": auc(confidences[True], confidences[False]),
                    "AUC of the best score": auc(scores[True], scores[False]),
                    "present called present": float(np.mean([c >= 0.5 for c in confidences[True]])),
                    "absent called absent": float(np.mean([c < 0.5 for c in confidences[False]])),
                }
            )
    return lines


def auc(yes: Sequence[float], no: Sequence[float]) -> float:
    a, b = np.array(yes)[:, None], np.array(no)
    return float((a > b).mean() + 0.5 * (a == b).mean())


def fusion(*, count: int, orders: int, n: int = 8) -> list[dict[str, Any]]:
    """First-stage scores of the bundled CLIP, their weight learned from calibration."""
    from clip_faiss import ClipEncoder

    encoder = ClipEncoder.load("bundled")

    def similarities(query: str, contents: Sequence[Content]) -> np.ndarray[Any, Any]:
        vectors = encoder.encode_images([c.image for c in contents if c.image is not None])
        return np.asarray(vectors @ encoder.encode_texts([query])[0], dtype=np.float64)

    lines = []
    for hard in (False, True):
        for difficulty in ("random", "adversarial"):
            with_scores = []
            for sample in samples(20, n, difficulty, hard=hard):
                given = similarities(sample.query, [Content.of(image) for image in sample.candidates])  # type: ignore[arg-type]
                shown = [
                    Candidate(image=image, first_stage_score=float(s))  # type: ignore[arg-type]
                    for image, s in zip(sample.candidates, given, strict=True)
                ]
                with_scores.append(CalibrationSample(sample.query, shown, sample.target))
            fit = Calibrated(bundled().backbone, with_scores, null=False)
            some = instances(count, n, difficulty, hard=hard)
            observed = observe_orders(bundled().backbone, some, orders=orders)
            first = [similarities(i.query, i.contents) for i in some]
            for size in (5, 20):
                bias = fit.bias(size)
                assert bias.choice is not None
                line = {"pictures": f"{difficulty}{', hard' if hard else ''}", "samples": size}
                line["first stage"] = float(
                    np.mean([f.argmax() in i.relevant for f, i in zip(first, some, strict=True)])
                )
                line |= fused(observed, some, bias, first)
                lines.append(line)
    return lines


def fused(observed: ObservedRuns, some: Sequence[Instance], bias: Any, first: Sequence[Any]) -> dict[str, Any]:
    weight = bias.choice.first_stage_weight
    alone = [[chosen_scores(bias, s.observation) for s in run] for run in observed.runs]
    both = [
        [a + weight * f[list(s.shown)] for a, s, f in zip(own, run, first, strict=True)]
        for own, run in zip(alone, observed.runs, strict=True)
    ]
    return {
        "auto": measured(row_of("auto", observed, alone), some).accuracy,
        "auto + first stage": measured(row_of("auto + first stage", observed, both), some).accuracy,
        "weight": weight,
    }
