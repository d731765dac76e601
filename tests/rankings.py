"""What tests ask of rankings, and rerankers with another choice than calibration made."""

from __future__ import annotations

from typing import Any

import numpy as np

from lad_rerank import LADReranker
from lad_rerank.calibration.record import Calibration
from lad_rerank.records import Ranking
from tests.shop import shop_set


def by_id(ranking: Ranking) -> dict[str, float]:
    return {hit.id: hit.score for hit in ranking}


def log_scores(ranking: Ranking) -> np.ndarray:
    """By index in the caller's list."""
    return np.log([hit.score for hit in sorted(ranking, key=lambda hit: hit.index)])


def with_choice(reranker: LADReranker, n: int, **changes: Any) -> LADReranker:
    """A reranker whose calibration for n candidates has another choice or presence."""
    assert reranker.calibration is not None
    count = reranker.calibration.counts[n]
    assert count.choice is not None
    presence = changes.pop("presence", count.presence)
    choice = count.choice.model_copy(update=changes)
    count = count.model_copy(update={"choice": choice, "presence": presence})
    counts = {**reranker.calibration.counts, n: count}
    calibration = Calibration.model_validate(
        reranker.calibration.model_copy(update={"counts": counts}).model_dump(mode="json")
    )
    return LADReranker(reranker.backbone, calibration=calibration, store=reranker.store)


def instances(count: int, n: int, seed: int = 900) -> list[tuple[str, list[Any], int]]:
    return [shop_set(n, seed=seed + i) for i in range(count)]
