"""From an Observation and a PositionBias to scores: the method and its one-pass baselines (Eq. 13-14).

Every scorer is a pure function over the same record, so one pass of a model compares all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.evidence import (
    LayerMean,
    layers_by_mass,
    log_softmax,
    posterior,
    purified_log_evidence,
)
from lad_rerank.debias.mixing import MIXERS, WITHOUT_EVIDENCE
from lad_rerank.errors import DegenerateScoresError, InvalidRequestError
from lad_rerank.records import FloatArray, Observation


@dataclass(frozen=True)
class ScoringSettings:
    """How evidence is turned into scores. The defaults are the paper's.

    Attributes:
        top_layers: K, layers chosen by attention mass for each pass (Eq. 9).
        tau: Sharpness of the posterior (Eq. 12).
        layer_mean: ``"geometric"`` (Eq. 11) or ``"arithmetic"`` (the authors' code).
        mixture: ``"log"`` subtracts the posterior-weighted bias in nats, as the authors' code does;
            ``"probability"`` is Eq. 13 to the letter, ``log sum_k pi_k P_bias(j | k)``.
    """

    top_layers: int = 2
    tau: float = 5.0
    layer_mean: LayerMean = "geometric"
    mixture: Literal["log", "probability"] = "log"

    @classmethod
    def authors_code(cls) -> ScoringSettings:
        """The settings under which scores agree with the authors' published code."""
        return cls(layer_mean="arithmetic")


@dataclass(frozen=True)
class Scores:
    """What a scorer makes of one Observation, by position.

    Attributes:
        log_scores: (N,) float64, larger is better, defined up to a constant.
        posterior: (N,) attention posterior (Eq. 12) where the scorer uses one.
    """

    log_scores: FloatArray
    posterior: FloatArray | None = None


@dataclass(frozen=True)
class Scorer:
    """A named way to score an Observation.

    Attributes:
        score: The function; gets ``None`` for the bias when it needs none.
        needs_calibration: Whether a PositionBias for this number of candidates is required.
    """

    score: Callable[[Observation, PositionBias | None, ScoringSettings], Scores]
    needs_calibration: bool


def head_mean(observation: Observation) -> FloatArray:
    """(L, N) head-averaged attention of the last prompt token (Eq. 6)."""
    mean: FloatArray = observation.attention["last"].mean(axis=1)
    return mean


def _attention_posterior(
    observation: Observation, bias: PositionBias, settings: ScoringSettings
) -> tuple[FloatArray, FloatArray]:
    """Purified log evidence and posterior, each (N,)."""
    if observation.layers != bias.layers:
        raise InvalidRequestError(
            f"The calibration was read in layers {bias.layers}, this pass in {observation.layers}; calibrate again."
        )
    attention = head_mean(observation)
    layers = layers_by_mass(attention, settings.top_layers)
    log_evidence = purified_log_evidence(attention, bias.attention_prior, layers, settings.layer_mean)
    return log_evidence, posterior(log_evidence, settings.tau)


def _mixed(mixer: str) -> Callable[[Observation, PositionBias | None, ScoringSettings], Scores]:
    """The scorer that uses one of ``mixing.MIXERS`` with the paper's evidence."""

    def score_mixed(observation: Observation, bias: PositionBias | None, settings: ScoringSettings) -> Scores:
        assert bias is not None
        z = observation.log_probs[None]
        if mixer in WITHOUT_EVIDENCE:
            return Scores(MIXERS[mixer](z, np.zeros_like(z), bias, settings.tau)[0])
        log_evidence, pi = _attention_posterior(observation, bias, settings)
        name = "lad_probability" if mixer == "lad" and settings.mixture == "probability" else mixer
        return Scores(MIXERS[name](z, log_evidence[None], bias, settings.tau)[0], pi)

    score_mixed.__doc__ = MIXERS[mixer].__doc__
    return score_mixed


def _vanilla(observation: Observation, bias: PositionBias | None, settings: ScoringSettings) -> Scores:
    """Label log-probs as the model gives them."""
    return Scores(observation.log_probs)


def _raw_attention(observation: Observation, bias: PositionBias | None, settings: ScoringSettings) -> Scores:
    """Attention mass as it is, mean over the chosen layers; needs no calibration."""
    attention = head_mean(observation)
    layers = layers_by_mass(attention, settings.top_layers)
    with np.errstate(divide="ignore"):
        return Scores(np.log(attention[layers].mean(axis=0)))


def _auto(observation: Observation, bias: PositionBias | None, settings: ScoringSettings) -> Scores:
    """What calibration chose; the paper's recipe where it had a single sample and so no choice."""
    assert bias is not None
    if bias.choice is None:
        return SCORERS["lad"].score(observation, bias, settings)
    return Scores(bias.choice.log_scores(observation, bias), bias.choice.posterior(observation))


SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "vanilla": Scorer(_vanilla, needs_calibration=False),
        "raw_attention": Scorer(_raw_attention, needs_calibration=False),
        **{name: Scorer(_mixed(name), needs_calibration=True) for name in MIXERS if name != "vanilla"},
        "auto": Scorer(_auto, needs_calibration=True),
    }
)


def get_scorer(method: str) -> Scorer:
    """Look a scorer up by its name.

    Raises:
        InvalidRequestError: No scorer of that name.
    """
    try:
        return SCORERS[method]
    except (KeyError, TypeError):
        raise InvalidRequestError(f"Unknown method {method!r}; choose one of {', '.join(SCORERS)}.") from None


def score(
    observation: Observation,
    bias: PositionBias | None = None,
    method: str = "lad",
    settings: ScoringSettings | None = None,
) -> Scores:
    """Score one Observation.

    Args:
        observation: What one pass yielded.
        bias: The calibration for this number of candidates; may be ``None`` for methods without one.
        method: One of :data:`SCORERS`.
        settings: Defaults to the paper's.

    Raises:
        InvalidRequestError: Unknown method, no bias where one is needed, or one for another N or layers.
        DegenerateScoresError: The scores are NaN, infinite or all equal.
    """
    scorer = get_scorer(method)
    if scorer.needs_calibration:
        if bias is None:
            raise InvalidRequestError(f"method={method!r} needs a calibration for {observation.n} candidates.")
        if bias.n != observation.n:
            raise InvalidRequestError(f"The calibration is for {bias.n} candidates, the pass showed {observation.n}.")
    scores = scorer.score(observation, bias, settings or ScoringSettings())
    check_scores(scores.log_scores, method)
    return scores


def check_scores(log_scores: FloatArray, method: str) -> None:
    """Refuse what is no ranking.

    Raises:
        DegenerateScoresError: NaN or infinite values, or two and more scores that are all equal.
    """
    if not np.isfinite(log_scores).all():
        raise DegenerateScoresError(
            f"method={method!r} gave scores that are NaN or infinite ({np.round(log_scores, 3).tolist()}); "
            "try dtype='float32', or calibrate again."
        )
    if len(log_scores) > 1 and np.ptp(log_scores) == 0.0:
        raise DegenerateScoresError(
            f"method={method!r} gave every one of {len(log_scores)} candidates the same score: the model does not "
            "tell them apart. Check the model with method='vanilla', and that the images differ."
        )


def listwise_probabilities(log_scores: FloatArray) -> FloatArray:
    """Softmax over the candidates (Eq. 14), (N,) float64, sums to 1."""
    return np.exp(log_softmax(log_scores))
