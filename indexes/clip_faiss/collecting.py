"""From what a caller wants indexed to items with an id, a picture and metadata."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lad_rerank.errors import InvalidRequestError
from lad_rerank.images.text import existing_path, file_url_path, scheme_of
from lad_rerank.records import Candidate

if TYPE_CHECKING:
    from lad_rerank.records import ImageSource

_log = logging.getLogger(__name__)

Images: TypeAlias = "str | PathLike[str] | Iterable[ImageSource | Candidate]"
"""A folder, or a list of image sources and candidates."""

SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("apng", "avif", "bmp", "dib", "gif", "heic", "heif", "ico", "jfif", "jp2", "jpe", "jpeg", "jpg"),
        *("pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
    )
)
"""Names of files in a folder that are taken for pictures, in lower case."""


@dataclass(frozen=True)
class Item:
    """What an index knows of one picture, beside its vector.

    Attributes:
        id: Unique within the index.
        file: Its path: relative to the indexed folder, or absolute; ``None`` for a picture from memory.
        metadata: As JSON gives it back.
    """

    id: str
    file: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Pending:
    """An item whose picture was not opened yet; ``source`` is ``None`` where a candidate has none."""

    item: Item
    source: ImageSource | None


def collect(
    images: Images,
    ids: Sequence[str] | None,
    metadata: Sequence[Mapping[str, Any]] | None,
    taken: Sequence[str],
) -> tuple[list[Pending], Path | None]:
    """Name everything that is to be indexed, and check the names; opens no picture.

    Args:
        images: See :data:`Images`. In a folder every picture of it and of the folders in it, hidden ones
            left out, in the order of their paths; the id is the path relative to the folder with forward
            slashes, and metadata's ``"path"`` is the same.
        ids: In place of the default ids.
        metadata: Added to what there is already, one mapping per picture.
        taken: Ids that the index holds; default ids of a list count on from here.

    Returns:
        The items, and the folder where a folder was given.

    Raises:
        InvalidRequestError: No folder, lengths that differ, an id that is no text, blank or there twice,
            or metadata that is no JSON.
    """
    folder = None
    if isinstance(images, (str, PathLike)):
        folder = _folder(images)
        found = [Candidate(image=folder / path, id=path, metadata={"path": path}) for path in _walk(folder)]
    elif not isinstance(images, Iterable) or _is_no_list(images):
        raise InvalidRequestError(
            f"Images must be a folder or a list of pictures, got one {type(images).__name__}; put it in a list."
        )
    else:
        found = [one if isinstance(one, Candidate) else Candidate(image=one) for one in images]
    for name, given in (("ids", ids), ("metadata", metadata)):
        if given is not None and (isinstance(given, (str, Mapping)) or len(given) != len(found)):
            raise InvalidRequestError(f"There are {len(found)} pictures, and {name} must list one for each.")
    pending = []
    for i, one in enumerate(found):
        default = str(len(taken) + i) if one.id is None else one.id
        name = _checked_id(default if ids is None else ids[i], i)
        notes = {**one.metadata, **(metadata[i] if metadata is not None else {})}
        file = one.id if folder is not None else _file(one.image)
        pending.append(Pending(Item(name, file, _as_json(notes, name)), one.image))
    _refuse_duplicates([p.item.id for p in pending], taken)
    return pending, folder


def _is_no_list(images: object) -> bool:
    """Whether something that can be iterated over is one picture: bytes, a stream, an array (H, W[, C])."""
    one = isinstance(images, (bytes, bytearray, memoryview, Mapping, Candidate)) or hasattr(images, "read")
    return one or (hasattr(images, "__array__") and getattr(images, "ndim", 0) < 4)


def _folder(images: str | PathLike[str]) -> Path:
    folder = Path(images)
    if folder.is_file():
        raise InvalidRequestError(f"{folder} is a file; give a folder, or a list of pictures.")
    if not folder.is_dir():
        raise InvalidRequestError(f"There is no folder {folder} to index.")
    return folder.resolve()


def _walk(folder: Path) -> list[str]:
    """Paths of the pictures in a folder, relative to it, sorted."""
    paths = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            # Hidden files named like pictures are other programs' notes about pictures ("._photo.jpg").
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                paths.append(Path(where, name).relative_to(folder).as_posix())
    named = [path for path in paths if _is_text(path)]
    if len(named) < len(paths):
        _log.warning(
            "%d pictures in %s are left out: their names are no UTF-8. Rename them.", len(paths) - len(named), folder
        )
    return sorted(named)


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _file(source: ImageSource | None) -> str | None:
    """Absolute path of a source that is a file, so that it can be opened again later."""
    if not isinstance(source, (str, PathLike)):
        return None
    try:
        is_url = isinstance(source, str) and scheme_of(source) == "file"
        path = file_url_path(str(source)) if is_url else existing_path(os.fsdecode(source))
        if path is None or not path.is_file():
            return None
        whole = str(path.resolve())
    except (OSError, ValueError):  # base64 and the like, which open_image reads and no file system knows
        return None
    return whole if _is_text(whole) else None


def _checked_id(name: object, index: int) -> str:
    if not isinstance(name, str):
        raise InvalidRequestError(f"The id of picture {index} is a {type(name).__name__}; ids are strings.")
    if not name.strip() or not _is_text(name):
        raise InvalidRequestError(f"The id {name!r} of picture {index} is blank or no valid Unicode.")
    return name


def _refuse_duplicates(ids: Sequence[str], taken: Sequence[str]) -> None:
    seen = set(taken)
    for i, name in enumerate(ids):
        if name in seen:
            where = "the index" if name in set(taken) else "the list"
            raise InvalidRequestError(
                f"The id {name!r} of picture {i} is in {where} already; nothing was indexed. Give unique ids."
            )
        seen.add(name)


def _as_json(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Metadata as it will be after saving and loading, so that both indexes answer alike."""
    try:
        text = json.dumps(dict(metadata), default=_plain, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"The metadata of {name!r} cannot be kept as JSON: {error}.") from error
    return dict(json.loads(text))


def _plain(value: object) -> object:
    """Paths and numpy scalars, which are common in metadata and unknown to JSON."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
