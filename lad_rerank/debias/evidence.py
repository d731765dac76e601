"""Attention evidence and the posterior over positions (Eq. 6-12)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lad_rerank.records import FloatArray

LayerMean: TypeAlias = Literal["geometric", "arithmetic"]

FLOOR = 1e-20
"""Attention below this is taken as this before a logarithm (the authors' clip)."""


def layers_by_mass(attention: FloatArray, count: int) -> NDArray[np.int64]:
    """The layers that look at the candidates most, for this very pass (Eq. 8-9).

    Args:
        attention: (L, N) head-averaged attention mass.
        count: K, how many layers; more than L means all.

    Returns:
        (K,) row indices into ``attention``, ascending.
    """
    mass = attention.sum(axis=1)
    # Stable, so that equal masses choose the same layers on every machine.
    best = np.argsort(-mass, kind="stable")[:count]
    return np.sort(best).astype(np.int64)


def purified_log_evidence(
    attention: FloatArray, prior: FloatArray, layers: NDArray[np.int64], layer_mean: LayerMean = "geometric"
) -> FloatArray:
    """Attention with each position's usual share taken out, averaged over layers (Eq. 10-11).

    Args:
        attention: (L, N) head-averaged attention mass of this pass.
        prior: (L, N) mean attention mass over calibration (Eq. 7).
        layers: (K,) row indices chosen for this pass.
        layer_mean: ``"geometric"`` is Eq. 11, ``mean(log a - log P)``; ``"arithmetic"`` is what the
            authors' code does, ``log(mean a) - mean(log P)``.

    Returns:
        (N,) log evidence.
    """
    chosen = np.maximum(attention[layers], FLOOR)
    log_prior = np.log(np.maximum(prior[layers], FLOOR)).mean(axis=0)
    if layer_mean == "arithmetic":
        evidence: FloatArray = np.log(chosen.mean(axis=0)) - log_prior
    else:
        evidence = np.log(chosen).mean(axis=0) - log_prior
    return evidence


def posterior(log_evidence: FloatArray, tau: float) -> FloatArray:
    """Probability that the target stands at each position, given the attention (Eq. 12).

    Args:
        log_evidence: (N,) purified log evidence.
        tau: Sharpness; 5 in the paper.

    Returns:
        (N,) float64, sums to 1.
    """
    return np.exp(log_softmax(tau * log_evidence))


def log_softmax(x: FloatArray) -> FloatArray:
    """Log-softmax over the last axis in float64."""
    shifted = np.asarray(x, dtype=np.float64) - np.max(x, axis=-1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
