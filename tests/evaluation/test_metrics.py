from __future__ import annotations

import numpy as np
import pytest

from lad_rerank.evaluation.metrics import accuracy, consistency, recall_by_position, recall_std, reciprocal_rank


def test_accuracy_for_each_order() -> None:
    choices = np.array([[0, 1, 2], [0, 0, 2]])
    np.testing.assert_allclose(accuracy(choices, [{0}, {1, 2}, set()]), [2 / 3, 1 / 3])


def test_consistency_needs_all_orders() -> None:
    assert consistency(np.array([[0, 1], [0, 1], [0, 2]])) == 0.5


def test_recall_std_is_the_papers() -> None:
    recall = recall_by_position(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    np.testing.assert_allclose(recall, [0.5, 1.0, np.nan])
    assert recall_std(recall) == pytest.approx(100 * np.std([0.5, 1.0], ddof=1))


def test_reciprocal_rank() -> None:
    assert reciprocal_rank([3, 1, 2], {2, 1}) == 0.5
    assert reciprocal_rank([3, 1], {7}) == 0.0
