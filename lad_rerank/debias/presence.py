"""Is the right answer among the candidates at all? An absolute signal beside the listwise probabilities.

Listwise probabilities sum to 1 whatever is shown. How much attention the query draws to the candidates does not:
with nothing to find, there is less of it. Calibration asks each sample for another sample's query as well, to which
no candidate is an answer, and fits a threshold between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from lad_rerank.debias.reading import FittedEvidence, log_attention
from lad_rerank.records import FloatArray, Observation


def _peak(evidence: FloatArray, mass: float) -> float:
    """Log evidence of the best candidate."""
    return float(evidence.max())


def _level(evidence: FloatArray, mass: float) -> float:
    """Log of the mean evidence."""
    return float(np.log(np.exp(evidence).mean()))


def _mass(evidence: FloatArray, mass: float) -> float:
    """Log of all attention that goes to candidates, prior or not."""
    return mass


SIGNALS: Mapping[str, Callable[[FloatArray, float], float]] = MappingProxyType(
    {"peak": _peak, "level": _level, "mass": _mass}
)


@dataclass(frozen=True)
class Presence:
    """A fitted signal.

    Attributes:
        signal: One of :data:`SIGNALS`.
        evidence: What is read for it.
        threshold: Where both kinds of passes are told apart best.
        scale: Spread of the signal, so that confidences of different models compare.
        separation: Probability that a pass with a right answer has the larger signal (area under the ROC curve),
            over calibration passes that the evidence was fitted on: a little flattering.
    """

    signal: str
    evidence: FittedEvidence
    threshold: float
    scale: float
    separation: float

    def confidence(self, observation: Observation) -> float:
        """In [0, 1]: 0.5 at the threshold, more where a right answer seems to be among the candidates."""
        value = signals(observation, self.evidence)[self.signal]
        return float(1.0 / (1.0 + np.exp(-np.clip((value - self.threshold) / self.scale, -500, 500))))


def signals(observation: Observation, evidence: FittedEvidence) -> dict[str, float]:
    """All signals of one pass."""
    log = log_attention(observation, evidence.settings)
    mass = float(np.log(np.exp(log[evidence.units]).sum(axis=1).mean()))
    of_candidates = evidence.of(log[None])[0]
    return {name: signal(of_candidates, mass) for name, signal in SIGNALS.items()}


def fit_presence(
    evidence: FittedEvidence, present: Sequence[Observation], absent: Sequence[Observation]
) -> Presence | None:
    """Choose the signal and the threshold that tell calibration's passes apart best.

    Args:
        evidence: Fitted evidence.
        present: Passes whose target is among the candidates.
        absent: Passes with a query that none of the candidates answers.

    Returns:
        ``None`` where there is nothing to compare, or no signal is better than chance.
    """
    if not present or not absent:
        return None
    with_answer, without = ([signals(o, evidence) for o in some] for some in (present, absent))
    best: Presence | None = None
    for name in SIGNALS:
        yes, no = np.array([s[name] for s in with_answer]), np.array([s[name] for s in without])
        separation = float((yes[:, None] > no).mean() + 0.5 * (yes[:, None] == no).mean())
        if separation > 0.5 and (best is None or separation > best.separation):
            scale = float(np.sqrt((yes.var() + no.var()) / 2))
            best = Presence(name, evidence, _threshold(yes, no), max(scale, 1e-6), separation)
    return best


def _threshold(yes: FloatArray, no: FloatArray) -> float:
    """Midway between the two values around the cut with the best balanced accuracy."""
    values = np.unique(np.concatenate([yes, no]))
    if len(values) == 1:
        return float(values[0])
    cuts = (values[1:] + values[:-1]) / 2
    balanced = np.array([(yes > cut).mean() + (no <= cut).mean() for cut in cuts])
    # Among equally good cuts the middle one: the gap between the two kinds is halved.
    good = np.flatnonzero(balanced >= balanced.max() - 1e-12)
    return float((cuts[good[0]] + cuts[good[-1]]) / 2)
