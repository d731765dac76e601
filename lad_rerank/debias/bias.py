"""Conditional position bias: what a model answers when the target stands at each position (Eq. 1-5).

Equation numbers are those of Xian et al., "Logit-Attention Divergence", ICML 2026 (arXiv 2605.11591).
N is the number of candidates, P the number of calibration passes, L the number of read layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lad_rerank.records import FloatArray

if TYPE_CHECKING:
    from lad_rerank.debias.choice import Choice
    from lad_rerank.debias.presence import Presence


RESIDUAL_FACTOR, SIGNAL_SHARE = 1.5, 0.05
"""Profiles of a handful of samples are noisier than their residuals say: how much is allowed for that."""


@dataclass(frozen=True)
class PositionBias:
    """What calibration knows about a model for one number of candidates.

    Attributes:
        profile: (N, N) observed profile O; row i is the mean label log-prob with the target at i (Eq. 1).
        log_gain: log g, the weight of an attention vote in nats (Eq. 3-4).
        attention_prior: (L, N) mean attention mass per layer and position (Eq. 7).
        layers: (L,) decoder layers the rows of the prior belong to.
        noise: Variance of label log-probs around their profile, nats squared; see :func:`profile_noise`.
        choice: What calibration chose for ``method="auto"``; ``None`` means the paper's recipe.
        presence: Tells whether the right answer is among the candidates at all, where calibration could fit it.
    """

    profile: FloatArray
    log_gain: float
    attention_prior: FloatArray
    layers: tuple[int, ...]
    noise: float = 1.0
    choice: Choice | None = None
    presence: Presence | None = None

    @property
    def n(self) -> int:
        """Number of candidates."""
        return len(self.profile)

    @property
    def bias(self) -> FloatArray:
        """(N, N) conditional bias B (Eq. 5)."""
        return conditional_bias(self.profile, self.log_gain)


def observed_profile(log_probs: FloatArray, target_positions: NDArray[np.int64]) -> FloatArray:
    """Mean label log-probs for each position of the target (Eq. 1, in the log domain).

    The paper averages probabilities; its code averages logits, which is what the published numbers
    were made with, so we do too.

    Args:
        log_probs: (P, N) label log-probs of the calibration passes.
        target_positions: (P,) integer position of the target in each pass.

    Returns:
        (N, N) profile O, row = position of the target.

    Raises:
        ValueError: Some position never held the target.
    """
    n = log_probs.shape[1]
    missing = sorted(set(range(n)) - {int(p) for p in target_positions})
    if missing:
        raise ValueError(f"No calibration pass has its target at position(s) {missing} of {n}.")
    return np.stack([log_probs[target_positions == i].mean(axis=0) for i in range(n)])


def log_gain(profile: FloatArray) -> float:
    """Largest margin of the target's own label over another one (Eq. 3-4).

    Args:
        profile: (N, N) observed profile O.

    Returns:
        ``max over i, j != i of O[i, i] - O[i, j]`` in nats.
    """
    margins = np.diag(profile)[:, None] - profile
    off_diagonal = ~np.eye(len(profile), dtype=bool)
    return float(margins[off_diagonal].max())


def conditional_bias(profile: FloatArray, gain: float) -> FloatArray:
    """Profile with the evidence for the target taken out (Eq. 5).

    The authors' code also subtracts a constant per matrix, which changes nothing downstream.

    Args:
        profile: (N, N) observed profile O.
        gain: log g.

    Returns:
        (N, N) bias B, defined up to a constant.
    """
    return profile - gain * np.eye(len(profile))


def profile_noise(log_probs: FloatArray, targets: NDArray[np.int64], profile: FloatArray) -> float:
    """Variance of label log-probs around their profile, in nats squared, generous for few samples.

    Args:
        log_probs: (P, N) label log-probs of the calibration passes.
        targets: (P,) position of the target.
        profile: (N, N) observed profile O.
    """
    rows = centred(profile)
    residual = centred(log_probs) - rows[targets]
    return float(RESIDUAL_FACTOR * (residual**2).mean() + SIGNAL_SHARE * (rows**2).mean())


def centred(x: FloatArray) -> FloatArray:
    """Less its mean over the last axis."""
    result: FloatArray = x - x.mean(axis=-1, keepdims=True)
    return result


def position_bias(
    log_probs: FloatArray, attention: FloatArray, target_positions: NDArray[np.int64], layers: tuple[int, ...]
) -> PositionBias:
    """Estimate the bias from the passes of a calibration (Section 4.2).

    Args:
        log_probs: (P, N) label log-probs.
        attention: (P, L, N) head-averaged attention mass.
        target_positions: (P,) position of the target in each pass.
        layers: (L,) decoder layers that were read.

    Raises:
        ValueError: Some position never held the target.
    """
    profile = observed_profile(log_probs, target_positions)
    noise = profile_noise(log_probs, target_positions, profile)
    return PositionBias(profile, log_gain(profile), attention.mean(axis=0), layers, noise)
