from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lad_rerank import LADReranker
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.debias.scoring import SCORERS
from lad_rerank.errors import InvalidRequestError
from lad_rerank.evaluation.orders import ObservedRuns, ShownObservation, rankings
from lad_rerank.evaluation.rows import averaged, chance, grouped, identity, scored, stored_rows
from tests.evaluation.observed import ORDERS, QUERIES, N, shop_instances, shop_runs, shop_squares


def _broken(observed: ObservedRuns) -> ObservedRuns:
    """The same runs with equal label scores in the first pass of the first order."""
    first, *rest = observed.runs[0]
    flat = replace(first.observation, log_probs=np.full(N, -np.log(N)))
    return replace(observed, runs=[[ShownObservation(flat, first.shown), *rest], *observed.runs[1:]])


def test_all_rows_come_from_the_same_passes(reranker: LADReranker, backbone: HuggingFaceBackbone) -> None:
    observed = shop_runs(backbone)
    made = stored_rows(observed, shop_instances(), reranker.calibration)
    assert {row.name for row in made.rows} | set(made.left_out) == {"identity", "random", *SCORERS}
    assert {"vanilla", "pride", "raw_attention", "attention", "lad"} <= {row.name for row in made.rows}
    for row in made.rows:
        assert [len(order) for order in row.ranked] == [QUERIES] * ORDERS
        assert all(sorted(ranked) == list(range(N)) for order in row.ranked for ranked in order)
        for order, ranks in zip(row.probabilities or (), row.ranked, strict=row.probabilities is not None):
            for probabilities, ranked in zip(order, ranks, strict=True):
                assert sum(probabilities) == pytest.approx(1)
                assert probabilities[ranked[0]] == max(probabilities)


def test_scored_is_the_ranking_of_each_pass(reranker: LADReranker, backbone: HuggingFaceBackbone) -> None:
    observed = shop_runs(backbone)
    for method in ("vanilla", "lad"):
        row = scored(observed, reranker.calibration, method)
        for order, run in zip(row.ranked, observed.runs, strict=True):
            assert [list(ranked) for ranked in order] == rankings(run, reranker.calibration, method)
        assert (row.passes, row.seconds, row.peak_bytes) == (1.0, observed.seconds_per_pass, observed.peak_bytes)
    assert scored(observed, None, "vanilla", name="plain").name == "plain"


def test_what_lacks_a_calibration_is_left_out_with_the_reason(
    reranker: LADReranker, backbone: HuggingFaceBackbone
) -> None:
    observed, instances = shop_runs(backbone), shop_instances()
    without = stored_rows(observed, instances, None, methods=["vanilla", "lad"])
    assert [row.name for row in without.rows] == ["identity", "random", "vanilla"]
    assert "calibration" in without.left_out["lad"]
    calibration = reranker.calibration
    assert calibration is not None
    other = calibration.model_copy(update={"counts": {n: c for n, c in calibration.counts.items() if n != N}})
    assert f"not {N}" in stored_rows(observed, instances, other, methods=["lad"]).left_out["lad"]
    with pytest.raises(InvalidRequestError, match="Unknown method"):
        stored_rows(observed, instances, None, methods=["nonsense"])


def test_a_pass_without_a_ranking_is_a_miss(backbone: HuggingFaceBackbone) -> None:
    row = scored(_broken(shop_runs(backbone)), None, "vanilla")
    assert row.probabilities is not None
    assert (row.ranked[0][0], row.probabilities[0][0]) == ((), ())
    assert all(ranked for order in row.ranked for ranked in order[1:])


def test_first_stage_and_chance_need_no_pass() -> None:
    instances = shop_instances()
    first = identity(instances, 2)
    assert first.ranked == [[(0, 1, 2, 3)] * QUERIES] * 2
    drawn = chance(instances, 2, seed=1)
    assert drawn.ranked == chance(instances, 2, seed=1).ranked != chance(instances, 2, seed=2).ranked
    assert all(sorted(ranked) == list(range(N)) for order in drawn.ranked for ranked in order)
    assert (first.passes, drawn.passes, first.probabilities) == (0.0, 0.0, None)


def test_permutation_averaging_is_the_mean_by_candidate(backbone: HuggingFaceBackbone) -> None:
    observed = shop_squares(backbone)
    groups = grouped(observed, N)
    row = averaged("Williams", groups, seconds_per_pass=0.5)
    assert (len(row.ranked), row.passes, row.seconds) == (1, N, 0.5 * N)
    assert row.probabilities is not None
    for q in range(QUERIES):
        by_candidate = np.zeros(N)
        for run in observed.runs:
            for position, candidate in enumerate(run[q].shown):
                by_candidate[candidate] += run[q].observation.log_probs[position] / N
        expected = np.exp(by_candidate) / np.exp(by_candidate).sum()
        np.testing.assert_allclose(row.probabilities[0][q], expected, atol=1e-12)
        assert row.ranked[0][q] == tuple(np.argsort(-by_candidate))


def test_one_order_averaged_is_the_order_itself(reranker: LADReranker, backbone: HuggingFaceBackbone) -> None:
    observed = shop_runs(backbone)
    alone = scored(observed, reranker.calibration, "lad")
    row = averaged("lad", grouped(observed, 1), method="lad", calibration=reranker.calibration)
    assert row.ranked == alone.ranked
    assert row.seconds is None


def test_grouping_takes_whole_groups(backbone: HuggingFaceBackbone) -> None:
    observed = shop_squares(backbone)
    groups = grouped(observed, 2)
    assert [len(order) for order in groups] == [QUERIES] * 2
    assert groups[1][3] == [observed.runs[2][3], observed.runs[3][3]]
    with pytest.raises(InvalidRequestError, match="grouped by 3"):
        grouped(observed, 3)
