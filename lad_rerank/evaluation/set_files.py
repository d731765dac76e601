"""Evaluation sets as files: JSON lines ``{id, query, candidates, target}``."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import EvaluationSetError
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.files import replacing
from lad_rerank.images.text import is_data_uri, scheme_of
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from lad_rerank.records import ImageSource

logger = logging.getLogger(__name__)

LONGEST_PATH = 1024


def read_set(path: str | PathLike[str], *, name: str | None = None) -> EvaluationSet:
    """Read a set from JSON lines, UTF-8 with or without a byte order mark.

    A candidate is the path of an image, relative to the file, or ``{"id", "image", "text", "first_stage_score"}``.
    ``target`` is an index from 0, an id, or a path as it is written in ``candidates``; ``null`` means that no
    candidate is right, and with ``"retrieved": false`` that the first stage missed it. ``id`` may be left out:
    it is the line's number then. Blank lines and further fields are passed over.

    Args:
        path: The file.
        name: What reports call the set; the file's name by default.

    Raises:
        EvaluationSetError: The file cannot be read, or a line is no item; names the line and the field.
    """
    path = Path(path)
    try:
        # str.splitlines() would also split at U+2028 and U+0085, which JSON strings may hold as they are.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise EvaluationSetError(f"Cannot read the evaluation set {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise EvaluationSetError(f"Cannot read the evaluation set {path}: it is no UTF-8 text ({error}).") from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise EvaluationSetError(f"{path}, line {number}: no JSON ({error}).") from error
        try:
            items.append(_item(value, number, path.parent))
        except EvaluationSetError as error:
            raise EvaluationSetError(f"{path}, line {number}, {error}") from error
    if not items:
        raise EvaluationSetError(f"The evaluation set {path} has no lines.")
    return EvaluationSet(path.stem if name is None else name, tuple(items))


def write_set(evaluated: EvaluationSet, path: str | PathLike[str]) -> None:
    """Write a set as :func:`read_set` reads it.

    Files are named by their paths: relative where they lie beside the file or below it. Pictures from memory are
    written as PNG into the folder ``NAME_images`` beside the file.

    Args:
        evaluated: The set.
        path: The file.

    Raises:
        EvaluationSetError: A picture from memory cannot be opened.
        OSError: The file cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for item in evaluated.items:
            value: dict[str, Any] = {
                "id": item.id,
                "query": item.query,
                "candidates": [_written(candidate, path, item.id) for candidate in item.candidates],
                "target": item.target,
            }
            if not item.retrieved:
                value["retrieved"] = False
            # Surrogates of file names that are no UTF-8 survive as escapes.
            stream.write(json.dumps(value, ensure_ascii=_has_surrogates(value)) + "\n")


def _has_surrogates(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _item(value: object, number: int, folder: Path) -> EvaluationItem:
    if not isinstance(value, Mapping):
        raise EvaluationSetError(f"which must be an object with query, candidates and target, got {_kind(value)}.")
    for field in ("query", "candidates", "target"):
        if field not in value:
            hint = " (null where no candidate is right)" if field == "target" else ""
            raise EvaluationSetError(f"field {field!r} is missing{hint}.")
    given = value["candidates"]
    if not isinstance(given, list):
        raise EvaluationSetError(f"field 'candidates' must be a list, got {_kind(given)}.")
    name = value.get("id", number)
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise EvaluationSetError(f"field 'id' must be a text or a whole number, got {_kind(name)}.")
    retrieved = value.get("retrieved", True)
    if not isinstance(retrieved, bool):
        raise EvaluationSetError(f"field 'retrieved' must be true or false, got {_kind(retrieved)}.")
    return EvaluationItem(
        id=str(name),
        query=value["query"],
        candidates=tuple(_candidate(one, i, folder) for i, one in enumerate(given)),
        target=_target(value["target"], given),
        retrieved=retrieved,
    )


def _candidate(value: object, i: int, folder: Path) -> Candidate:
    where = f"field 'candidates': number {i}"
    if isinstance(value, str):
        return Candidate(image=_beside(folder, value), id=value)
    if not isinstance(value, Mapping):
        raise EvaluationSetError(f"{where} must be a path or an object, got {_kind(value)}.")
    for field in ("id", "image", "text"):
        if not isinstance(value.get(field), (str, type(None))):
            raise EvaluationSetError(f"{where}: {field!r} must be a text, got {_kind(value[field])}.")
    score = value.get("first_stage_score")
    if isinstance(score, bool) or not isinstance(score, (int, float, type(None))):
        raise EvaluationSetError(f"{where}: 'first_stage_score' must be a number, got {_kind(score)}.")
    if score is not None and not math.isfinite(score):
        raise EvaluationSetError(f"{where}: 'first_stage_score' must be a finite number, got {score}.")
    image = value.get("image")
    name = value.get("id")
    return Candidate(
        image=None if image is None else _beside(folder, image),
        id=image if name is None else name,
        text=value.get("text"),
        first_stage_score=None if score is None else float(score),
    )


def _beside(folder: Path, image: str) -> ImageSource:
    """A relative path means relative to the set's file, there or not; URLs and encoded pictures stay as they are."""
    if len(image) >= LONGEST_PATH or is_data_uri(image) or scheme_of(image) is not None:
        return image
    return folder / image


def _target(value: object, candidates: list[Any]) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        raise EvaluationSetError(f"field 'target' must be an index, an id, a path or null, got {_kind(value)}.")
    for field in ("id", "image"):
        names = [one if isinstance(one, str) else one.get(field) for one in candidates]
        if names.count(value) == 1:
            return names.index(value)
        if value in names:
            raise EvaluationSetError(f"field 'target': {value!r} names {names.count(value)} candidates; give an index.")
    raise EvaluationSetError(f"field 'target': {value!r} is no id and no path among the candidates.")


def _written(candidate: Candidate, path: Path, item: str) -> str | dict[str, Any]:
    image = None if candidate.image is None else _image_text(candidate.image, path, item)
    if image is not None and candidate.text is None and candidate.first_stage_score is None:
        if candidate.id in (None, image):
            return image
        return {"id": candidate.id, "image": image}
    fields = {
        "id": candidate.id,
        "image": image,
        "text": candidate.text,
        "first_stage_score": candidate.first_stage_score,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _image_text(source: ImageSource, path: Path, item: str) -> str:
    if isinstance(source, str) and (len(source) >= LONGEST_PATH or is_data_uri(source) or scheme_of(source)):
        return source
    folder = path.parent.resolve()
    if isinstance(source, (str, PathLike)):
        whole = Path(os.path.abspath(os.path.expanduser(os.fsdecode(source))))
        return whole.relative_to(folder).as_posix() if whole.is_relative_to(folder) else str(whole)
    from lad_rerank.errors import ImageError
    from lad_rerank.images import image_digest, open_image

    try:
        picture = open_image(source)
    except ImageError as error:
        raise EvaluationSetError(f"Item {item} cannot be written: {error}") from error
    place = path.parent / f"{path.stem}_images" / f"{image_digest(picture)[:24]}.png"
    if not place.is_file():
        with replacing(place) as temporary:
            picture.save(temporary, "PNG")
    return place.relative_to(path.parent).as_posix()


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), f"{value!r}")
