"""Evaluation sets and calibration samples of the shop that ships with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lad_rerank.bundled import shop
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.evaluation.builders import Difficulty, check_request
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from lad_rerank.bundled.shop import Split

FIRST_SAMPLE = 10_000_000
"""Seeds of samples begin here, far from those of instances."""


def shop_set(
    *,
    candidates: int = 8,
    instances: int = 100,
    seed: int = 0,
    difficulty: Difficulty = "random",
    side: Split = "held_out",
    name: str | None = None,
) -> EvaluationSet:
    """Draw a set from the shop; every query states all attributes and one product has them.

    Args:
        candidates: N, from 2 to 26.
        instances: How many queries.
        seed: Chooses them; the sets of two seeds have no rendering in common up to a million instances.
        difficulty: See :func:`lad_rerank.bundled.shop.candidate_set`.
        side: Products that the bundled models were trained on, or those held out.
        name: What reports call the set, beside its N.

    Raises:
        InvalidRequestError: A number out of range, or an unknown difficulty.
    """
    check_request(candidates, instances, difficulty)
    items = []
    for i in range(instances):
        drawn = shop.candidate_set(candidates, seed * 1_000_000 + i, difficulty, side)
        shown = tuple(Candidate(image=item.image(), id=item.id) for item in drawn.candidates)
        items.append(EvaluationItem(f"{i:04d}", drawn.caption, shown, drawn.target))
    return EvaluationSet(name or f"shop, {difficulty}", tuple(items))


def shop_samples(*, count: int = 5, candidates: int = 8, seed: int = 0) -> list[CalibrationSample]:
    """Draw calibration samples of products on the training side, of which no held-out set holds any.

    Args:
        count: How many.
        candidates: Images of each.
        seed: Chooses them.
    """
    samples = []
    for i in range(count):
        drawn = shop.candidate_set(candidates, FIRST_SAMPLE + seed * 1_000 + i, "random", "train")
        pictures = [item.image() for item in drawn.candidates]
        samples.append(CalibrationSample(drawn.caption, pictures, drawn.target))
    return samples
