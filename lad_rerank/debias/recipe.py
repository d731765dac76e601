"""A recipe: which evidence, mixed how, at which temperature; and the recipes that calibration chooses among."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lad_rerank.debias.bias import PositionBias
from lad_rerank.debias.mixing import MIXERS, WITHOUT_EVIDENCE
from lad_rerank.debias.reading import EvidenceSettings, FittedEvidence, Pooling, Prior, Row
from lad_rerank.records import FloatArray, Observation


@dataclass(frozen=True)
class Recipe:
    """A way from an observation to scores.

    Attributes:
        mixer: One of ``mixing.MIXERS``.
        evidence: What attention is read for it; ``None`` for mixers that read none.
        tau: Sharpness of the attention posterior (Eq. 12).
    """

    mixer: str
    evidence: EvidenceSettings | None = None
    tau: float = 5.0

    def __str__(self) -> str:
        if self.evidence is None:
            return self.mixer
        e = self.evidence
        length = f" / length^{e.length_exponent:g}" if e.length_exponent else ""
        how = "" if e.mean == "geometric" else f", {e.mean} mean"
        return (
            f"{self.mixer} (tau {self.tau:g}) over {e.count} {e.units}, {'+'.join(e.rows)} row, "
            f"{e.pooling}{length}, {e.prior} prior{how}"
        )


PAPER = Recipe("lad", EvidenceSettings())
"""The paper's own: last token, two layers by mass, log-domain mixture, tau 5."""


@dataclass(frozen=True)
class FittedRecipe:
    """A recipe with what calibration fitted for it.

    Attributes:
        recipe: Which.
        evidence: Its evidence, fitted; ``None`` for mixers that read none.
        temperature: Divides the log scores, so that probabilities are as sure as left-out samples were right.
    """

    recipe: Recipe
    evidence: FittedEvidence | None
    temperature: float = 1.0

    def log_scores(self, observation: Observation, bias: PositionBias) -> FloatArray:
        """(N,) log scores of one pass, by position, at the fitted temperature.

        Raises:
            InvalidRequestError: The observation lacks what the evidence reads.
        """
        z = observation.log_probs[None]
        e = np.zeros_like(z) if self.evidence is None else self.evidence.log_evidence(observation)[None]
        scores: FloatArray = MIXERS[self.recipe.mixer](z, e, bias, self.recipe.tau)[0] / self.temperature
        return scores


def recipes(*, lengths_differ: bool, null: bool) -> Iterator[Recipe]:
    """All recipes that calibration chooses among; the paper's first.

    Args:
        lengths_differ: Whether candidates have different numbers of tokens: else length normalisation does nothing.
        null: Whether the null query was asked.
    """
    yield PAPER
    for mixer in sorted(WITHOUT_EVIDENCE):
        yield Recipe(mixer)
    rows: tuple[tuple[Row, ...], ...] = (("last",), ("query",), ("last", "query"))
    poolings: tuple[tuple[Pooling, float], ...] = (("sum", 0.0), ("max", 0.0))
    if lengths_differ:
        poolings = (("sum", 0.0), ("sum", 1.0), ("max", 0.5))
    priors: tuple[Prior, ...] = ("position", "null") if null else ("position",)
    for row in rows:
        for pooling, exponent in poolings:
            for prior in priors:
                for settings in (
                    EvidenceSettings(row, pooling, exponent, prior, "mass", 2),
                    EvidenceSettings(row, pooling, exponent, prior, "mass", 2, "arithmetic"),
                    EvidenceSettings(row, pooling, exponent, prior, "layers", 2),
                    EvidenceSettings(row, pooling, exponent, prior, "heads", 8),
                    EvidenceSettings(row, pooling, exponent, prior, "heads", 16),
                    EvidenceSettings(row, pooling, exponent, prior, "weighted", 32),
                ):
                    for mixer in MIXERS:
                        if mixer in WITHOUT_EVIDENCE:
                            continue
                        # Temperature takes the place of tau where attention is alone.
                        for tau in (5.0,) if mixer == "attention" else (2.0, 5.0, 10.0):
                            recipe = Recipe(mixer, settings, tau)
                            if recipe != PAPER:
                                yield recipe
