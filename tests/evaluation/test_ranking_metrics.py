from __future__ import annotations

import numpy as np
import pytest
import ranx

from lad_rerank.evaluation.ranking_metrics import ndcg_at, recall_at, reciprocal_rank


def test_first_relevant_rank() -> None:
    assert reciprocal_rank([3, 1, 2], {2, 1}) == 0.5
    assert reciprocal_rank([3, 1], {7}) == 0.0


def test_nothing_relevant_scores_nothing() -> None:
    assert recall_at([0, 1], set(), 1) == 0.0
    assert ndcg_at([0, 1], set(), 5) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_ranx(seed: int) -> None:
    """Random runs, some shorter than their candidates, with one to four relevant ones, found or not."""
    rng = np.random.default_rng(seed)
    runs: dict[str, list[int]] = {}
    right: dict[str, set[int]] = {}
    for q in range(200):
        n = int(rng.integers(2, 27))
        runs[str(q)] = rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist()
        right[str(q)] = set(rng.choice(n + 2, size=min(n, int(rng.integers(1, 5))), replace=False).tolist())
    qrels = ranx.Qrels({q: {str(d): 1 for d in own} for q, own in right.items()})
    # Scores fall with the rank: no ties are left for either side to break.
    run = ranx.Run({q: {str(d): float(len(own) - r) for r, d in enumerate(own)} for q, own in runs.items()})
    names = ["mrr", *(f"{m}@{k}" for m in ("recall", "ndcg") for k in (1, 3, 5, 10))]
    theirs = ranx.evaluate(qrels, run, names, return_mean=False)
    order = list(qrels.keys())
    ours = {"mrr": [reciprocal_rank(runs[q], right[q]) for q in order]}
    for k in (1, 3, 5, 10):
        ours[f"recall@{k}"] = [recall_at(runs[q], right[q], k) for q in order]
        ours[f"ndcg@{k}"] = [ndcg_at(runs[q], right[q], k) for q in order]
    for name in names:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-9, err_msg=name)
