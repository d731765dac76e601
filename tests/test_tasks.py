"""Several looks at the same candidates: counted, averaged, where unsure, in any order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_rerank import Candidate, LADReranker
from lad_rerank.debias.choice import margin
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.errors import InvalidRequestError
from lad_rerank.passes import Passes
from tests.rankings import by_id, instances, log_scores, with_choice
from tests.shop import shop_set

ALL_PASSES: list[Passes] = [1, 2, 3, 8, 99, "auto"]


@pytest.mark.parametrize("passes", [1, 2, 3, 8, 99])
def test_passes_are_counted_and_never_more_than_orders(reranker: LADReranker, passes: int) -> None:
    query, images, _ = shop_set(5, seed=1)
    ranking = reranker.rerank(query, images, passes=passes)
    assert ranking.passes == min(passes, 5)
    assert sum(hit.score for hit in ranking) == pytest.approx(1)
    assert (ranking.observation is None) == (passes > 1)
    for method in ("vanilla", "lad", "raw_attention"):
        assert reranker.rerank(query, images, method=method, passes=passes).passes == min(passes, 5)


def test_k_passes_are_the_mean_of_k_shifts(reranker: LADReranker) -> None:
    """Shown by hand: each cyclic shift by itself, its log scores put back in place."""
    free = LADReranker(reranker.backbone, canonical=False)
    query, images, _ = shop_set(6, seed=2)
    alone = []
    for shift in range(6):
        turned = free.rerank(query, images[shift:] + images[:shift])
        assert turned.shown == (0, 1, 2, 3, 4, 5)
        alone.append(np.roll(log_scores(turned), shift))
    for passes, shifts in ((2, [0, 3]), (3, [0, 2, 4]), (6, list(range(6)))):
        expected = log_softmax(np.mean([alone[s] for s in shifts], axis=0))
        np.testing.assert_allclose(log_scores(free.rerank(query, images, passes=passes)), expected, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(5)), passes=st.sampled_from(ALL_PASSES), seed=st.integers(0, 3))
def test_the_callers_order_makes_no_difference(
    reranker: LADReranker, order: list[int], passes: Passes, seed: int
) -> None:
    query, images, _ = shop_set(5, seed=40 + seed)
    named = [Candidate(image, id=f"item {i}") for i, image in enumerate(images)]
    plain = reranker.rerank(query, named, passes=passes)
    other = reranker.rerank(query, [named[i] for i in order], passes=passes)
    assert [hit.id for hit in plain] == [hit.id for hit in other]
    assert plain.passes == other.passes
    np.testing.assert_allclose([h.score for h in plain], [h.score for h in other], atol=1e-6)


def test_all_shifts_make_up_for_the_canonical_order(reranker: LADReranker) -> None:
    free = LADReranker(reranker.backbone, canonical=False)
    rng = np.random.default_rng(0)
    spread: dict[int, list[float]] = {1: [], 6: []}
    for query, images, _ in instances(5, 6):
        named = [Candidate(image, id=str(i)) for i, image in enumerate(images)]
        cyclic = [by_id(free.rerank(query, named[s:] + named[:s], passes=6)) for s in range(3)]
        for other in cyclic[1:]:
            assert other == pytest.approx(cyclic[0], abs=1e-5)
        for passes, widths in spread.items():
            orders = [[named[i] for i in rng.permutation(6)] for _ in range(4)]
            scores = [by_id(free.rerank(query, order, passes=passes)) for order in orders]
            widths.append(float(np.ptp([[s[c.id] for c in named] for s in scores], axis=0).max()))
    assert np.mean(spread[6]) < 0.6 * np.mean(spread[1])


def test_auto_looks_again_exactly_where_the_margin_is_small(reranker: LADReranker) -> None:
    work = instances(16, 8)
    queries, lists = [w[0] for w in work], [w[1] for w in work]
    assert reranker.calibration is not None
    choice = reranker.calibration.position_bias(8).choice
    assert choice is not None
    once = reranker.rerank_many(queries, lists)
    margins = [float(margin(log_scores(ranking))) for ranking in once]
    # Of these queries the least sure half; a calibration's own are easier.
    share = float(np.interp(np.median(margins), choice.margins, np.linspace(0, 1, 21)))
    twice = reranker.rerank_many(queries, lists, passes=2)
    for mean_passes in sorted({1.25, 1 + share}):
        rankings = reranker.rerank_many(queries, lists, passes="auto", mean_passes=mean_passes)
        below = choice.uncertain_below(mean_passes)
        assert [r.passes for r in rankings] == [1 + (m < below) for m in margins]
        for ranking, single, double in zip(rankings, once, twice, strict=True):
            expected = double if ranking.passes == 2 else single
            assert by_id(ranking) == pytest.approx(by_id(expected), abs=1e-5)
            assert (ranking.observation is None) == (ranking.passes == 2)


def test_one_mean_pass_never_looks_again_and_two_always_do(reranker: LADReranker) -> None:
    for n in (2, 3, 8, 12):
        for query, images, _ in instances(3, n):
            assert reranker.rerank(query, images, passes="auto", mean_passes=1).passes == 1
            assert reranker.rerank(query, images, passes="auto", mean_passes=2).passes == 2
    # Also where the margin is larger than any that calibration saw.
    sure = with_choice(reranker, 4, margins=[0.0] * 21)
    query, images, _ = shop_set(4, seed=1)
    assert sure.rerank(query, images, passes="auto", mean_passes=2).passes == 2
    assert sure.rerank(query, images, passes="auto", mean_passes=1.99).passes == 1


def test_auto_passes_need_the_margins_of_auto(reranker: LADReranker) -> None:
    query, images, _ = shop_set(3, seed=1)
    for method in ("lad", "vanilla", "pride"):
        with pytest.raises(InvalidRequestError, match=f"needs method='auto'.*{method}"):
            reranker.rerank(query, images, method=method, passes="auto")
    with pytest.raises(InvalidRequestError, match="needs method='auto'"):
        LADReranker(reranker.backbone, method="lad").rerank(query, images, passes="auto")
    with pytest.raises(InvalidRequestError, match="passes must be"):
        reranker.rerank(query, images, passes=0)
    with pytest.raises(InvalidRequestError, match="mean_passes must be"):
        reranker.rerank(query, images, passes="auto", mean_passes=3)


def test_without_a_choice_there_is_one_look(reranker: LADReranker) -> None:
    """A calibration of one or two samples knows no margins, and ranks by the paper's recipe."""
    assert reranker.calibration is not None
    counts = {4: reranker.calibration.counts[4].model_copy(update={"choice": None})}
    bare = LADReranker(
        reranker.backbone, calibration=reranker.calibration.model_copy(update={"counts": counts}), store=reranker.store
    )
    query, images, _ = shop_set(4, seed=3)
    ranking = bare.rerank(query, images, passes="auto", mean_passes=1.9)
    assert ranking.passes == 1
    assert by_id(ranking) == pytest.approx(by_id(bare.rerank(query, images, method="lad")))


def test_windows_look_as_often_at_every_group(reranker: LADReranker) -> None:
    query, images, _ = shop_set(30, seed=600)
    assert reranker.rerank(query, images, passes=1).passes == 4  # three windows of ten, and their winners
    assert reranker.rerank(query, images, passes=2).passes == 8
    assert reranker.rerank(query, images, passes=8).passes == 27  # the final three stand in three shifts at most
    assert reranker.rerank(query, images, passes="auto", mean_passes=1).passes == 4
    assert reranker.rerank(query, images, passes="auto", mean_passes=2).passes == 8
    unsure = reranker.rerank(query, images, passes="auto", mean_passes=1.5)
    assert 4 <= unsure.passes <= 8
    turned = reranker.rerank(query, images[::-1], passes="auto", mean_passes=1.5)
    assert [hit.index for hit in unsure] == [29 - hit.index for hit in turned]
    best = reranker.rerank(query, images, top_n=2, passes=2)
    assert len(best) == 2


def test_many_with_auto_passes_are_each_alone(reranker: LADReranker) -> None:
    work = [shop_set(n, seed=700 + n) for n in (8, 3, 20, 12, 8, 2)]
    queries, lists = [w[0] for w in work], [w[1] for w in work]
    queries += ["the only one", "a blue one", "nobody"]
    lists += [lists[0][:1], lists[0], []]
    together = reranker.rerank_many(queries, lists, passes="auto", mean_passes=1.25)
    assert {ranking.passes for ranking in together} >= {0, 1, 2}
    for query, images, ranking in zip(queries, lists, together, strict=True):
        alone = reranker.rerank(query, images, passes="auto", mean_passes=1.25)
        assert alone.passes == ranking.passes
        assert [h.id for h in alone] == [h.id for h in ranking]
        np.testing.assert_allclose([h.score for h in alone], [h.score for h in ranking], atol=1e-5)
        assert alone.confidence == pytest.approx(ranking.confidence, abs=1e-4)


def test_threads_with_auto_passes(reranker: LADReranker) -> None:
    work = [shop_set(n, seed=500 + n) for n in (8, 4, 20)]
    alone = [by_id(reranker.rerank(q, i, passes="auto", mean_passes=1.5)) for q, i, _ in work]
    results: dict[tuple[int, int], dict[str, float]] = {}

    def run(worker: int) -> None:
        for i in range(len(work)):
            k = (i + worker) % len(work)
            results[worker, k] = by_id(reranker.rerank(*work[k][:2], passes="auto", mean_passes=1.5))

    threads = [threading.Thread(target=run, args=(w,)) for w in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9
    for (_, k), got in results.items():
        assert got == pytest.approx(alone[k], abs=1e-5)


@pytest.mark.parametrize("passes", ALL_PASSES)
def test_odd_lists(reranker: LADReranker, passes: Passes) -> None:
    query, images, target = shop_set(4, seed=6)
    assert reranker.rerank(query, [], passes=passes).passes == 0
    one = reranker.rerank(query, images[:1], passes=passes)
    assert [hit.score for hit in one] == [1.0]
    assert one.passes == 0
    twins = reranker.rerank(query, [images[0], images[0].copy(), images[0].copy()], passes=passes)
    assert [hit.score for hit in twins] == pytest.approx([1 / 3] * 3)
    assert [hit.index for hit in twins] == [0, 1, 2]
    assert twins.passes == 0
    broken = reranker.rerank(query, [b"x", Candidate(), Candidate(text=" \n")], passes=passes)
    assert len(broken.failed) == 3
    assert list(broken) == []
    assert broken.confidence is None
    doubled = reranker.rerank(query, [b"x", *images, images[target].copy()], top_n=2, passes=passes)
    assert {hit.index for hit in doubled} == {target + 1, 5}
    assert doubled[0].score == doubled[1].score
