"""What a calibration fitted beyond the recipe: first-stage weights, null queries, whether anything fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lad_rerank import Candidate, LADReranker
from lad_rerank.calibration.fitted import EvidenceRecord, MemberRecord, PresenceRecord
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.records import Observation
from tests.rankings import by_id, instances, log_scores, with_choice
from tests.shop import shop_set

# First-stage scores.


def test_first_stage_scores_count_where_a_weight_was_learned(reranker: LADReranker) -> None:
    query, images, _ = shop_set(4, seed=7)
    wanted = [2, 0, 3, 1]
    scored = [Candidate(image, first_stage_score=-float(wanted.index(i))) for i, image in enumerate(images)]
    plain = reranker.rerank(query, images)
    assert by_id(reranker.rerank(query, scored)) == pytest.approx(by_id(plain))  # the weight of the bundled one is 0
    fused = with_choice(reranker, 4, first_stage_weight=1e4)
    assert [hit.index for hit in fused.rerank(query, scored)] == wanted
    assert [hit.index for hit in fused.rerank(query, scored, passes=3)] == wanted
    assert [hit.index for hit in fused.rerank(query, scored, passes="auto")] == wanted
    # It is a choice of auto's, and of no other method.
    lad = by_id(reranker.rerank(query, images, method="lad"))
    assert by_id(fused.rerank(query, scored, method="lad")) == pytest.approx(lad)
    slight = with_choice(reranker, 4, first_stage_weight=0.3)
    expected = log_softmax(log_scores(plain) + 0.3 * np.array([c.first_stage_score for c in scored], dtype=float))
    np.testing.assert_allclose(log_scores(slight.rerank(query, scored)), expected, atol=1e-5)
    gain = log_scores(slight.rerank(query, scored, passes=4)) - log_scores(reranker.rerank(query, images, passes=4))
    one_look = expected - log_scores(plain)
    np.testing.assert_allclose(gain - gain[0], one_look - one_look[0], atol=1e-4)


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), "0.5", True])
def test_one_candidate_without_a_score_leaves_the_first_stage_out(reranker: LADReranker, missing: Any) -> None:
    query, images, _ = shop_set(4, seed=7)
    fused = with_choice(reranker, 4, first_stage_weight=1e4)
    scored = [Candidate(image, first_stage_score=float(i)) for i, image in enumerate(images)]
    scored[1] = replace(scored[1], first_stage_score=missing)
    assert by_id(fused.rerank(query, scored)) == pytest.approx(by_id(reranker.rerank(query, images)))


def test_twins_have_the_best_score_of_theirs(reranker: LADReranker) -> None:
    query, images, _ = shop_set(3, seed=7)
    fused = with_choice(reranker, 3, first_stage_weight=1e4)
    scored = [Candidate(image, first_stage_score=float(i)) for i, image in enumerate(images)]
    ranking = fused.rerank(query, [*scored, Candidate(images[0].copy(), first_stage_score=9.0)])
    assert [hit.index for hit in ranking] == [0, 3, 2, 1]


# Null queries.


def null_evidence(units: str = "heads") -> EvidenceRecord:
    chosen = [1, 4] if units == "heads" else [0, 1, 2, 3, 4]
    return EvidenceRecord.model_validate(
        {
            "rows": ["last"],
            "pooling": "sum",
            "length_exponent": 0.0,
            "prior": "null",
            "units": units,
            "count": 2,
            "mean": "geometric",
            "chosen": chosen,
            "weights": [1 / len(chosen)] * len(chosen),
            "log_prior": [[0.0] * 4] * len(chosen),
        }
    )


def null_member() -> MemberRecord:
    return MemberRecord(mixer="attention", tau=2.0, temperature=1.0, evidence=null_evidence())


def test_a_member_read_against_the_null_query_asks_it(reranker: LADReranker) -> None:
    null = with_choice(reranker, 4, members=[null_member()], temperature=1.0)
    query, images, _ = shop_set(4, seed=8)
    ranking = null.rerank(query, images)
    seen = ranking.observation
    assert seen is not None
    assert isinstance(seen.null, Observation)
    assert ranking.passes == 2
    own, empty = (o.attention["last"].reshape(-1, 4)[[1, 4]] for o in (seen, seen.null))
    expected = log_softmax(2.0 * np.log(own / empty).mean(axis=0))
    np.testing.assert_allclose(log_scores(ranking)[list(ranking.shown)], expected, atol=1e-5)
    # Other numbers of candidates and other methods do not ask it.
    _, more, _ = shop_set(5, seed=8)
    many = null.rerank_many([query, query, query], [more, images, more])
    assert [r.observation is not None and r.observation.null is not None for r in many] == [False, True, False]
    assert [r.passes for r in many] == [1, 2, 1]
    assert by_id(many[1]) == pytest.approx(by_id(ranking), abs=1e-5)
    assert null.rerank(query, images, method="lad").passes == 1
    assert null.rerank(query, images, passes=4).passes == 8
    assert null.rerank(query, images, passes="auto", mean_passes=2).passes == 4


@pytest.mark.parametrize("units", ["heads", "mass"])
@pytest.mark.parametrize("method", ["auto", "lad", "pride"])
def test_presence_read_against_the_null_query_asks_it(reranker: LADReranker, method: str, units: str) -> None:
    presence = PresenceRecord(signal="peak", threshold=0.0, scale=1.0, separation=0.9, evidence=null_evidence(units))
    null = with_choice(reranker, 4, presence=presence)
    query, images, _ = shop_set(4, seed=8)
    ranking = null.rerank(query, images, method=method)
    assert ranking.confidence is not None
    assert ranking.passes == 2
    assert by_id(ranking) == pytest.approx(by_id(reranker.rerank(query, images, method=method)), abs=1e-5)
    assert null.rerank(query, images, method="vanilla").passes == 1


# Whether anything fits.


def test_queries_with_their_answer_are_more_confident_than_swapped_ones(reranker: LADReranker) -> None:
    work = instances(40, 8, seed=2000)
    lists = [images for _, images, _ in work]
    queries = [query for query, _, _ in work]
    here = reranker.rerank_many(queries, lists)
    away = reranker.rerank_many([*queries[1:], queries[0]], lists)
    yes, no = (np.array([r.confidence for r in rankings], dtype=float) for rankings in (here, away))
    assert ((yes >= 0) & (yes <= 1) & (no >= 0) & (no <= 1)).all()
    assert (yes[:, None] > no).mean() > 0.8
    for ranking in (*here, *away):
        assert ranking.confident is (ranking.confidence is not None and ranking.confidence >= 0.5)


def test_confidence_is_the_mean_of_all_looks_and_of_the_final_round(reranker: LADReranker) -> None:
    free = LADReranker(reranker.backbone, canonical=False)
    query, images, _ = shop_set(6, seed=2)
    looks = [free.rerank(query, images[s:] + images[:s]).confidence for s in (0, 3)]
    assert free.rerank(query, images, passes=2).confidence == pytest.approx(np.mean(looks), abs=1e-5)  # type: ignore[arg-type]
    query, images, _ = shop_set(30, seed=600)
    whole = free.rerank(query, images)
    scores = log_scores(whole)
    finalists = [begin + int(scores[begin : begin + 10].argmax()) for begin in (0, 10, 20)]
    final = free.rerank(query, [images[i] for i in finalists])
    assert whole.confidence == pytest.approx(final.confidence, abs=1e-4)


def test_methods_without_calibration_have_no_confidence(reranker: LADReranker) -> None:
    query, images, _ = shop_set(4, seed=1)
    for method in ("vanilla", "raw_attention"):
        ranking = reranker.rerank(query, images, method=method)
        assert ranking.confidence is None
        assert ranking.confident is None
    assert reranker.rerank(query, images[:1]).confident is None
    assert with_choice(reranker, 4, presence=None).rerank(query, images).confident is None
    assert reranker.rerank(query, images, method="lad").confidence is not None
