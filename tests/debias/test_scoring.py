from __future__ import annotations

import numpy as np
import pytest

from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.scoring import SCORERS, ScoringSettings, get_scorer, listwise_probabilities, score
from lad_rerank.errors import DegenerateScoresError, InvalidRequestError
from lad_rerank.records import Observation


def bias(n: int = 3, layers: tuple[int, ...] = (0, 1)) -> PositionBias:
    rng = np.random.default_rng(n)
    profile = log_softmax(rng.normal(size=(n, n)) + 2 * np.eye(n))
    return PositionBias(profile, 2.0, rng.uniform(0.05, 0.2, (len(layers), n)), layers)


def seen(n: int = 3, layers: tuple[int, ...] = (0, 1), seed: int = 1) -> Observation:
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet(np.ones(n + 1), size=(len(layers), 4))[:, :, :n]
    return Observation(log_softmax(rng.normal(size=n)), {"last": attention}, layers, 1.0, 10)


def test_pride_takes_one_prior_per_position_off() -> None:
    expected = seen().log_probs - bias().profile.mean(axis=0)
    np.testing.assert_allclose(score(seen(), bias(), "pride").log_scores, expected)


def test_lad_is_the_residual_against_the_expected_profile_plus_an_attention_vote() -> None:
    # method.md: score = z - pi O + log g * pi, up to a constant.
    result = score(seen(), bias(), "lad")
    pi = result.posterior
    assert pi is not None
    expected = seen().log_probs - pi @ bias().profile + bias().log_gain * pi
    np.testing.assert_allclose(result.log_scores, expected)


def test_probability_mixture_is_equation_13() -> None:
    result = score(seen(), bias(), "lad", ScoringSettings(mixture="probability"))
    assert result.posterior is not None
    mixed = result.posterior @ np.exp(log_softmax(bias().bias))
    np.testing.assert_allclose(result.log_scores, seen().log_probs - np.log(mixed))


def test_attention_ranks_by_the_posterior() -> None:
    result = score(seen(), bias(), "attention")
    np.testing.assert_allclose(listwise_probabilities(result.log_scores), result.posterior)


def test_lad_removes_a_pure_position_bias() -> None:
    # A model that always says "first", while its attention finds the target.
    n, profile = 4, np.tile(log_softmax(np.array([9.0, 0.0, 0.0, 0.0])), (4, 1)) + 0.5 * np.eye(4)
    model = PositionBias(profile, 4.0, np.full((1, n), 0.2), (0,))
    for target in range(n):
        attention = np.full((1, 1, n), 0.15)
        attention[0, 0, target] = 0.4
        observation = Observation(profile[target], {"last": attention}, (0,), 1.0, 10)
        assert score(observation, model, "vanilla").log_scores.argmax() == 0
        assert score(observation, model, "lad").log_scores.argmax() == target


def test_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match=r"vanilla, raw_attention, .*pride.*, auto"):
        get_scorer("lda")


@pytest.mark.parametrize("method", [m for m, s in SCORERS.items() if s.needs_calibration])
def test_a_missing_or_wrong_calibration_is_an_error(method: str) -> None:
    with pytest.raises(InvalidRequestError, match="needs a calibration for 3"):
        score(seen(), None, method)
    with pytest.raises(InvalidRequestError, match="is for 4 candidates, the pass showed 3"):
        score(seen(), bias(4), method)


def test_other_layers_are_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="calibrate again"):
        score(seen(layers=(0, 1)), bias(layers=(1, 2)), "lad")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_scores_are_refused(bad: float) -> None:
    observation = Observation(np.array([bad, -1.0, -2.0]), seen().attention, (0, 1), 1.0, 10)
    with pytest.raises(DegenerateScoresError, match="NaN or infinite"):
        score(observation, bias(), "lad")


def test_equal_scores_are_refused() -> None:
    observation = Observation(np.full(3, -np.log(3)), seen().attention, (0, 1), 1.0, 10)
    with pytest.raises(DegenerateScoresError, match="the same score"):
        score(observation, None, "vanilla")
