"""What calibration chose for ``method="auto"``: a few fitted recipes that vote, and what to expect of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.evidence import log_softmax
from lad_rerank.debias.recipe import FittedRecipe
from lad_rerank.records import FloatArray, Observation


@dataclass(frozen=True)
class Choice:
    """The recipes that calibration trusts, and what it expects of them.

    Several recipes that read different evidence vote with their log posteriors: the best of a thousand recipes on a
    handful of samples is partly lucky, and luck does not agree with itself.

    Attributes:
        members: One to nine recipes; the paper's alone where nothing beat it.
        temperature: Divides the members' mean log posterior.
        first_stage_weight: Weight of the candidates' first-stage scores, in nats per unit of score; 0 leaves them out.
        expected_accuracy: Share of left-out calibration passes whose target came first. A little flattering, since
            the same samples made the choice.
        expected_consistency: Share of left-out samples for which all cyclic shifts gave the same first candidate.
        margins: Quantiles (0, 5, ... 100 %) over left-out passes of the margin, see :func:`margin`.
    """

    members: tuple[FittedRecipe, ...]
    temperature: float
    first_stage_weight: float
    expected_accuracy: float
    expected_consistency: float
    margins: tuple[float, ...]

    def log_scores(self, observation: Observation, bias: PositionBias) -> FloatArray:
        """(N,) log posterior of one pass, by position.

        Raises:
            InvalidRequestError: The observation lacks what the evidence reads.
        """
        votes = [log_softmax(member.log_scores(observation, bias)) for member in self.members]
        scores: FloatArray = log_softmax(np.mean(votes, axis=0) / self.temperature)
        return scores

    def posterior(self, observation: Observation) -> FloatArray | None:
        """(N,) mean attention posterior (Eq. 12) of the members that read attention; ``None`` without such."""
        found = [
            np.exp(log_softmax(member.recipe.tau * member.evidence.log_evidence(observation)))
            for member in self.members
            if member.evidence is not None
        ]
        return np.mean(found, axis=0) if found else None

    @property
    def needs_null(self) -> bool:
        """Whether the null query has to be asked as well."""
        return any(m.evidence is not None and m.evidence.settings.prior == "null" for m in self.members)

    def uncertain_below(self, mean_passes: float) -> float:
        """The margin under which a second pass is worth it, for a wanted mean number of passes.

        Args:
            mean_passes: Between 1 and 2; 1.25 means that a quarter of calibration's passes fell below. With 1 no
                margin is below it, with 2 every one is, also one larger than calibration ever saw.
        """
        share = min(max(mean_passes - 1.0, 0.0), 1.0)
        if share in (0.0, 1.0):
            return np.inf if share else -np.inf
        return float(np.interp(share, np.linspace(0, 1, len(self.margins)), self.margins))


def margin(log_scores: FloatArray) -> FloatArray:
    """By how much the best candidate leads the second, in nats of log-probability.

    Args:
        log_scores: (..., N) with N at least 2.

    Returns:
        (...,), at least 0.
    """
    ordered = np.sort(log_scores, axis=-1)
    lead: FloatArray = ordered[..., -1] - ordered[..., -2]
    return lead
