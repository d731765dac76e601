"""Observations to stacked arrays and back, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lad_rerank.evaluation.orders import ShownObservation
from lad_rerank.records import FloatArray, Observation

Group: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""Passes of one shape: arrays by name, their first axis the passes."""

NULL = "null."
LOG_PROBS, LABEL_MASS, COUNTS, LAYERS, LENGTHS, CUT = (
    "log_probs", "label_mass", "counts", "layers", "lengths", "cut",
)  # fmt: skip
ATTENTION, PEAKS = "attention.", "peaks."
PLACE, SHOWN = "place", "shown"


class Damaged(Exception):
    """Arrays that are no passes; says what is wrong in a sentence."""


def pack(runs: Sequence[Sequence[ShownObservation]]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Stack passes that have the same shapes.

    Args:
        runs: T lists of Q passes.

    Returns:
        Groups. Arrays of attention are float32 where that loses nothing, which is so for all that a model
        computed in float32 or less.
    """
    groups: dict[tuple[Any, ...], list[dict[str, np.ndarray[Any, Any]]]] = {}
    for t, run in enumerate(runs):
        for q, seen in enumerate(run):
            arrays = {PLACE: np.array([t, q]), SHOWN: np.array(seen.shown), **_arrays(seen.observation, "")}
            groups.setdefault(tuple((name, array.shape) for name, array in arrays.items()), []).append(arrays)
    packed = []
    for members in groups.values():
        stacked = {name: np.ascontiguousarray(np.stack([m[name] for m in members])) for name in members[0]}
        packed.append({name: _narrow(array) if _is_attention(name) else array for name, array in stacked.items()})
    return packed


def unpack(groups: Sequence[Group], orders: int, counts: Sequence[int]) -> list[list[ShownObservation]]:
    """What :func:`pack` packed.

    Args:
        groups: As :func:`pack` returned them.
        orders: T.
        counts: (Q,) numbers of candidates.

    Raises:
        Damaged: Something is missing, twice there, or of another shape or type.
    """
    found: dict[tuple[int, int], ShownObservation] = {}
    for group in groups:
        shown, places = _integers(group, SHOWN, 2), _integers(group, PLACE, 2)
        passes, n = shown.shape
        if places.shape != (passes, 2):
            raise Damaged("the places of the passes have another shape than the passes.")
        _check(group, passes, n, "")
        for p, (t, q) in enumerate(places.tolist()):
            if not (0 <= t < orders and 0 <= q < len(counts)) or (t, q) in found:
                raise Damaged(f"the pass of order {t}, instance {q} has no place, or is there twice.")
            order = tuple(shown[p].tolist())
            if sorted(order) != list(range(n)) or n != counts[q]:
                raise Damaged(f"the pass of order {t}, instance {q} does not show {counts[q]} candidates once each.")
            found[t, q] = ShownObservation(_observation(group, p, ""), order)
    if len(found) != orders * len(counts):
        raise Damaged(f"{orders * len(counts) - len(found)} passes are missing.")
    return [[found[t, q] for q in range(len(counts))] for t in range(orders)]


def _arrays(observation: Observation, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        f"{prefix}{LOG_PROBS}": np.asarray(observation.log_probs, np.float64),
        f"{prefix}{LABEL_MASS}": np.array(observation.label_mass, np.float64),
        f"{prefix}{COUNTS}": np.array([observation.prompt_tokens, observation.passes], np.int64),
        f"{prefix}{LAYERS}": np.array(observation.layers, np.int64),
        f"{prefix}{LENGTHS}": np.array(observation.lengths, np.int64),
        f"{prefix}{CUT}": np.array(observation.cut, np.int64),
    }
    for kind, rows in ((ATTENTION, observation.attention), (PEAKS, observation.peaks)):
        arrays |= {f"{prefix}{kind}{row}": np.asarray(values, np.float64) for row, values in rows.items()}
    if observation.null is not None:
        arrays |= _arrays(observation.null, prefix + NULL)
    return arrays


def _observation(group: Group, p: int, prefix: str) -> Observation:
    own = {name.removeprefix(prefix): array for name, array in group.items() if name.startswith(prefix)}
    prompt_tokens, passes = own[COUNTS][p].tolist()
    has_null = any(name.startswith(NULL) for name in own)
    return Observation(
        log_probs=own[LOG_PROBS][p].astype(np.float64),
        attention=_rows(own, ATTENTION, p),
        layers=tuple(own[LAYERS][p].tolist()),
        label_mass=float(own[LABEL_MASS][p]),
        prompt_tokens=prompt_tokens,
        passes=passes,
        peaks=_rows(own, PEAKS, p),
        lengths=tuple(own[LENGTHS][p].tolist()),
        cut=tuple(own[CUT][p].tolist()),
        null=_observation(group, p, prefix + NULL) if has_null else None,
    )


def _rows(own: Group, kind: str, p: int) -> dict[str, FloatArray]:
    return {name.removeprefix(kind): own[name][p].astype(np.float64) for name in own if name.startswith(kind)}


def _check(group: Group, passes: int, n: int, prefix: str) -> None:
    """Make sure that every array of a group has the shape and type that its name promises."""
    own = {name.removeprefix(prefix): array for name, array in group.items() if name.startswith(prefix)}
    layers = _integers(own, LAYERS, 2).shape[1]
    for name, array in own.items():
        if _is_attention(name) and not name.startswith(NULL):
            right = array.ndim == 4 and array.shape == (passes, layers, array.shape[2], n)
            if not right or array.dtype.kind != "f" or np.isnan(array).any():
                raise Damaged(f"{prefix}{name} is no attention of {passes} passes over {n} candidates.")
    log_probs, mass = own.get(LOG_PROBS), own.get(LABEL_MASS)
    if log_probs is None or log_probs.shape != (passes, n) or log_probs.dtype.kind != "f" or np.isnan(log_probs).any():
        raise Damaged(f"{prefix}{LOG_PROBS} are no log probabilities of {passes} passes over {n} candidates.")
    if mass is None or mass.shape != (passes,) or mass.dtype.kind != "f":
        raise Damaged(f"{prefix}{LABEL_MASS} is no number for each of {passes} passes.")
    if len(own[LAYERS]) != passes or _integers(own, COUNTS, 2).shape != (passes, 2):
        raise Damaged(f"{prefix}{COUNTS} or {prefix}{LAYERS} have another number of passes than {passes}.")
    for name in (LENGTHS, CUT):
        if _integers(own, name, 2).shape not in ((passes, 0), (passes, n)):
            raise Damaged(f"{prefix}{name} hold no number of tokens for each of {n} candidates.")
    if any(name.startswith(NULL) for name in own):
        _check(group, passes, n, prefix + NULL)


def _integers(group: Group, name: str, dimensions: int) -> np.ndarray[Any, Any]:
    array = group.get(name)
    if array is None or array.ndim != dimensions or array.dtype.kind != "i":
        raise Damaged(f"{name} is missing, or holds no whole numbers.")
    return array


def _is_attention(name: str) -> bool:
    bare = name.removeprefix(NULL)
    return bare.startswith((ATTENTION, PEAKS))


def _narrow(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), array) else array
