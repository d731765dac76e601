from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lad_rerank.backbones.label_scoring import Tokens, continuations, label_log_probs, label_mass, needs_cache
from lad_rerank.errors import BackboneError

VOCABULARY = 20
END = 19


def digits(n: int) -> list[Tokens]:
    """Labels 1..n, each digit one token."""
    return [tuple(int(c) for c in str(i)) for i in range(1, n + 1)]


def logits_of(prefix: Tokens) -> np.ndarray:
    return np.random.default_rng([7, *prefix]).normal(size=VOCABULARY) * 3


def read(labels: Sequence[Tokens]) -> np.ndarray:
    return label_log_probs(labels, END, logits_of(()), lambda ps: np.stack([logits_of(p) for p in ps]))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 99))
def test_probabilities_sum_to_one(n: int) -> None:
    assert abs(np.exp(read(digits(n))).sum() - 1) < 1e-9


def test_three_digits_sum_to_one_too() -> None:
    assert abs(np.exp(read(digits(123))).sum() - 1) < 1e-9


def test_one_token_labels_are_a_restricted_softmax_without_a_further_step() -> None:
    def never(prefixes: Sequence[Tokens]) -> np.ndarray:
        raise AssertionError("no further token is needed")

    labels = digits(9)
    values = logits_of(())[1:10]
    expected = values - np.log(np.exp(values).sum())
    np.testing.assert_allclose(label_log_probs(labels, END, logits_of(()), never), expected)
    assert not needs_cache(labels, END)


def test_a_label_that_begins_another_ends_with_the_end_token() -> None:
    # P("1") = P(1 first) * P(END | 1), with "10".."12" as the other ways to go on.
    log_probs = read(digits(12))
    first = logits_of(())[1:10]
    second = logits_of((1,))[[0, 1, 2, END]]
    p1 = np.exp(first[0]) / np.exp(first).sum()
    step = np.exp(second) / np.exp(second).sum()
    assert np.exp(log_probs[0]) == pytest.approx(p1 * step[3])
    assert np.exp(log_probs[9:]) == pytest.approx(p1 * step[:3])
    assert needs_cache(digits(12), END)


def test_only_shared_beginnings_are_asked_for() -> None:
    asked: list[Tokens] = []

    def record(prefixes: Sequence[Tokens]) -> np.ndarray:
        asked.extend(prefixes)
        return np.stack([logits_of(p) for p in prefixes])

    label_log_probs(digits(25), END, logits_of(()), record)
    assert asked == [(1,), (2,)]


def test_ambiguous_labels_are_refused() -> None:
    with pytest.raises(BackboneError, match="apart"):
        continuations([(1,), (1,)], END)
    with pytest.raises(BackboneError, match="apart"):
        continuations([(1,), ()], END)


def test_label_mass_is_a_share_of_the_whole_vocabulary() -> None:
    logits = np.zeros(VOCABULARY)
    assert label_mass(digits(5), logits) == pytest.approx(5 / VOCABULARY)
