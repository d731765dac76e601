"""Evaluation sets of annotation files of the paper's kind: ``image_ids``, ``index`` and ``caption``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from lad_rerank.errors import EvaluationSetError
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet
from lad_rerank.records import Candidate

SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".webp")
COCO_PREFIXES = ("COCO_val2014_", "COCO_train2014_", "")
LISTS = ("annotations", "data", "samples")


def set_from_annotations(
    path: str | PathLike[str],
    images: str | PathLike[str],
    *,
    instances: int | None = None,
    seed: int = 0,
    name: str | None = None,
) -> EvaluationSet:
    """Read an annotation file: a JSON list of records, one under ``"annotations"`` or ``"data"``, or JSON lines.

    A record's ``image_ids`` are looked for in the folder as they are written, with ``.jpg``, ``.jpeg``, ``.png``
    or ``.webp`` behind, and where they are numbers as COCO names its files (``COCO_val2014_000000000042.jpg``).
    ``index`` counts from 0; ``null`` or -1 means that no image is right. ``caption`` is a text or a list of
    them, of which the first is taken.

    Args:
        path: The file.
        images: Folder of the images.
        instances: How many records at most, drawn at random; all by default.
        seed: Chooses them.
        name: What reports call the set; the file's name by default.

    Raises:
        EvaluationSetError: No such file or folder, no records, or a record that cannot be used; names it.
    """
    path, folder = Path(path), Path(images)
    if not folder.is_dir():
        raise EvaluationSetError(f"There is no folder {folder} to look for the annotations' images in.")
    records = _records(path)
    numbers = list(range(len(records)))
    if instances is not None and instances < len(numbers):
        numbers = sorted(Random(f"annotations {seed}").sample(numbers, instances))
    items = []
    for number in numbers:
        try:
            items.append(_item(records[number], number, folder))
        except EvaluationSetError as error:
            raise EvaluationSetError(f"{path}, record {number}: {error}") from error
    return EvaluationSet(path.stem if name is None else name, tuple(items))


def _records(path: Path) -> list[Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise EvaluationSetError(f"Cannot read the annotations {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise EvaluationSetError(f"Cannot read the annotations {path}: it is no UTF-8 text ({error}).") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            raise EvaluationSetError(f"The annotations {path} are no JSON: {error}.") from error
    if isinstance(value, Mapping):
        found = [value[name] for name in LISTS if isinstance(value.get(name), list)]
        value = found[0] if found else [value] if "image_ids" in value else []
    if not isinstance(value, list) or not value:
        raise EvaluationSetError(
            f"The annotations {path} hold no list of records with the fields image_ids, index and caption."
        )
    return value


def _item(record: Any, number: int, folder: Path) -> EvaluationItem:
    if not isinstance(record, Mapping):
        raise EvaluationSetError("it is no object with the fields image_ids, index and caption.")
    for field in ("image_ids", "index", "caption"):
        if field not in record:
            raise EvaluationSetError(f"field {field!r} is missing.")
    names, index, caption = record["image_ids"], record["index"], record["caption"]
    if not isinstance(names, list) or not all(isinstance(n, (str, int)) and not isinstance(n, bool) for n in names):
        raise EvaluationSetError("field 'image_ids' must be a list of numbers or names.")
    if isinstance(index, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", index):
        index = int(index)
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise EvaluationSetError(f"field 'index' must be a whole number or null, got {index!r}.")
    if isinstance(caption, list) and caption:
        caption = caption[0]
    candidates = tuple(Candidate(image=find_image(folder, str(n)), id=str(n)) for n in names)
    target = None if index == -1 else index
    if target is not None and not 0 <= target < len(candidates):
        raise EvaluationSetError(
            f"field 'index': {index} is no index into {len(candidates)} image_ids; they count from 0."
        )
    return EvaluationItem(f"{number:05d}", caption, candidates, target)


def find_image(folder: Path, name: str) -> Path:
    """The file of an image id.

    Args:
        folder: Where images are.
        name: Such as ``"42"``, ``"000000000042"`` or ``"COCO_val2014_000000000042.jpg"``.

    Raises:
        EvaluationSetError: There is no such file; the message says what was looked for.
    """
    stems = [name]
    if re.fullmatch(r"[0-9]{1,12}", name):
        stems += [f"{prefix}{int(name):012d}" for prefix in COCO_PREFIXES]
    for stem in dict.fromkeys(stems):
        for suffix in SUFFIXES:
            path = folder / f"{stem}{suffix}"
            if _is_inside(path, folder) and path.is_file():
                return path
    looked = ", ".join(f"{stem}.jpg" for stem in dict.fromkeys(stems))
    raise EvaluationSetError(f"field 'image_ids': there is no image {name!r} in {folder} (looked for {looked}).")


def _is_inside(path: Path, folder: Path) -> bool:
    """Annotation files come from strangers: their names must not lead out of the folder."""
    return ".." not in path.relative_to(folder).parts if path.is_relative_to(folder) else False
