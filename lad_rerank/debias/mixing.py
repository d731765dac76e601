"""From label log-probs, log evidence and bias to log scores: arrays in, arrays out, for many passes at once.

z are label log-probs, e log evidence, O the observed profile, B the conditional bias. P passes, N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from lad_rerank.debias.bias import PositionBias, centred
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.records import FloatArray

Mixer: TypeAlias = Callable[[FloatArray, FloatArray, PositionBias, float], FloatArray]
"""Takes z (P, N), e (P, N), the bias and tau; gives log scores (P, N), defined up to a constant per pass."""


def profile_log_posterior(log_probs: FloatArray, profile: FloatArray, noise: float) -> FloatArray:
    """Which position's profile the label log-probs look like: ``(z . O_g - |O_g|^2 / 2) / s2``, (P, N).

    A Gaussian likelihood around each row of the profile, z and O centred. It needs no attention.

    Args:
        log_probs: (P, N).
        profile: (N, N) observed profile O.
        noise: s2, see :func:`lad_rerank.debias.bias.profile_noise`.
    """
    rows = centred(profile)
    result: FloatArray = (centred(log_probs) @ rows.T - (rows**2).sum(axis=1) / 2) / max(noise, 1e-12)
    return result


def _vanilla(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """Z as it is."""
    return z


def _pride(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """Less one prior per position (PriDe, Zheng et al. 2024)."""
    result: FloatArray = z - bias.profile.mean(axis=0)
    return result


def _attention(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """The attention posterior alone (Eq. 12)."""
    return tau * e


def _lad(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """Less the bias expected under the attention posterior, in nats (the authors' code)."""
    result: FloatArray = z - np.exp(log_softmax(tau * e)) @ bias.bias
    return result


def _lad_probability(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """Less the log of the expected bias (Eq. 13 to the letter)."""
    expected = np.exp(log_softmax(tau * e)) @ np.exp(log_softmax(bias.bias))
    result: FloatArray = z - np.log(np.maximum(expected, np.finfo(np.float64).tiny))
    return result


def _profile(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """The profile posterior alone."""
    return profile_log_posterior(z, bias.profile, bias.noise)


def _lad_profile(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """LAD and the profile posterior, summed."""
    return log_softmax(_lad(z, e, bias, tau)) + _profile(z, e, bias, tau)


def _attention_profile(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """The attention posterior and the profile posterior, summed."""
    return log_softmax(tau * e) + _profile(z, e, bias, tau)


def _product(z: FloatArray, e: FloatArray, bias: PositionBias, tau: float) -> FloatArray:
    """Product of experts: PriDe's and the attention's."""
    return log_softmax(_pride(z, e, bias, tau)) + log_softmax(tau * e)


MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        "vanilla": _vanilla,
        "pride": _pride,
        "attention": _attention,
        "lad": _lad,
        "lad_probability": _lad_probability,
        "profile": _profile,
        "lad_profile": _lad_profile,
        "attention_profile": _attention_profile,
        "product": _product,
    }
)

WITHOUT_EVIDENCE = frozenset({"vanilla", "pride", "profile"})
"""Mixers that do not look at attention."""
