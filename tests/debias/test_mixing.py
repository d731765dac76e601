"""Every mixer against its formula, written out for one pass at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lad_rerank.debias.bias import PositionBias, profile_noise
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.mixing import MIXERS, WITHOUT_EVIDENCE, profile_log_posterior
from lad_rerank.debias.scoring import SCORERS, ScoringSettings, score
from lad_rerank.records import Observation

Array = NDArray[np.float64]
N, TAU = 5, 3.0


def bias(seed: int = 0) -> PositionBias:
    rng = np.random.default_rng(seed)
    profile = log_softmax(rng.normal(size=(N, N)) + 2 * np.eye(N))
    return PositionBias(profile, 2.5, rng.uniform(0.02, 0.2, (3, N)), (0, 1, 2), noise=0.7)


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum()


def profile_by_hand(z: Array, b: PositionBias) -> Array:
    """Log density of z around each row, less what all rows share."""
    z = z - z.mean()
    rows = b.profile - b.profile.mean(axis=1, keepdims=True)
    return np.array([-((z - row) ** 2).sum() / (2 * b.noise) for row in rows])


FORMULAS: dict[str, Callable[[Array, Array, PositionBias], Array]] = {
    "vanilla": lambda z, e, b: z,
    "pride": lambda z, e, b: z - b.profile.mean(axis=0),
    "attention": lambda z, e, b: np.log(softmax(TAU * e)),
    "lad": lambda z, e, b: np.array(
        [
            z[j] - sum(softmax(TAU * e)[k] * (b.profile[k, j] - b.log_gain * (j == k)) for k in range(N))
            for j in range(N)
        ]
    ),
    "lad_probability": lambda z, e, b: (
        z - np.log(sum(softmax(TAU * e)[k] * softmax(b.profile[k] - b.log_gain * np.eye(N)[k]) for k in range(N)))
    ),
    "profile": lambda z, e, b: profile_by_hand(z, b),
    "lad_profile": lambda z, e, b: np.log(softmax(FORMULAS["lad"](z, e, b))) + profile_by_hand(z, b),
    "attention_profile": lambda z, e, b: np.log(softmax(TAU * e)) + profile_by_hand(z, b),
    "product": lambda z, e, b: np.log(softmax(z - b.profile.mean(axis=0)) * softmax(TAU * e)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_is_its_formula(name: str) -> None:
    rng = np.random.default_rng(1)
    z, e = log_softmax(rng.normal(size=(7, N))), rng.normal(size=(7, N))
    got = MIXERS[name](z, e, bias(), TAU)
    assert got.shape == (7, N)
    for p in range(7):
        expected = FORMULAS[name](z[p], e[p], bias())
        # Scores are defined up to a constant for each pass.
        np.testing.assert_allclose(log_softmax(got[p]), log_softmax(expected), atol=1e-10)


@pytest.mark.parametrize("name", MIXERS)
def test_what_a_mixer_says_it_does_not_read_makes_no_difference(name: str) -> None:
    rng = np.random.default_rng(2)
    z, e = log_softmax(rng.normal(size=(3, N))), rng.normal(size=(3, N))
    same = np.array_equal(MIXERS[name](z, e, bias(), TAU), MIXERS[name](z, e + rng.normal(size=e.shape), bias(), TAU))
    assert same == (name in WITHOUT_EVIDENCE)


@pytest.mark.parametrize("name", sorted(set(MIXERS) - {"vanilla"}))
def test_the_scorer_of_that_name_mixes_the_papers_evidence(name: str) -> None:
    rng = np.random.default_rng(3)
    attention = rng.dirichlet(np.ones(N + 1), size=(3, 4))[:, :, :N]
    observation = Observation(log_softmax(rng.normal(size=N)), {"last": attention}, (0, 1, 2), 1.0, 10)
    mean = attention.mean(axis=1)
    two = sorted(np.argsort(-mean.sum(axis=1))[:2])
    e = (np.log(mean[two]) - np.log(bias().attention_prior[two])).mean(axis=0)
    got = score(observation, bias(), name, ScoringSettings(tau=TAU))
    np.testing.assert_allclose(
        log_softmax(got.log_scores), log_softmax(FORMULAS[name](observation.log_probs, e, bias())), atol=1e-9
    )
    assert (got.posterior is None) == (name in WITHOUT_EVIDENCE)
    assert SCORERS[name].needs_calibration


def test_profile_posterior_is_a_gaussian_likelihood() -> None:
    rng = np.random.default_rng(4)
    profile = log_softmax(rng.normal(size=(N, N)))
    rows = profile - profile.mean(axis=1, keepdims=True)
    targets = rng.integers(0, N, 400)
    z = rows[targets] + rng.normal(0, 0.4, (400, N)) + rng.normal(size=(400, 1))  # a constant of each pass is nothing
    got = log_softmax(profile_log_posterior(z, profile, 0.16))
    own = z - z.mean(axis=1, keepdims=True)
    density = np.stack([-((own - row) ** 2).sum(axis=1) / (2 * 0.16) for row in rows], axis=1)
    np.testing.assert_allclose(got, log_softmax(density), atol=1e-9)
    # With the true variance it is calibrated: as likely as it says.
    assert np.exp(got).max(axis=1).mean() == pytest.approx((got.argmax(axis=1) == targets).mean(), abs=0.06)


def test_profile_noise_is_residual_and_a_share_of_the_signal() -> None:
    profile = np.array([[1.0, -1.0], [-1.0, 1.0]])
    log_probs = np.array([[1.5, -1.5], [-1.0, 1.0], [0.5, -0.5]]) + np.array([[3.0], [0.0], [-9.0]])
    noise = profile_noise(log_probs, np.array([0, 1, 0]), profile)
    assert noise == pytest.approx(1.5 * (4 * 0.25) / 6 + 0.05 * 1.0)


def test_no_noise_at_all_stays_finite() -> None:
    assert np.isfinite(profile_log_posterior(bias().profile, bias().profile, 0.0)).all()
