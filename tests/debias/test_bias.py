from __future__ import annotations

import numpy as np
import pytest

from lad_rerank.debias.bias import conditional_bias, log_gain, observed_profile, position_bias


def test_profile_is_the_mean_over_passes_with_the_target_there() -> None:
    log_probs = np.log(np.array([[0.6, 0.4], [0.8, 0.2], [0.3, 0.7]]))
    profile = observed_profile(log_probs, np.array([0, 0, 1]))
    np.testing.assert_allclose(profile[0], log_probs[:2].mean(axis=0))
    np.testing.assert_allclose(profile[1], log_probs[2])


def test_a_position_that_never_held_the_target_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"position\(s\) \[1\]"):
        observed_profile(np.zeros((2, 2)), np.array([0, 0]))


def test_gain_is_the_largest_margin_and_leaves_the_diagonal() -> None:
    profile = np.array([[0.0, -1.0, -2.0], [-3.0, -0.5, -4.0], [-1.0, -1.0, -1.0]])
    assert log_gain(profile) == pytest.approx(3.5)
    bias = conditional_bias(profile, 3.5)
    assert np.diag(bias) == pytest.approx(np.diag(profile) - 3.5)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(bias[off], profile[off])


def test_position_bias_averages_attention() -> None:
    attention = np.random.default_rng(0).random((4, 3, 2))
    bias = position_bias(np.zeros((4, 2)), attention, np.array([0, 1, 0, 1]), (5, 6, 7))
    np.testing.assert_allclose(bias.attention_prior, attention.mean(axis=0))
    assert bias.layers == (5, 6, 7)
    assert bias.n == 2
