"""Every Pillow mode and every array to 8-bit RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lad_rerank.errors import ImageError
from lad_rerank.images.limits import ImageLimits

if TYPE_CHECKING:
    from PIL.Image import Image

_FLOAT_SLACK = 1e-3  # resizing overshoots [0, 1] by a rounding error


def to_rgb(image: Image, name: str) -> Image:
    """A new RGB picture without metadata: alpha on white, 16 bits scaled to 8, the rest converted.

    Metadata goes because it is used up: whoever finds an orientation in it would turn the picture again.

    An embedded ICC profile is ignored, as in the image processors of the models: they never saw
    colour-managed pixels, and a damaged profile must not cost a candidate.

    Args:
        image: A loaded picture; not changed.
        name: What to call it in an error.

    Raises:
        ImageError: The mode cannot be converted, or a float picture holds NaN or infinity.
    """
    try:
        if image.mode.startswith("I") or image.mode == "F":
            rgb = _from_deep(image, name)
        elif image.has_transparency_data:
            rgb = _on_white(image)
        else:
            rgb = image.convert("RGB")  # a copy, also where it is RGB already
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(
            f"{name} has mode {image.mode}, which cannot be converted to RGB ({error}); convert it first."
        ) from error
    rgb.info = {}
    return rgb


def from_array(array: NDArray[Any], name: str, limits: ImageLimits) -> Image:
    """A picture from an array of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).

    Args:
        array: bool, float in [0, 1], uint16 in its full range, or another integer type in 0..255.
        name: What to call it in an error.
        limits: Checked before anything is converted.

    Raises:
        ImageError: Another shape or dtype, values out of range, NaN, or over a limit.
    """
    from PIL import Image

    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = " Move the channels last." if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise ImageError(
            f"{name} has shape {array.shape}; (H, W), (H, W, 1), (H, W, 3) and (H, W, 4) are pictures.{hint}"
        )
    limits.check_size((array.shape[1], array.shape[0]), name)
    values = _eight_bits(array, name)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return to_rgb(Image.fromarray(np.ascontiguousarray(values)), name)


def _eight_bits(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return _scaled(array, 0.0, 65535.0)
    if kind not in "iuf":
        raise ImageError(f"{name} has dtype {array.dtype}; use uint8, uint16, bool, or float in [0, 1].")
    low, high = _range(array, name)
    if kind == "f":
        if low < -_FLOAT_SLACK or high > 1.0 + _FLOAT_SLACK:
            raise ImageError(
                f"{name} is float with values from {low:g} to {high:g}; float arrays must lie in [0, 1]. "
                f"Undo the normalisation, or use .astype('uint8') if 255 is white."
            )
        return _scaled(array, 0.0, 1.0)
    if low < 0 or high > 255:
        raise ImageError(
            f"{name} has dtype {array.dtype} and values from {low:g} to {high:g}; integers must lie in 0..255 "
            f"(uint16: 0..65535)."
        )
    return array.astype(np.uint8)


def _from_deep(image: Image, name: str) -> Image:
    """Grey pictures of more than 8 bits, which Pillow's own conversion clips to white or black."""
    from PIL import Image as pillow

    array = np.asarray(image)
    low, high = _range(array, name)
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    elif low >= 0 and (image.mode == "F" and high <= 1):
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    elif low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    # Anything else (heights, temperatures) has no white of its own: its own range is stretched.
    grey = pillow.fromarray(_scaled(array, low, high))
    key = image.info.get("transparency")
    if isinstance(key, int):  # a 16-bit grey PNG may name one grey as transparent
        return pillow.composite(
            pillow.new("RGB", image.size, "white"), grey.convert("RGB"), pillow.fromarray(array == key)
        )
    return grey.convert("RGB")


def _on_white(image: Image) -> Image:
    from PIL import Image as pillow

    if image.mode in ("RGBa", "La"):  # premultiplied; only these two steps are defined
        image = image.convert(image.mode.upper())
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    white = pillow.new("RGBA", rgba.size, "white")
    return pillow.alpha_composite(white, rgba).convert("RGB")


def _range(array: NDArray[Any], name: str) -> tuple[float, float]:
    low, high = float(array.min()), float(array.max())
    if not np.isfinite([low, high]).all():
        raise ImageError(f"{name} holds NaN or infinite values; it is no picture.")
    return low, high


def _scaled(array: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    unit = (array.astype(np.float64) - low) / (high - low if high > low else 1.0)
    scaled: NDArray[np.uint8] = np.rint(unit.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return scaled
