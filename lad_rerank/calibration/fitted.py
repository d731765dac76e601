"""What calibration fitted beyond the paper, as it lies on disk: recipes, their evidence, presence."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lad_rerank.debias.choice import Choice
from lad_rerank.debias.evidence import LayerMean
from lad_rerank.debias.mixing import MIXERS, WITHOUT_EVIDENCE
from lad_rerank.debias.presence import SIGNALS, Presence
from lad_rerank.debias.reading import EvidenceSettings, FittedEvidence, Pooling, Prior, Row, Units
from lad_rerank.debias.recipe import FittedRecipe, Recipe

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
DECIMALS = 9
"""Digits kept behind the point: far below what five samples can tell, and files stay readable."""


class Record(BaseModel):
    """A strict, frozen part of a calibration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EvidenceRecord(Record):
    """A :class:`FittedEvidence`; fields as in :class:`EvidenceSettings`.

    Attributes:
        chosen: Indices of the chosen units among rows x layers (x heads).
        weights: One for each.
        log_prior: (K, N), one row for each.
    """

    rows: Annotated[list[Row], Field(min_length=1)]
    pooling: Pooling
    length_exponent: Finite
    prior: Prior
    units: Units
    count: int = Field(ge=1)
    mean: LayerMean
    chosen: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    weights: list[Annotated[float, Field(ge=0, le=1)]]
    log_prior: list[list[Finite]]

    @model_validator(mode="after")
    def _shapes(self) -> EvidenceRecord:
        if not len(self.chosen) == len(self.weights) == len(self.log_prior):
            raise ValueError("chosen, weights and log_prior must be equally long")
        if self.units == "mass" and self.chosen != list(range(len(self.chosen))):
            raise ValueError("chosen must list all units in order where they are chosen by mass for each pass")
        if len(set(self.chosen)) < len(self.chosen):
            raise ValueError("chosen names a unit twice")
        if abs(sum(self.weights) - 1) > 1e-6:
            raise ValueError("weights must sum to 1")
        return self

    @classmethod
    def of(cls, evidence: FittedEvidence) -> EvidenceRecord:
        """Make the record."""
        s = evidence.settings
        return cls(
            rows=list(s.rows),
            pooling=s.pooling,
            length_exponent=s.length_exponent,
            prior=s.prior,
            units=s.units,
            count=s.count,
            mean=s.mean,
            chosen=evidence.units.tolist(),
            weights=evidence.weights.round(DECIMALS).tolist(),
            log_prior=evidence.log_prior.round(DECIMALS).tolist(),
        )

    def evidence(self) -> FittedEvidence:
        """The evidence."""
        settings = EvidenceSettings(
            tuple(self.rows), self.pooling, self.length_exponent, self.prior, self.units, self.count, self.mean
        )
        return FittedEvidence(settings, np.array(self.chosen), np.array(self.weights), np.array(self.log_prior))


class MemberRecord(Record):
    """A :class:`FittedRecipe`."""

    mixer: str
    tau: Positive
    temperature: Positive
    evidence: EvidenceRecord | None

    @model_validator(mode="after")
    def _known(self) -> MemberRecord:
        if self.mixer not in MIXERS:
            raise ValueError(f"mixer must be one of {', '.join(MIXERS)}")
        if (self.evidence is None) != (self.mixer in WITHOUT_EVIDENCE):
            raise ValueError(f"mixer {self.mixer!r} does not go with the evidence that is there or missing")
        return self

    @classmethod
    def of(cls, member: FittedRecipe) -> MemberRecord:
        """Make the record."""
        evidence = None if member.evidence is None else EvidenceRecord.of(member.evidence)
        return cls(mixer=member.recipe.mixer, tau=member.recipe.tau, temperature=member.temperature, evidence=evidence)

    def member(self) -> FittedRecipe:
        """The fitted recipe."""
        evidence = None if self.evidence is None else self.evidence.evidence()
        recipe = Recipe(self.mixer, None if evidence is None else evidence.settings, self.tau)
        return FittedRecipe(recipe, evidence, self.temperature)


class ChoiceRecord(Record):
    """A :class:`Choice`; ``recipes`` says in words what the members are."""

    recipes: list[str]
    members: Annotated[list[MemberRecord], Field(min_length=1)]
    temperature: Positive
    first_stage_weight: Finite
    expected_accuracy: Share
    expected_consistency: Share
    margins: Annotated[list[Finite], Field(min_length=2)]

    @field_validator("margins")
    @classmethod
    def _ascending(cls, margins: list[float]) -> list[float]:
        if any(b < a for a, b in itertools.pairwise(margins)):
            raise ValueError("margins are quantiles and must ascend")
        return margins

    @classmethod
    def of(cls, choice: Choice) -> ChoiceRecord:
        """Make the record."""
        return cls(
            recipes=[str(member.recipe) for member in choice.members],
            members=[MemberRecord.of(member) for member in choice.members],
            temperature=choice.temperature,
            first_stage_weight=choice.first_stage_weight,
            expected_accuracy=choice.expected_accuracy,
            expected_consistency=choice.expected_consistency,
            margins=[round(m, DECIMALS) for m in choice.margins],
        )

    def choice(self) -> Choice:
        """The choice."""
        return Choice(
            members=tuple(member.member() for member in self.members),
            temperature=self.temperature,
            first_stage_weight=self.first_stage_weight,
            expected_accuracy=self.expected_accuracy,
            expected_consistency=self.expected_consistency,
            margins=tuple(self.margins),
        )


class PresenceRecord(Record):
    """A :class:`Presence`."""

    signal: Literal["peak", "level", "mass"]
    threshold: Finite
    scale: Positive
    separation: Share
    evidence: EvidenceRecord

    @classmethod
    def of(cls, presence: Presence) -> PresenceRecord:
        """Make the record."""
        assert presence.signal in SIGNALS
        return cls.model_validate(
            {
                "signal": presence.signal,
                "threshold": presence.threshold,
                "scale": presence.scale,
                "separation": presence.separation,
                "evidence": EvidenceRecord.of(presence.evidence),
            }
        )

    def presence(self) -> Presence:
        """The fitted signal."""
        return Presence(self.signal, self.evidence.evidence(), self.threshold, self.scale, self.separation)
