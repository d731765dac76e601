from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lad_rerank import LADReranker
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.contents import Content
from lad_rerank.errors import CalibrationMissingError, InvalidRequestError
from lad_rerank.evaluation.cost import Meter
from lad_rerank.evaluation.orders import Instance, observe_orders, observe_shown, rankings
from lad_rerank.prompt import NULL_QUERY
from tests.evaluation.observed import ORDERS, QUERIES, N, shop_instances, shop_runs
from tests.shop import shop_set


def test_instance_of_pictures_and_contents() -> None:
    _, images, _ = shop_set(2, 0)
    text = Content.of(text="a mug")
    instance = Instance.of("mug", [images[0], text], [1], id="a")
    assert instance.contents[0].image is images[0]
    assert instance.contents[1] is text
    assert (instance.n, instance.relevant, instance.answerable) == (2, frozenset({1}), True)


def test_instances_without_a_right_candidate() -> None:
    texts = [Content.of(text=t) for t in "ab"]
    assert not Instance.of("mug", texts, ()).answerable
    assert Instance.of("mug", texts, (), retrieved=False).answerable


@pytest.mark.parametrize(("relevant", "retrieved"), [({2}, True), ({-1}, True), ({0}, False)])
def test_contradictory_instances_are_refused(relevant: set[int], retrieved: bool) -> None:
    with pytest.raises(InvalidRequestError, match="'x'"):
        Instance.of("mug", [Content.of(text=t) for t in "ab"], relevant, id="x", retrieved=retrieved)


def test_orders_are_the_seeds_and_balanced(backbone: HuggingFaceBackbone) -> None:
    observed = shop_runs(backbone)
    assert len(observed.runs) == ORDERS
    assert all(len(run) == QUERIES for run in observed.runs)
    again = observe_orders(backbone, shop_instances(), orders=ORDERS, seed=5)
    assert again.shown == observed.shown
    for run in observed.shown:
        targets = [shown.index(min(i.relevant)) for shown, i in zip(run, shop_instances(), strict=True)]
        assert set(Counter(targets).values()) <= {1, 2}


def test_batches_see_what_single_passes_see(backbone: HuggingFaceBackbone) -> None:
    for run in shop_runs(backbone).runs[:2]:
        for seen, instance in zip(run[:2], shop_instances(), strict=False):
            alone = backbone.observe(instance.query, [instance.contents[i] for i in seen.shown])
            np.testing.assert_allclose(seen.observation.log_probs, alone.log_probs, atol=1e-4)


def test_null_query_over_the_same_list(backbone: HuggingFaceBackbone) -> None:
    instances = shop_instances()[:2]
    (run,) = observe_orders(backbone, instances, orders=1, null=True).runs
    for seen, instance in zip(run, instances, strict=True):
        empty = seen.observation.null
        assert empty is not None
        assert empty.null is None
        alone = backbone.observe(NULL_QUERY, [instance.contents[i] for i in seen.shown])
        np.testing.assert_allclose(empty.log_probs, alone.log_probs, atol=1e-4)
        assert np.abs(empty.log_probs - seen.observation.log_probs).max() > 0.1
    assert shop_runs(backbone).runs[0][0].observation.null is None


def test_cost_and_progress(backbone: HuggingFaceBackbone) -> None:
    told: list[tuple[int, int]] = []
    observed = observe_shown(
        backbone, shop_instances()[:2], [[(0, 1, 2, 3)] * 2] * 2, progress=lambda d, t: told.append((d, t))
    )
    assert told == [(2, 4), (4, 4)]
    assert observed.shown == [[(0, 1, 2, 3)] * 2] * 2
    assert observed.seconds_per_pass is not None
    assert 0 < observed.seconds_per_pass < 60
    assert observed.peak_bytes is None or observed.peak_bytes > 10_000_000


def test_the_meter_sees_what_was_held_only_for_a_while() -> None:
    with Meter() as small:
        pass
    with Meter() as large:
        held = np.ones(25_000_000)
        del held
    if small.peak_bytes is None or large.peak_bytes is None:
        pytest.skip("this system does not tell")
    assert large.peak_bytes - small.peak_bytes > 100_000_000
    assert large.seconds > 0


def test_no_instances(backbone: HuggingFaceBackbone) -> None:
    observed = observe_orders(backbone, [], orders=2)
    assert (observed.runs, observed.seconds_per_pass) == ([[], []], None)


def test_rankings_are_of_candidates_not_positions(reranker: LADReranker, backbone: HuggingFaceBackbone) -> None:
    runs = shop_runs(backbone).runs
    for run in runs:
        for ranked, seen in zip(rankings(run, None, "vanilla"), run, strict=True):
            assert sorted(ranked) == list(range(N))
            assert ranked[0] == seen.shown[int(np.argmax(seen.observation.log_probs))]
    with pytest.raises(InvalidRequestError, match="calibration"):
        rankings(runs[0], None, "lad")
    calibration = reranker.calibration
    assert calibration is not None
    without = calibration.model_copy(update={"counts": {n: c for n, c in calibration.counts.items() if n != N}})
    with pytest.raises(CalibrationMissingError):
        rankings(runs[0], without, "lad")
