from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lad_rerank.evaluation.permutations import (
    arranged,
    balanced_orders,
    cyclic_orders,
    random_orders,
    williams_orders,
)

COUNTS = st.integers(min_value=2, max_value=26)


@given(COUNTS)
def test_squares_show_every_candidate_once_at_every_position(n: int) -> None:
    for orders in (cyclic_orders(n), williams_orders(n)):
        assert len(orders) == n
        for line in (*orders, *zip(*orders, strict=True)):
            assert sorted(line) == list(range(n))


def test_shapes_of_the_squares() -> None:
    assert cyclic_orders(3) == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert williams_orders(4) == [(0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1)]
    assert williams_orders(5)[0] == (0, 1, 4, 2, 3)


@given(COUNTS.filter(lambda n: n % 2 == 0))
def test_williams_balances_what_stands_before(n: int) -> None:
    pairs = Counter((a, b) for order in williams_orders(n) for a, b in itertools.pairwise(order))
    assert set(pairs.values()) == {1}
    assert len(pairs) == n * (n - 1)


def test_random_orders_are_permutations_drawn_by_the_seed() -> None:
    orders = random_orders(6, 4, np.random.default_rng(3))
    assert orders == random_orders(6, 4, np.random.default_rng(3))
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(6)) for order in orders)


def test_arranged_orders_a_list_that_has_one() -> None:
    assert arranged((2, 0, 1), [(0, 1, 2), (1, 2, 0)]) == [(2, 0, 1), (0, 1, 2)]


@pytest.mark.parametrize(("n", "instances", "orders"), [(4, 40, 5), (8, 50, 3), (3, 7, 3)])
def test_targets_stand_equally_often_everywhere(n: int, instances: int, orders: int) -> None:
    targets = [q % n for q in range(instances)]
    runs = balanced_orders([n] * instances, targets, orders, np.random.default_rng(0))
    for run in runs:
        seen = Counter(order.index(target) for order, target in zip(run, targets, strict=True))
        assert max(seen.values()) - min(seen[i] for i in range(n)) <= 1
    for q, target in enumerate(targets):
        assert len({run[q].index(target) for run in runs}) == min(n, orders)
        assert all(sorted(run[q]) == list(range(n)) for run in runs)


def test_balance_with_lists_of_several_lengths_and_without_target() -> None:
    counts, targets = [4, 6, 4, 6, 5], [0, 5, 3, None, None]
    runs = balanced_orders(counts, targets, 12, np.random.default_rng(1))
    assert all(sorted(order) == list(range(n)) for run in runs for order, n in zip(run, counts, strict=True))
    assert Counter(run[1].index(5) for run in runs) == dict.fromkeys(range(6), 2)
    assert len({run[4] for run in runs}) > 6
    # The others are shuffled too: who stands before the target varies.
    assert len({run[0][(run[0].index(0) + 1) % 4] for run in runs}) == 3
