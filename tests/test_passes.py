from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lad_rerank.errors import InvalidRequestError
from lad_rerank.passes import MEAN_PASSES, PassPlan, opposite


@pytest.mark.parametrize("count", range(1, 15))
def test_shifts_are_different_and_spread_evenly(count: int) -> None:
    for n in range(2, 27):
        shifts = PassPlan.of(count).shifts(n)
        assert len(set(shifts)) == len(shifts) == min(count, n)
        assert shifts[0] == 0
        assert all(0 <= s < n for s in shifts)
        gaps = np.diff([*shifts, n])
        assert gaps.max() - gaps.min() <= 1


def test_two_passes_stand_opposite() -> None:
    for n in range(2, 27):
        assert PassPlan.of(2).shifts(n) == [0, opposite(n)]
        assert 0 < opposite(n) < n
        assert abs(n - 2 * opposite(n)) <= 1
    assert PassPlan.of(8).shifts(8) == list(range(8))
    assert PassPlan.of(99).shifts(5) == list(range(5))


def test_auto_looks_once_and_then_where_unsure() -> None:
    assert PassPlan.of("auto") == PassPlan(1, True, MEAN_PASSES)
    assert PassPlan.of("auto", 1.1) == PassPlan(1, True, 1.1)
    assert PassPlan.of("auto", 2).mean_passes == 2.0
    assert PassPlan.of("auto").shifts(8) == [0]
    assert not PassPlan.of(1).unsure
    assert not PassPlan.of(3, 1.5).unsure


@pytest.mark.parametrize("passes", [0, -1, True, 1.0, "2", "Auto", "", None, [1], np.array([1, 2])])
def test_other_numbers_of_passes_are_refused(passes: Any) -> None:
    with pytest.raises(InvalidRequestError, match="passes must be a whole number of at least 1, or 'auto'"):
        PassPlan.of(passes)


@pytest.mark.parametrize("mean", [0.99, 2.01, 0, -1, True, math.nan, math.inf, "1.5", [1.5]])
@pytest.mark.parametrize("passes", ["auto", 1])
def test_other_mean_passes_are_refused(passes: Any, mean: Any) -> None:
    with pytest.raises(InvalidRequestError, match="mean_passes must be a number from 1 to 2"):
        PassPlan.of(passes, mean)
