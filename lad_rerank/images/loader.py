"""The one door through which pictures come in."""

from __future__ import annotations

import hashlib
import os
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from lad_rerank.errors import ImageError
from lad_rerank.images.decode import decode, load_given, upright
from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.pixels import from_array, to_rgb
from lad_rerank.images.sources import as_path, read_path, read_stream
from lad_rerank.images.text import (
    existing_path,
    file_url_path,
    is_data_uri,
    not_found,
    read_base64,
    read_data_uri,
    scheme_of,
    shorten,
)
from lad_rerank.images.urls import fetch, shown

if TYPE_CHECKING:
    from PIL.Image import Image

    from lad_rerank.records import ImageSource

_DEFAULT_LIMITS = ImageLimits()
_LONGEST_NAME = 255
_TEXT_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-: \t\r\n;,")


def open_image(source: ImageSource, *, allow_urls: bool = False, limits: ImageLimits = _DEFAULT_LIMITS) -> Image:
    """Open a picture as every model here expects it: upright, RGB, loaded, and the caller's own copy.

    The first frame of animations is taken, EXIF orientation is applied, transparency is laid on white,
    16-bit greys are scaled, CMYK and Lab are converted, ICC profiles are ignored. File handles are closed,
    and no setting of Pillow is changed.

    Args:
        source: A PIL image (at its current frame), a path (``~`` is expanded), encoded bytes, a binary
            stream (read from its start), base64 text, a ``data:`` URI, a ``file://`` URL, or an array of
            shape (H, W[, 1 | 3 | 4]) of bool, uint8, uint16 or float in [0, 1]. Names and media types are
            not believed: the bytes decide. A string that names an existing file is that file.
        allow_urls: Whether ``http://`` and ``https://`` are downloaded. Leave it off for text from
            strangers: they could reach your own network through it.
        limits: Checked before pixels are decoded.

    Returns:
        A new RGB picture.

    Raises:
        ImageError: Whatever is wrong with it, in one sentence that says what to do.

    Example:
        >>> open_image(np.zeros((4, 6), np.uint8)).size
        (6, 4)
    """
    from PIL import Image

    if isinstance(source, Image.Image):
        name = f"The PIL image (mode {source.mode}, {source.width}x{source.height})"
        load_given(source, name, limits)
        return to_rgb(upright(source), name)
    if isinstance(source, str):
        return _from_text(source, allow_urls, limits)
    if isinstance(source, os.PathLike):
        path = as_path(source)
        return _from_bytes(read_path(path, limits), f"The file {shorten(str(path))}", limits)
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_given_bytes(bytes(source), limits)
    if hasattr(source, "read"):
        return _from_given_bytes(read_stream(cast("IO[bytes]", source), limits), limits)
    if hasattr(source, "__array__"):
        return _from_array_like(source, limits)
    raise ImageError(
        f"A {type(source).__name__} is no picture. "
        f"Give a PIL image, path, bytes, binary stream, base64, data: URI or array."
    )


def image_digest(image: Image) -> str:
    """SHA-256 (hexadecimal) over the size and the RGB bytes: equal pictures, however stored, agree.

    Args:
        image: Usually what :func:`open_image` returned; another mode is converted first.

    Raises:
        ImageError: Its mode cannot be converted to RGB.
    """
    rgb = image if image.mode == "RGB" else to_rgb(image, "The PIL image")
    digest = hashlib.sha256(f"{rgb.width}x{rgb.height}:".encode())
    digest.update(rgb.tobytes())
    return digest.hexdigest()


def _from_text(text: str, allow_urls: bool, limits: ImageLimits) -> Image:
    if not text.strip():
        raise ImageError("The image is a blank string; give a path, base64 or a data: URI.")
    if is_data_uri(text):
        return _from_bytes(read_data_uri(text, limits), f"The data: URI {shorten(text)}", limits)
    scheme = scheme_of(text)
    if scheme == "file":
        path = file_url_path(text)
        return _from_bytes(read_path(path, limits), f"The file {shorten(str(path))}", limits)
    if scheme in ("http", "https"):
        if not allow_urls:
            raise ImageError(f"The URL {shown(text)} is not fetched: pass allow_urls=True, or download it yourself.")
        return _from_bytes(fetch(text, limits), f"The URL {shown(text)}", limits)
    if scheme is not None:
        raise ImageError(f"{scheme}:// is not supported ({shorten(text)}); download the picture and give its path.")
    found = existing_path(text)
    if found is not None:
        return _from_bytes(read_path(found, limits), f"The file {shorten(str(found))}", limits)
    data = read_base64(text, limits)
    if data is None:
        raise not_found(text)
    try:
        return _from_bytes(data, f"The base64 text {shorten(text)}", limits)
    except ImageError as error:
        if len(text) > _LONGEST_NAME:
            raise
        # "photos/mugs/blue" is made of base64 letters only, and is more likely a path with a slip.
        raise ImageError(f"{error} Nor is there a file of that name.") from None


def _from_given_bytes(data: bytes, limits: ImageLimits) -> Image:
    """Encoded bytes; or base64 and ``data:`` URIs as bytes, as LlamaIndex's ``MediaResource`` keeps them."""
    name = f"The bytes object ({len(data):,} bytes)"
    if _TEXT_BYTES.issuperset(data[:256]):
        text = data.decode("latin-1")
        inner = read_data_uri(text, limits) if is_data_uri(text) else read_base64(text, limits)
        if inner is not None:
            return _from_bytes(inner, name, limits)
    return _from_bytes(data, name, limits)


def _from_bytes(data: bytes, name: str, limits: ImageLimits) -> Image:
    limits.check_bytes(len(data), name)
    return to_rgb(upright(decode(data, name, limits)), name)


def _from_array_like(source: Any, limits: ImageLimits) -> Image:
    try:
        array = np.asarray(source)
    except Exception as error:  # a tensor on a GPU, or one that wants gradients
        raise ImageError(f"This {type(source).__name__} does not become an array: {error}") from error
    return from_array(array, f"The array of shape {array.shape}", limits)
