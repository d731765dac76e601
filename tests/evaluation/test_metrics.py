from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import bootstrap, kendalltau

from lad_rerank.evaluation import metrics
from lad_rerank.evaluation.metrics import NO_CHOICE


def test_accuracy_for_each_order() -> None:
    choices = np.array([[0, 1, 2], [0, 0, NO_CHOICE]])
    np.testing.assert_allclose(metrics.accuracy(choices, [{0}, {1, 2}, set()]), [2 / 3, 1 / 3])


def test_consistency_needs_all_orders_and_answers() -> None:
    assert metrics.consistency(np.array([[0, 1], [0, 1], [0, 2]])) == 0.5
    assert metrics.consistency(np.array([[0, NO_CHOICE], [0, NO_CHOICE]])) == 0.5


def test_top1_agreement_counts_pairs_of_orders() -> None:
    assert metrics.top1_agreement(np.array([[0, 1], [0, 1], [0, 2]])) == pytest.approx((1 + 1 / 3) / 2)
    assert metrics.top1_agreement(np.array([[NO_CHOICE], [NO_CHOICE]])) == 0.0
    assert np.isnan(metrics.top1_agreement(np.array([[0, 1]])))


def test_kendall_tau_is_the_mean_over_pairs_of_orders() -> None:
    rng = np.random.default_rng(0)
    rankings = np.stack([rng.permutation(7) for _ in range(4)])
    ranks = np.argsort(rankings, axis=1)
    pairs = [kendalltau(a, b).statistic for a, b in itertools.combinations(ranks, 2)]
    assert metrics.kendall_tau(rankings) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert metrics.kendall_tau([[2, 0, 1], [2, 0, 1]]) == 1.0
    assert metrics.kendall_tau([[2, 0, 1], [1, 0, 2]]) == -1.0
    assert np.isnan(metrics.kendall_tau([[2, 0, 1]]))


def test_confusion_matrix_by_target_position() -> None:
    matrix = metrics.confusion_matrix(np.array([0, 0, 1, 1]), np.array([0, 2, 1, NO_CHOICE]), 3)
    np.testing.assert_allclose(matrix, [[0.5, 0, 0.5], [0, 0.5, 0], [np.nan] * 3])


def test_recall_std_is_the_papers() -> None:
    recall = metrics.recall_by_position(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    np.testing.assert_allclose(recall, [0.5, 1.0, np.nan])
    assert metrics.recall_std(recall) == pytest.approx(100 * np.std([0.5, 1.0], ddof=1))
    assert np.isnan(metrics.recall_std(np.array([0.5, np.nan])))


def test_calibration_error_weighs_gaps_by_bin() -> None:
    # Two bins of two: 0.95 said and half right; 0.25 said and none right.
    assert metrics.calibration_error([0.92, 0.98, 0.2, 0.3], [1, 0, 0, 0], bins=1) == pytest.approx(0.6 - 0.25)
    assert metrics.calibration_error([0.92, 0.98, 0.21, 0.29], [1, 0, 0, 0]) == pytest.approx(0.5 * 0.45 + 0.5 * 0.25)


def test_calibration_error_of_honest_probabilities_is_small() -> None:
    rng = np.random.default_rng(1)
    said = rng.uniform(0.1, 1, 50_000)
    assert metrics.calibration_error(said, rng.uniform(size=50_000) < said) < 0.01
    assert metrics.calibration_error([1.0, 0.0], [1, 0]) == 0.0
    assert np.isnan(metrics.calibration_error([], []))


def test_auroc_counts_pairs_and_halves_ties() -> None:
    assert metrics.auroc([0.9, 0.5], [0.5, 0.1]) == pytest.approx((2 + 1.5) / 4)
    assert np.isnan(metrics.auroc([0.9], []))


def test_bootstrap_interval_is_scipys_percentile_interval() -> None:
    sample = np.random.default_rng(2).uniform(size=120)
    low, high = metrics.bootstrap_interval(sample, resamples=20_000)
    theirs = bootstrap((sample,), np.mean, n_resamples=20_000, method="percentile", rng=3).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=2e-3)
    assert low < sample.mean() < high
    assert metrics.bootstrap_interval(sample) == metrics.bootstrap_interval(sample)


def test_bootstrap_interval_of_certainty_has_no_width() -> None:
    assert metrics.bootstrap_interval(np.ones(9)) == pytest.approx((1.0, 1.0))
    assert all(np.isnan(metrics.bootstrap_interval([])))
