from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_rerank.errors import InvalidRequestError
from lad_rerank.windows import Group, Rounds, balanced, rounds


def play(game: Rounds, score: Callable[[Group], np.ndarray]) -> tuple[np.ndarray, list[Group]]:
    """Run the rounds with a judge; the result and every group that met."""
    met: list[Group] = []
    groups = next(game)
    while True:
        met += groups
        try:
            groups = game.send([score(group) for group in groups])
        except StopIteration as stop:
            return stop.value, met


def honest(group: Group) -> np.ndarray:
    """A judge who knows the truth: a smaller number is better."""
    return -np.array(group, dtype=np.float64)


def test_windows_are_balanced_for_all_counts() -> None:
    for count, window in itertools.product(range(2, 120), range(2, 27)):
        sizes = balanced(count, window)
        assert sum(sizes) == count
        assert max(sizes) <= window
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-count // window)
    with pytest.raises(InvalidRequestError, match="at least 2"):
        balanced(5, 1)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 90), st.integers(2, 14), st.none() | st.integers(1, 90), st.integers(0, 9))
def test_every_candidate_comes_out_once_and_what_met_stands(m: int, window: int, top_n: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(m).tolist()
    scores, met = play(rounds(order, window, top_n), lambda g: rng.normal(size=len(g)))
    assert scores.shape == (m,)
    assert np.isfinite(scores).all()
    assert {c for group in met for c in group} == set(order)
    assert all(2 <= len(group) <= window for group in met)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 90), st.integers(2, 14), st.integers(1, 5), st.integers(0, 9))
def test_an_honest_judge_gets_the_best_on_top(m: int, window: int, top_n: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(m).tolist()
    scores, _ = play(rounds(order, window, top_n), honest)
    ranked = [order[i] for i in np.argsort(-scores, kind="stable")]
    assert ranked[0] == 0
    if top_n <= window // len(balanced(m, window)):
        assert ranked[:top_n] == list(range(m))[:top_n]


def test_a_loser_stands_below_every_finalist_of_its_window() -> None:
    rng = np.random.default_rng(0)
    answers: dict[Group, np.ndarray] = {}

    def judge(group: Group) -> np.ndarray:
        return answers.setdefault(group, rng.normal(size=len(group)))

    scores, met = play(rounds(range(20), 8, 2), judge)
    final, windows = met[-1], met[:-1]
    at = dict(enumerate(scores))
    for group in windows:
        best = [group[i] for i in np.argsort(-answers[group])[:2]]
        assert set(best) <= set(final)
        losers = [c for c in group if c not in best]
        assert max(at[c] for c in losers) < min(at[c] for c in best)
        by_pass = [c for c in np.array(group)[np.argsort(-answers[group])] if c in losers]
        assert sorted(losers, key=lambda c: -at[c]) == by_pass
    assert [final[i] for i in np.argsort(-answers[final])] == sorted(final, key=lambda c: -at[c])


def test_few_candidates_are_one_pass() -> None:
    _, met = play(rounds([3, 1, 2], 8), honest)
    assert met == [(3, 1, 2)]
