"""An index on disk: one FAISS file, and one JSON file that names it.

``index.json`` is replaced in one step, last, and names the vectors' file by its digest: whatever happens
while saving, the folder holds the old index or the new one, and never the vectors of one with the ids of
the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clip_faiss import _extras
from clip_faiss.collecting import Item
from clip_faiss.errors import FirstStageError
from clip_faiss.fingerprint import EncoderFingerprint
from lad_rerank.files import replacing

MANIFEST = "index.json"
SCHEMA: Literal[1] = 1

_STRICT = ConfigDict(extra="forbid")


class Vectors(BaseModel):
    """The FAISS file: its name beside the JSON file, its SHA-256 and its shape."""

    model_config = _STRICT

    file: str
    sha256: str
    count: int
    dimension: int


class ImageFolder(BaseModel):
    """The indexed folder: its absolute path, and its path relative to the index where there is one."""

    model_config = _STRICT

    path: str
    relative: str | None


class StoredItem(BaseModel):
    """See :class:`clip_faiss.collecting.Item`."""

    model_config = _STRICT

    id: str
    file: str | None
    metadata: dict[str, Any]


class Manifest(BaseModel):
    """What ``index.json`` holds."""

    model_config = _STRICT

    schema_version: Literal[1]
    encoder: EncoderFingerprint
    vectors: Vectors
    images: ImageFolder | None
    items: list[StoredItem]


def write(folder: Path, vectors: Any, items: Sequence[Item], encoder: EncoderFingerprint, images: Path | None) -> None:
    """Write an index; an older one in the same folder stays whole until the new one is.

    Args:
        folder: Made where it is missing; other files in it are left alone.
        vectors: The FAISS index.
        items: One per row of it.
        encoder: Fingerprint of what made the rows.
        images: The folder that relative paths of items start from.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = _extras.faiss().serialize_index(vectors).tobytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"vectors-{digest[:12]}.faiss"
    manifest = Manifest(
        schema_version=SCHEMA,
        encoder=encoder,
        vectors=Vectors(file=name, sha256=digest, count=vectors.ntotal, dimension=vectors.d),
        images=None if images is None else ImageFolder(path=str(images), relative=_relative(images, folder)),
        items=[StoredItem(id=item.id, file=item.file, metadata=item.metadata) for item in items],
    )
    text = _readable(manifest).encode("utf-8")
    for file, content in ((folder / name, data), (folder / MANIFEST, text)):
        with replacing(file) as temporary:
            temporary.write_bytes(content)
    for old in folder.glob("vectors-*.faiss"):
        if old.name != name:
            old.unlink(missing_ok=True)


def read(folder: Path) -> tuple[Manifest, Any]:
    """Read an index and check that its two files belong together.

    Returns:
        The JSON file's content and the FAISS index.

    Raises:
        FirstStageError: No index there, another schema, a damaged file, or parts that do not fit.
    """
    manifest = _read_manifest(folder)
    stored = manifest.vectors
    path = folder / Path(stored.file).name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FirstStageError(f"The vectors of the index cannot be read: {error}. Build the index again.") from error
    if hashlib.sha256(data).hexdigest() != stored.sha256:
        raise FirstStageError(f"{path} is not the file that {MANIFEST} describes; build the index again.")
    faiss = _extras.faiss()
    import numpy as np

    try:
        vectors = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
    except (RuntimeError, AssertionError) as error:
        raise FirstStageError(f"FAISS cannot read {path}: {error}. Build the index again.") from error
    # Another kind would need training, or would answer with distances, of which small is near.
    if not isinstance(vectors, faiss.IndexFlat) or vectors.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise FirstStageError(f"{path} is no flat inner-product index; build the index again.")
    counts = {"vectors": vectors.ntotal, "ids": len(manifest.items), "vectors announced": stored.count}
    if len(set(counts.values())) > 1 or len({item.id for item in manifest.items}) < len(manifest.items):
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        raise FirstStageError(f"The index in {folder} does not fit together: {told}, each id once. Build it again.")
    if not vectors.d == stored.dimension == manifest.encoder.dimension:
        raise FirstStageError(
            f"The index in {folder} does not fit together: vectors of {vectors.d} numbers, and its encoder "
            f"{manifest.encoder} makes {manifest.encoder.dimension}. Build it again."
        )
    return manifest, vectors


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FirstStageError(f"There is no index in {folder}: {MANIFEST} is missing. Build one first.") from error
    except (OSError, ValueError) as error:
        raise FirstStageError(f"{path} cannot be read: {error}. Build the index again.") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA:
        raise FirstStageError(
            f"{path} has schema version {version!r}, and this version reads {SCHEMA}. Build the index again."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FirstStageError(f"{path} is damaged at {where!r}: {first['msg']}. Build the index again.") from error


def _relative(images: Path, folder: Path) -> str | None:
    try:
        return Path(os.path.relpath(images, folder.resolve())).as_posix()
    except ValueError:  # another drive
        return None


def _readable(manifest: Manifest) -> str:
    """JSON with one line per item: readable, and a changed item is one changed line."""
    content = manifest.model_dump(mode="json")
    items = content.pop("items")
    head = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    return f'{head},\n "items": [\n{lines}\n ]\n}}\n'
