"""Passes on disk: scored again without a model, and without a picture. One safetensors file, never pickle."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.record import Calibration
from lad_rerank.contents import CandidateKind
from lad_rerank.errors import InvalidRequestError, ObservationFileError
from lad_rerank.evaluation.orders import Instance, ObservedRuns
from lad_rerank.evaluation.packing import Damaged, pack, unpack
from lad_rerank.evaluation.unseen import UnseenContents
from lad_rerank.files import replacing

logger = logging.getLogger(__name__)

KEY = "lad_rerank"
SCHEMA_VERSION: Literal[1] = 1
PACKAGES = ("lad-rerank", "transformers", "torch")


@dataclass(frozen=True)
class ObservedSet:
    """One set, as a model saw it.

    Attributes:
        name: Of the set.
        digest: See ``EvaluationSet.digest``.
        instances: Q instances. Those read from a file have no pictures.
        observed: T x Q passes over them.
        kind: What the candidates are.
    """

    name: str
    digest: str
    instances: Sequence[Instance]
    observed: ObservedRuns
    kind: CandidateKind = "image"


@dataclass(frozen=True)
class StoredObservations:
    """Everything that re-scoring needs.

    Attributes:
        model: Name of the backbone.
        identity: What its calibrations are found by, once it is that of a set's kind.
        sets: At least one; no two have the same name and number of candidates.
        calibrations: Those at hand when the passes were made, at most one of a kind of candidates.
        settings: How the passes were made; values as JSON has them.
        created: UTC date and time, ISO 8601.
        versions: Library versions by name.
    """

    model: str
    identity: BackboneIdentity
    sets: tuple[ObservedSet, ...]
    calibrations: tuple[Calibration, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: {name: metadata.version(name) for name in PACKAGES})


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True)


class _InstanceHead(_Strict):
    id: str
    query: str
    n: int
    relevant: list[int]
    retrieved: bool


class _SetHead(_Strict):
    name: str
    digest: str
    kind: CandidateKind
    orders: int
    groups: int
    seconds_per_pass: float | None
    peak_bytes: int | None
    instances: list[_InstanceHead]


class _Head(_Strict):
    schema_version: Literal[1]
    model: str
    identity: BackboneIdentity
    created: str
    versions: dict[str, str]
    settings: dict[str, Any]
    calibrations: list[dict[str, Any]]
    sets: list[_SetHead]


def save_observations(stored: StoredObservations, path: str | PathLike[str]) -> None:
    """Write passes into one safetensors file; it appears whole or not at all.

    Nothing is rounded: attention that was computed in float32 is kept in float32, all else in float64.

    Args:
        stored: The passes.
        path: The file.

    Raises:
        ObservationFileError: The file cannot be written.
    """
    from safetensors.numpy import save

    tensors: dict[str, Any] = {}
    heads = []
    for s, one in enumerate(stored.sets):
        packed = pack(one.observed.runs)
        tensors |= {f"{s}/{g}/{name}": array for g, group in enumerate(packed) for name, array in group.items()}
        heads.append(
            _SetHead(
                name=one.name,
                digest=one.digest,
                kind=one.kind,
                orders=len(one.observed.runs),
                groups=len(packed),
                seconds_per_pass=one.observed.seconds_per_pass,
                peak_bytes=one.observed.peak_bytes,
                instances=[
                    _InstanceHead(id=i.id, query=i.query, n=i.n, relevant=sorted(i.relevant), retrieved=i.retrieved)
                    for i in one.instances
                ],
            ).model_dump()
        )
    head = {
        "schema_version": SCHEMA_VERSION,
        "model": stored.model,
        "identity": asdict(stored.identity),
        "created": stored.created,
        "versions": dict(stored.versions),
        "settings": dict(stored.settings),
        "calibrations": [json.loads(calibration.to_json()) for calibration in stored.calibrations],
        "sets": heads,
    }
    path = Path(path)
    try:
        with replacing(path) as temporary:
            # Not `save_file`, whose files only their owner can read.
            temporary.write_bytes(save(tensors, metadata={KEY: json.dumps(head, allow_nan=False)}))
    except OSError as error:
        raise ObservationFileError(f"Cannot write observations to {path}: {error.strerror or error}.") from error


def load_observations(path: str | PathLike[str]) -> StoredObservations:
    """Read passes; the result equals what was saved, pictures excepted.

    Args:
        path: What :func:`save_observations` wrote.

    Raises:
        ObservationFileError: There is no such file, it is another kind of file, of another release, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ObservationFileError(f"There is no file of observations {path}.")
    try:
        with safe_open(path, framework="numpy") as opened:
            found = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()} if KEY in found else {}  # noqa: SIM118
    except OSError as error:
        raise ObservationFileError(f"Cannot read observations from {path}: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, TypeError) as error:
        raise ObservationFileError(f"{path} is no safetensors file, or a damaged one: {error}.") from error
    if KEY not in found:
        raise ObservationFileError(
            f"{path} holds no observations; give a file that `lad-rerank evaluate --save` wrote."
        )
    head = _head(path, found[KEY])
    names = [(one.name, max((i.n for i in one.instances), default=0)) for one in head.sets]
    if not names or len(set(names)) < len(names):
        raise ObservationFileError(f"The observations {path} are damaged: sets must have names of their own.")
    return StoredObservations(
        model=head.model,
        identity=head.identity,
        sets=tuple(_set(path, s, one, tensors) for s, one in enumerate(head.sets)),
        calibrations=tuple(_calibrations(path, head.calibrations)),
        settings=head.settings,
        created=head.created,
        versions=head.versions,
    )


def _head(path: Path, text: str) -> _Head:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ObservationFileError(f"The observations {path} are damaged: no JSON in their head ({error}).") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise ObservationFileError(
            f"The observations {path} have schema version {version}, this release reads {SCHEMA_VERSION}; "
            "make them again."
        )
    try:
        return _Head.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "head"
        raise ObservationFileError(f"The observations {path} are damaged at {where}: {first['msg']}.") from error


def _calibrations(path: Path, values: Iterable[dict[str, Any]]) -> Iterator[Calibration]:
    try:
        for value in values:
            yield Calibration.model_validate(value)
    except ValidationError as error:
        # The passes are good all the same, and a calibration can be given.
        logger.warning("A calibration in %s is of another release and is left out: %s", path, error.errors()[0]["msg"])


def _set(path: Path, s: int, head: _SetHead, tensors: Mapping[str, Any]) -> ObservedSet:
    groups = [
        {name.removeprefix(f"{s}/{g}/"): array for name, array in tensors.items() if name.startswith(f"{s}/{g}/")}
        for g in range(head.groups)
    ]
    try:
        runs = unpack(groups, head.orders, [one.n for one in head.instances])
        instances = [
            Instance(one.query, UnseenContents(one.n), frozenset(one.relevant), one.id, one.retrieved)
            for one in head.instances
        ]
    except (Damaged, InvalidRequestError) as error:
        raise ObservationFileError(f"The observations {path} are damaged in the set {head.name!r}: {error}") from error
    return ObservedSet(
        head.name, head.digest, instances, ObservedRuns(runs, head.seconds_per_pass, head.peak_bytes), head.kind
    )
