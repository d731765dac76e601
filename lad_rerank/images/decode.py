"""Encoded bytes to a loaded picture, with nothing of Pillow's behaviour left to chance."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

from lad_rerank.errors import ImageError
from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.sniff import describe

if TYPE_CHECKING:
    from PIL.Image import Image

# Every format a catalogue holds that Pillow decodes by itself. Not on the list on purpose: EPS (starts
# Ghostscript), WMF (calls the operating system), PSD (only a preview may be there), TGA and others without
# a magic number (they take arbitrary bytes for pixels).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "ICO", "PPM")
_PLUGIN_FORMATS = ("HEIF", "JXL")  # opened once the caller has registered a plugin for them
_STARTS_PROGRAMS = frozenset({"EPS", "WMF"})

# warnings.catch_warnings swaps a process-wide list, so two threads must not be inside it at once. It is
# held for headers only, never while pixels are decoded. Re-entrant: a lazy picture may be loaded under it.
_HEADER_LOCK = threading.RLock()


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence what Pillow warns of (bombs, odd EXIF): the limits decide, and an odd EXIF block is no news."""
    with _HEADER_LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def decode(data: bytes, name: str, limits: ImageLimits) -> Image:
    """Open and load the first frame of an encoded picture.

    Args:
        data: The whole file.
        name: What to call it in an error.
        limits: Checked against the header, before pixels are decoded.

    Returns:
        A loaded picture in its own mode, not yet upright.

    Raises:
        ImageError: Empty, no picture, a format that is not opened, over a limit, truncated or corrupt.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise ImageError(f"{name} is {describe(data)}.")
    try:
        with quiet_pillow():
            Image.init()
            formats = [f for f in (*_FORMATS, *_PLUGIN_FORMATS) if f in Image.OPEN]
            image = Image.open(BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        raise ImageError(f"{name} is no picture that can be opened: it is {describe(data)}.") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} claims too many pixels: {error} Shrink it.") from None
    except Exception as error:  # decoders raise anything, down to struct.error, on hostile bytes
        raise ImageError(f"{name} is corrupt: {_reason(error)}. Fetch or export it again.") from error
    limits.check_size(image.size, name)
    _load(image, name, quiet=image.format == "ICO")  # the one decoder that warns while it loads
    return image


def load_given(image: Image, name: str, limits: ImageLimits) -> None:
    """Load the pixels of a caller's picture, which Pillow may have left in its file until now.

    Raises:
        ImageError: Over a limit, closed, truncated, or in a format whose decoder starts other programs.
    """
    limits.check_size(image.size, name)
    if image.format in _STARTS_PROGRAMS:
        raise ImageError(
            f"{name} is in the {image.format} format, whose decoder starts other programs; export it as PNG or JPEG."
        )
    # Pillow's lazy loading is not thread-safe, and one picture may stand in two requests.
    _load(image, name, quiet=True)


def upright(image: Image) -> Image:
    """Turn a loaded picture as its EXIF or XMP orientation says; a damaged block counts as none."""
    from PIL.Image import Transpose

    try:
        with quiet_pillow():
            orientation = image.getexif().get(0x0112, 1)
    except Exception:  # a broken metadata block is no reason to refuse good pixels
        return image
    turn = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


def _load(image: Image, name: str, *, quiet: bool) -> None:
    try:
        if quiet:
            with quiet_pillow():
                image.load()
        else:
            image.load()
    except Exception as error:
        raise ImageError(f"{name} is truncated or corrupt: {_reason(error)}. Fetch or export it again.") from error


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")
