"""Rows with passes of their own, on the bundled model: what each does is done by hand beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lad_rerank.backbones.generating import generate
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.backbones.soft_mask import observe_softened
from lad_rerank.bundled import shop
from lad_rerank.calibration.making import make_calibration
from lad_rerank.calibration.record import Calibration
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.errors import RowUnavailableError
from lad_rerank.evaluation import label_ensemble
from lad_rerank.evaluation.extra_passes import EXTRA_ROWS, drawn_orders, majority
from lad_rerank.evaluation.generated import parse_label
from lad_rerank.evaluation.measuring import row_report
from lad_rerank.evaluation.orders import Instance, observe_orders
from lad_rerank.evaluation.permutations import arranged, cyclic_orders, williams_orders
from lad_rerank.evaluation.results import RowResult
from lad_rerank.evaluation.rows import scored
from lad_rerank.evaluation.shop_sets import shop_samples
from lad_rerank.records import FloatArray
from tests.backbones.tiny import build

N, ORDERS, SEED = 4, 2, 5
CHOOSING = {"free_generation": 1, "chain_of_thought": 1, "self_consistency": 10}
RANKING = {"instruction": 1, "sofa": 1, "average_random": N, "average_cyclic": N, "average_williams": N}


@pytest.fixture(scope="module")
def instances() -> list[Instance]:
    sets = [shop.candidate_set(N, seed, "random", "held_out") for seed in range(3)]
    return [Instance.of(one.caption, [item.image() for item in one.candidates], [one.target]) for one in sets]


@pytest.fixture(scope="module")
def rows(backbone: HuggingFaceBackbone, instances: list[Instance]) -> dict[str, RowResult]:
    return {
        name: row.run(backbone, instances, ORDERS, SEED) for name, row in EXTRA_ROWS.items() if name != "label_ensemble"
    }


def mean_by_candidate(backbone: HuggingFaceBackbone, instance: Instance, orders: list[tuple[int, ...]]) -> FloatArray:
    total = np.zeros(instance.n)
    for order in orders:
        seen = backbone.observe(instance.query, [instance.contents[i] for i in order]).log_probs
        for position, candidate in enumerate(order):
            total[candidate] += seen[position]
    return total / len(orders)


def test_orders_are_those_of_the_stored_passes(backbone: HuggingFaceBackbone, instances: list[Instance]) -> None:
    assert drawn_orders(instances, ORDERS, SEED) == observe_orders(backbone, instances, orders=ORDERS, seed=SEED).shown


def test_all_rows_are_there_and_measured(rows: dict[str, RowResult], instances: list[Instance]) -> None:
    assert {*EXTRA_ROWS} == {*CHOOSING, *RANKING, "label_ensemble"}
    for name, row in rows.items():
        expected = {**CHOOSING, **RANKING}[name]
        assert (row.name, row.passes, EXTRA_ROWS[name].passes(N)) == (name, expected, expected)
        assert row.seconds is not None
        assert row.seconds > 0
        assert [len(run) for run in row.ranked] == [len(instances)] * ORDERS
        report = row_report(row, instances, drawn_orders(instances, ORDERS, SEED))
        assert report.accuracy is not None
        assert report.no_answer == 0


@pytest.mark.parametrize("name", CHOOSING)
def test_generated_rows_choose_one(rows: dict[str, RowResult], name: str) -> None:
    assert all(len(ranking) == 1 for run in rows[name].ranked for ranking in run)
    assert rows[name].probabilities is None


@pytest.mark.parametrize("name", RANKING)
def test_the_others_rank_all(rows: dict[str, RowResult], name: str) -> None:
    row = rows[name]
    assert all(sorted(ranking) == list(range(N)) for run in row.ranked for ranking in run)
    for ranked, probabilities in zip(row.ranked, row.probabilities or [], strict=True):
        for ranking, probability in zip(ranked, probabilities, strict=True):
            assert sum(probability) == pytest.approx(1)
            assert list(ranking) == sorted(ranking, key=lambda i: -probability[i])


def test_free_generation_says_the_likeliest_label(
    rows: dict[str, RowResult], backbone: HuggingFaceBackbone, instances: list[Instance]
) -> None:
    vanilla = scored(observe_orders(backbone, instances, orders=ORDERS, seed=SEED), None, "vanilla")
    assert [[r[0] for r in run] for run in rows["free_generation"].ranked] == [
        [r[0] for r in run] for run in vanilla.ranked
    ]


@pytest.mark.parametrize("name", ["instruction", "sofa"])
def test_rows_of_one_other_pass(
    rows: dict[str, RowResult], backbone: HuggingFaceBackbone, instances: list[Instance], name: str
) -> None:
    fair = backbone.variant(wording="fair")
    for t, order in enumerate(drawn_orders(instances, ORDERS, SEED)):
        for q, (instance, shown) in enumerate(zip(instances, order, strict=True)):
            asked = instance.query, [instance.contents[i] for i in shown]
            seen = fair.observe(*asked) if name == "instruction" else observe_softened(backbone, *asked)
            probabilities = (rows[name].probabilities or [])[t][q]
            np.testing.assert_allclose(np.log([probabilities[i] for i in shown]), seen.log_probs, atol=1e-4)


@pytest.mark.parametrize(("name", "square"), [("average_cyclic", cyclic_orders), ("average_williams", williams_orders)])
def test_averages_over_orders(
    rows: dict[str, RowResult], backbone: HuggingFaceBackbone, instances: list[Instance], name: str, square: Any
) -> None:
    for t, order in enumerate(drawn_orders(instances, ORDERS, SEED)):
        for q, (instance, shown) in enumerate(zip(instances, order, strict=True)):
            mean = mean_by_candidate(backbone, instance, arranged(shown, square(N)))
            np.testing.assert_allclose(np.log((rows[name].probabilities or [])[t][q]), log_softmax(mean), atol=1e-4)


def test_draws_follow_the_seed(
    rows: dict[str, RowResult], backbone: HuggingFaceBackbone, instances: list[Instance]
) -> None:
    done: list[tuple[int, int]] = []
    again = EXTRA_ROWS["average_random"].run(
        backbone, instances, ORDERS, SEED, progress=lambda *counts: done.append(counts)
    )
    for was, is_now in zip(rows["average_random"].probabilities or [], again.probabilities or [], strict=True):
        np.testing.assert_allclose(is_now, was, atol=1e-5)
    assert done == [(i + 1, ORDERS * len(instances)) for i in range(ORDERS * len(instances))]


def test_votes() -> None:
    assert majority([None, 2, 1, 1, 2, None]) == 2
    assert majority([3, 1, 1]) == 1
    assert majority([None, None]) is None


def test_text_without_a_label_is_no_answer() -> None:
    random_weights = HuggingFaceBackbone(*build("qwen2_5_vl"), name="tiny")
    one = shop.candidate_set(2, 0, "random", "held_out")
    instance = Instance.of(one.caption, [item.image() for item in one.candidates], [one.target])
    row = EXTRA_ROWS["free_generation"].run(random_weights, [instance], 1, SEED)
    ((shown,),) = drawn_orders([instance], 1, SEED)
    (text,) = generate(random_weights, instance.query, [instance.contents[i] for i in shown], max_new_tokens=16)
    assert parse_label(text, ("1", "2")) is None
    assert row.ranked == [[()]]


def test_other_backbones_are_refused(instances: list[Instance]) -> None:
    for name, row in EXTRA_ROWS.items():
        with pytest.raises(RowUnavailableError, match=name):
            row.run(object(), instances, ORDERS, SEED)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def calibrations(backbone: HuggingFaceBackbone) -> list[Calibration]:
    samples = shop_samples(count=2, candidates=N)
    return [
        make_calibration(backbone.variant(labels=style), samples, candidate_counts=[N])
        for style in label_ensemble.STYLES
    ]


def test_scores_of_both_styles_are_added(
    backbone: HuggingFaceBackbone, instances: list[Instance], calibrations: list[Calibration], tmp_path: Path
) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    store.save(calibrations[1])
    shown = drawn_orders(instances, ORDERS, SEED)
    row = label_ensemble.ensemble("both", backbone, instances, shown, calibrations[0], store=store)
    total: Any = 0
    for style, calibration in zip(label_ensemble.STYLES, calibrations, strict=True):
        observed = observe_orders(backbone.variant(labels=style), instances, orders=ORDERS, seed=SEED)
        total += np.log(scored(observed, calibration, "lad").probabilities or [])
    np.testing.assert_allclose(np.log(row.probabilities or []), log_softmax(total), atol=1e-3)
    assert 1 < row.passes < (1.5 if backbone.uses_prefix else 2.1)


def test_calibrations_in_the_users_folder_are_found(
    backbone: HuggingFaceBackbone,
    instances: list[Instance],
    calibrations: list[Calibration],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAD_RERANK_HOME", str(tmp_path))
    for calibration in calibrations:
        CalibrationStore().save(calibration)
    row = EXTRA_ROWS["label_ensemble"].run(backbone, instances, ORDERS, SEED)
    assert all(sorted(ranking) == list(range(N)) for run in row.ranked for ranking in run)


def test_there_is_no_label_ensemble_without_a_calibration(
    backbone: HuggingFaceBackbone, instances: list[Instance], calibrations: list[Calibration], tmp_path: Path
) -> None:
    empty, shown = CalibrationStore([tmp_path], tmp_path), drawn_orders(instances, 1, SEED)
    with pytest.raises(RowUnavailableError, match="no calibration of bundled with labels='letters'"):
        label_ensemble.ensemble("both", backbone, instances, shown, calibrations[0], store=empty)


def test_calibrations_of_other_samples_do_not_mix(
    backbone: HuggingFaceBackbone, instances: list[Instance], calibrations: list[Calibration], tmp_path: Path
) -> None:
    store = CalibrationStore([tmp_path], tmp_path)
    samples = shop_samples(count=2, candidates=N, seed=1)
    store.save(make_calibration(backbone.variant(labels="letters"), samples, candidate_counts=[N]))
    shown = drawn_orders(instances, 1, SEED)
    with pytest.raises(RowUnavailableError, match="different samples"):
        label_ensemble.ensemble("both", backbone, instances, shown, calibrations[0], store=store)
