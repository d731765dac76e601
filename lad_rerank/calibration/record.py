"""A calibration as it lies on disk: arrays, and the identity of what they were made with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.fitted import DECIMALS, ChoiceRecord, Finite, PresenceRecord, Record
from lad_rerank.debias.bias import PositionBias
from lad_rerank.errors import CalibrationFileError, CalibrationMismatchError, CalibrationMissingError

SCHEMA_VERSION: Literal[2] = 2


class CountCalibration(Record):
    """What is known for one number of candidates.

    Attributes:
        samples: How many calibration samples were shown, each in every cyclic order.
        sample_digest: Digest of their queries, images and targets.
        profile: (N, N) observed profile, row = position of the target (Eq. 1).
        log_gain: log g in nats (Eq. 3-4).
        attention_prior: (L, N) mean attention of the last prompt token, head-averaged (Eq. 7).
        noise: Variance of label log-probs around their profile, nats squared.
        choice: What ``method="auto"`` uses; ``None`` for a single sample, which leaves no choice.
        presence: Tells whether a right answer is among the candidates; ``None`` where it could not be fitted.
    """

    samples: int = Field(ge=1)
    sample_digest: str
    profile: list[list[Finite]]
    log_gain: Finite
    attention_prior: list[list[Annotated[float, Field(ge=0, le=1)]]]
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    choice: ChoiceRecord | None = None
    presence: PresenceRecord | None = None

    @model_validator(mode="after")
    def _shapes(self) -> CountCalibration:
        n = len(self.profile)
        if n < 2 or any(len(row) != n for row in [*self.profile, *self.attention_prior]):
            raise ValueError("profile must be N x N and attention_prior L x N, with N at least 2")
        evidence = [m.evidence for m in self.choice.members] if self.choice is not None else []
        if self.presence is not None:
            evidence.append(self.presence.evidence)
        if any(len(row) != n for e in evidence if e is not None for row in e.log_prior):
            raise ValueError("every log_prior must have a column for each of the N candidates")
        return self

    @classmethod
    def of(cls, bias: PositionBias, samples: int, sample_digest: str) -> CountCalibration:
        """Make the record of an estimated bias."""
        return cls(
            samples=samples,
            sample_digest=sample_digest,
            profile=bias.profile.round(DECIMALS).tolist(),
            log_gain=round(bias.log_gain, DECIMALS),
            attention_prior=[[_share(value) for value in row] for row in bias.attention_prior.tolist()],
            noise=max(bias.noise, 1e-9),
            choice=None if bias.choice is None else ChoiceRecord.of(bias.choice),
            presence=None if bias.presence is None else PresenceRecord.of(bias.presence),
        )


class Provenance(Record):
    """Where a calibration comes from; for people, not compared at load.

    Attributes:
        model: What the user called the model.
        revision: Hub revision, where one was given.
        attention: Attention implementation of the decoder during calibration.
        created: UTC date and time, ISO 8601.
        versions: Library versions by name.
    """

    model: str
    revision: str | None = None
    attention: str = "sdpa"
    created: str
    versions: dict[str, str]


class Calibration(Record):
    """The calibration of one model under one set of settings, for some numbers of candidates.

    Attributes:
        schema_version: Version of this file format.
        identity: What must agree with the backbone that uses it.
        provenance: Where it comes from.
        counts: By number of candidates N.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    identity: BackboneIdentity
    provenance: Provenance
    counts: dict[int, CountCalibration]

    @model_validator(mode="after")
    def _consistent(self) -> Calibration:
        for n, count in self.counts.items():
            if len(count.profile) != n:
                raise ValueError(f"counts[{n}] holds arrays for {len(count.profile)} candidates")
            if len(count.attention_prior) != len(self.identity.layers):
                raise ValueError(f"counts[{n}].attention_prior has another number of layers than identity.layers")
        return self

    @property
    def covers(self) -> tuple[int, ...]:
        """Numbers of candidates, ascending."""
        return tuple(sorted(self.counts))

    def position_bias(self, n: int) -> PositionBias:
        """Arrays for n candidates.

        Raises:
            CalibrationMissingError: This calibration does not cover n.
        """
        if n not in self.counts:
            raise CalibrationMissingError(
                f"The calibration of {self.provenance.model} covers {_ranges(self.covers)} candidates, not {n}."
            )
        count = self.counts[n]
        return PositionBias(
            profile=np.array(count.profile),
            log_gain=count.log_gain,
            attention_prior=np.array(count.attention_prior),
            layers=self.identity.layers,
            noise=count.noise,
            choice=None if count.choice is None else count.choice.choice(),
            presence=None if count.presence is None else count.presence.presence(),
        )

    def check(self, identity: BackboneIdentity, source: str) -> None:
        """Make sure that this calibration belongs to a backbone.

        Args:
            identity: The backbone's.
            source: Where the calibration came from, for the message.

        Raises:
            CalibrationMismatchError: Some field of the identity differs; the message names all of them.
        """
        if differing := self.identity.differences(identity):
            raise CalibrationMismatchError(
                f"The calibration {source} was made for other settings: {describe(differing)}. "
                "Load the model with those settings, or calibrate again."
            )

    def merged(self, newer: Calibration) -> Calibration:
        """This calibration with what the newer one of the same identity knows in its place."""
        newer.check(self.identity, "to merge")
        return newer.model_copy(update={"counts": dict(sorted({**self.counts, **newer.counts}.items()))})

    def to_json(self) -> str:
        """Readable JSON: indented, one array row a line."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)
        return re.sub(r"\[([^\[\]{}\"]*)\]", lambda row: "[" + " ".join(row[1].split()) + "]", text) + "\n"


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        CalibrationFileError: The file is missing or is no calibration of this schema version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationFileError(f"Cannot read the calibration {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CalibrationFileError(f"The calibration {path} is no JSON: {error}.") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise CalibrationFileError(
            f"The calibration {path} has schema version {version}, this release reads {SCHEMA_VERSION}; "
            "calibrate again."
        )
    try:
        return Calibration.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise CalibrationFileError(f"The calibration {path} is damaged at {where}: {first['msg']}.") from error


def describe(differing: Mapping[str, tuple[object, object]]) -> str:
    """Differing fields in words: ``max_pixels (112896 in the calibration, 65536 here)``."""
    return "; ".join(f"{name} ({a} in the calibration, {b} here)" for name, (a, b) in differing.items())


def _share(value: float) -> float:
    """A share of attention in significant digits: its logarithm counts, and it may be far below 1e-9.

    Sums of rounded attention may exceed 1 by as much.
    """
    return min(float(f"{value:.{DECIMALS}g}"), 1.0)


def _ranges(counts: tuple[int, ...]) -> str:
    if counts and counts == tuple(range(counts[0], counts[-1] + 1)) and len(counts) > 1:
        return f"{counts[0]} to {counts[-1]}"
    return ", ".join(map(str, counts)) or "no number of"
