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
    {"mass": _mass, "peak": _peak, "level": _level}
)
"""Of equally good ones the first is taken."""

LEAST_SPREAD = 0.1
"""Of the distance between the medians: what a handful of samples does not show, harder ones will."""


@dataclass(frozen=True)
class Presence:
    """A fitted signal.

    Attributes:
        signal: One of :data:`SIGNALS`.
        evidence: What is read for it.
        threshold: Between the medians of both kinds of passes, nearer to the kind that spreads less. (The cut that
            tells a handful of easy samples apart best lies at their very edge, and calls everything harder absent.)
        scale: Half of the distance from the threshold to the upper median: a usual pass with an answer has 0.88.
        separation: Probability that a pass with a right answer has the larger signal (area under the ROC curve),
            over calibration passes that the evidence was fitted on: a little flattering.
    """

    signal: str
    evidence: FittedEvidence
    threshold: float
    scale: float
    separation: float

    @property
    def needs_null(self) -> bool:
        """Whether the null query has to be asked as well."""
        return self.evidence.settings.prior == "null"

    def confidence(self, observation: Observation) -> float:
        """In [0, 1]: 0.5 at the threshold, more where a right answer seems to be among the candidates."""
        value = signals(observation, self.evidence)[self.signal]
        return float(1.0 / (1.0 + np.exp(-np.clip((value - self.threshold) / self.scale, -500, 500))))


def signals(observation: Observation, evidence: FittedEvidence) -> dict[str, float]:
    """All signals of one pass."""
    log = log_attention(observation, evidence.settings)
    of_units = np.exp(log[evidence.units]).sum(axis=1)
    if evidence.settings.units == "mass":
        of_units = np.sort(of_units)[-evidence.settings.count :]
    mass = float(np.log(of_units.mean()))
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
        high, low = float(np.median(yes)), float(np.median(no))
        if high > low and separation > (0.5 if best is None else best.separation):
            distance = high - low
            above, below = (max(_spread(values), LEAST_SPREAD * distance) for values in (yes, no))
            threshold = high - distance * above / (above + below)
            best = Presence(name, evidence, threshold, (high - threshold) / 2, separation)
    return best


def _spread(values: FloatArray) -> float:
    """Standard deviation, from the quartiles of a normal distribution."""
    lower, upper = np.quantile(values, [0.25, 0.75])
    return float((upper - lower) / 1.349)
