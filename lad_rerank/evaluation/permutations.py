"""In which orders the same candidates are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Order = tuple[int, ...]
"""Which candidate stands at each position."""


def random_orders(n: int, k: int, rng: np.random.Generator) -> list[Order]:
    """Independent random orders of n candidates.

    Args:
        n: Number of candidates.
        k: How many orders.
        rng: Draws them.
    """
    return [tuple(rng.permutation(n).tolist()) for _ in range(k)]


def cyclic_orders(n: int) -> list[Order]:
    """All n cyclic shifts: in shift s, position i holds candidate (i + s) mod n.

    Every candidate stands once at every position. A candidate keeps its two neighbours throughout.

    Args:
        n: Number of candidates.
    """
    return [tuple((i + s) % n for i in range(n)) for s in range(n)]


def williams_orders(n: int) -> list[Order]:
    """The n orders of a Williams square: in pass s, position j holds candidate (w_j + s) mod n.

    w = 0, 1, n-1, 2, n-2, ... Every candidate stands once at every position and, for even n, once right behind
    every other: what follows what evens out too (Williams 1949).

    Args:
        n: Number of candidates.
    """
    zigzag = [(j + 1) // 2 if j % 2 else (n - j // 2) % n for j in range(n)]
    return [tuple((w + s) % n for w in zigzag) for s in range(n)]


def arranged(base: Sequence[int], orders: Sequence[Order]) -> list[Order]:
    """Orders of an already ordered list: position i holds ``base[order[i]]``.

    Args:
        base: Candidates in some order.
        orders: Orders of as many.
    """
    return [tuple(base[i] for i in order) for order in orders]


def balanced_orders(
    counts: Sequence[int], targets: Sequence[int | None], orders: int, rng: np.random.Generator
) -> list[list[Order]]:
    """Random orders in which targets stand equally often at every position.

    In each order the targets of all instances with N candidates are spread evenly over the N positions, as far
    as their number allows, and over the orders one instance's target moves to a new position each time until it
    was at all of them. All else is random.

    Args:
        counts: Q numbers of candidates.
        targets: Q targets; ``None`` for an instance without one, which is shown in plain random orders.
        orders: T.
        rng: Draws them.

    Returns:
        T lists of Q orders.
    """
    starts: list[int] = [0] * len(counts)
    moves: dict[int, list[int]] = {}
    for n in sorted(set(counts)):
        own = [
            q
            for q, (count, target) in enumerate(zip(counts, targets, strict=True))
            if (count, target is None) == (n, False)
        ]
        for q, start in zip(own, rng.permutation(np.arange(len(own)) % n).tolist(), strict=True):
            starts[q] = start
        moves[n] = rng.permutation(n).tolist()
    drawn: list[list[Order]] = []
    for t in range(orders):
        run: list[Order] = []
        for q, (n, target) in enumerate(zip(counts, targets, strict=True)):
            order = rng.permutation(n).tolist()
            if target is not None:
                order.remove(target)
                order.insert((starts[q] + moves[n][t % n]) % n, target)
            run.append(tuple(order))
        drawn.append(run)
    return drawn
