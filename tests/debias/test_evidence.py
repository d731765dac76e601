from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lad_rerank.debias.evidence import layers_by_mass, log_softmax, posterior, purified_log_evidence


def test_layers_with_the_largest_mass_are_chosen() -> None:
    attention = np.array([[0.1, 0.1], [0.4, 0.3], [0.2, 0.2], [0.05, 0.9]])
    assert layers_by_mass(attention, 2).tolist() == [1, 3]
    assert layers_by_mass(attention, 9).tolist() == [0, 1, 2, 3]


def test_equal_masses_choose_the_first_layers() -> None:
    assert layers_by_mass(np.ones((4, 3)), 2).tolist() == [0, 1]


def test_attention_like_the_prior_is_no_evidence() -> None:
    prior = np.array([[0.5, 0.3, 0.1], [0.2, 0.2, 0.4]])
    both = np.array([0, 1])
    np.testing.assert_allclose(purified_log_evidence(prior, prior, both), 0, atol=1e-12)
    np.testing.assert_allclose(posterior(np.zeros(3), 5.0), 1 / 3)


def test_the_two_means_over_layers_are_the_papers_and_the_codes() -> None:
    attention = np.array([[0.1, 0.4], [0.3, 0.2]])
    prior = np.array([[0.2, 0.2], [0.1, 0.3]])
    both = np.array([0, 1])
    paper = (np.log(attention) - np.log(prior)).mean(axis=0)
    code = np.log(attention.mean(axis=0)) - np.log(prior).mean(axis=0)
    np.testing.assert_allclose(purified_log_evidence(attention, prior, both, "geometric"), paper)
    np.testing.assert_allclose(purified_log_evidence(attention, prior, both, "arithmetic"), code)


def test_no_attention_at_all_stays_finite() -> None:
    evidence = purified_log_evidence(np.zeros((1, 2)), np.ones((1, 2)), np.array([0]))
    assert np.isfinite(evidence).all()


@given(arrays(np.float64, 5, elements=st.floats(-1e4, 1e4)))
def test_log_softmax_sums_to_one(x: np.ndarray) -> None:
    assert abs(np.exp(log_softmax(x)).sum() - 1) < 1e-9
