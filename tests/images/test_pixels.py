"""Every mode and every array becomes the RGB picture that a person would see."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from lad_rerank.errors import ImageError
from lad_rerank.images import open_image


def grey(values: Any, dtype: Any) -> Image.Image:
    return Image.fromarray(np.array([values], dtype))


def row(image: Image.Image) -> list[int]:
    pixels = np.asarray(open_image(image))
    assert (pixels == pixels[..., :1]).all(), "not grey"
    return [int(v) for v in pixels[0, :, 0]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La"])
def test_alpha_lies_on_white(mode: str) -> None:
    image = Image.new("RGBA", (3, 1))  # transparent black
    image.putpixel((1, 0), (0, 0, 0, 255))
    image.putpixel((2, 0), (0, 0, 0, 128))
    if mode in ("LA", "La"):
        image = image.convert("LA")
    elif mode == "PA":
        image = image.convert("P").convert("PA")
        image.putalpha(Image.fromarray(np.array([[0, 255, 128]], np.uint8)))
    assert row(image.convert(mode)) == [255, 0, 127]


def test_transparent_palette_entries_lie_on_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((1, 0), 1)
    out = BytesIO()
    image.save(out, "PNG", transparency=0)
    got = open_image(out.getvalue())
    assert [got.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (10, 20, 30)]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_colour_keys_lie_on_white(mode: str) -> None:
    out = BytesIO()
    Image.new(mode, (2, 2)).save(out, "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert open_image(out.getvalue()).getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_are_scaled() -> None:
    image = grey([0, 257, 32896, 65535], np.uint16)
    assert image.mode == "I;16"
    assert row(image) == [0, 1, 128, 255]
    out = BytesIO()
    image.save(out, "PNG")
    assert row(Image.open(out)) == [0, 1, 128, 255]
    out = BytesIO()
    image.save(out, "TIFF")
    assert row(Image.open(out)) == [0, 1, 128, 255]


def test_thirty_two_bits_and_floats_are_scaled_by_what_they_hold() -> None:
    assert row(grey([0, 128, 255], np.int32)) == [0, 128, 255]
    assert row(grey([0, 32896, 65535], np.int32)) == [0, 128, 255]
    assert row(grey([-100, 0, 100], np.int32)) == [0, 128, 255]
    assert row(grey([0, 0.5, 1], np.float32)) == [0, 128, 255]
    assert row(grey([0, 128, 255], np.float32)) == [0, 128, 255]
    assert row(grey([-1, 0, 1], np.float32)) == [0, 128, 255]
    assert row(grey([7e6, 7e6], np.float32)) == [0, 0]
    with pytest.raises(ImageError, match="NaN"):
        open_image(grey([0, np.nan], np.float32))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"])
def test_other_modes_are_converted(mode: str) -> None:
    image = Image.new("RGB", (4, 4), "white")
    if mode == "LAB":
        to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
        converted = ImageCms.applyTransform(image, to_lab)
        assert converted is not None
    else:
        converted = image.convert(mode)
    got = open_image(converted)
    assert got.mode == "RGB"
    assert np.asarray(got).min() >= 253


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
@pytest.mark.parametrize(
    ("dtype", "white"),
    [
        (np.uint8, 255),
        (np.uint16, 65535),
        (np.float32, 1.0),
        (np.float64, 1.0),
        (np.float16, 1.0),
        (bool, True),
        (np.int64, 255),
    ],
)
def test_arrays(shape: tuple[int, ...], dtype: Any, white: Any) -> None:
    array = np.zeros(shape, dtype)
    array[1, 2] = white
    if shape[-1] == 4:
        array[..., 3] = white
    before = array.copy()
    got = open_image(array)
    assert got.size == (6, 4)
    assert got.getpixel((2, 1)) == (255, 255, 255)
    assert got.getpixel((0, 0)) == (0, 0, 0)
    got.putpixel((0, 0), (9, 9, 9))
    assert (array == before).all()


def test_arrays_in_any_memory_order() -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    for view in (array[::-1, ::-1], np.asfortranarray(array), array[:, :, ::-1]):
        assert (np.asarray(open_image(view)) == view).all()


def test_tensors_through_numpy() -> None:
    assert open_image(torch.ones(4, 6, 3)).getpixel((0, 0)) == (255, 255, 255)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="channels last"):
        open_image(torch.ones(3, 4, 6))  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="does not become an array"):
        open_image(torch.ones(4, 6, requires_grad=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((2, 2), np.nan), "NaN"),
        (np.full((2, 2), np.inf), "NaN or infinite"),
        (np.full((2, 2), 255.0), r"float .* must lie in \[0, 1\]"),
        (np.full((2, 2), -0.5), r"must lie in \[0, 1\]"),
        (np.full((2, 2), 256, np.int32), "0..255"),
        (np.full((2, 2), -1, np.int8), "0..255"),
        (np.zeros((2, 2), complex), "dtype complex128"),
        (np.array([["a"]]), "dtype <U1"),
        (np.array([[None]]), "dtype object"),
        (np.zeros(5, np.uint8), r"shape \(5,\)"),
        (np.zeros((1, 2, 2, 3), np.uint8), r"shape \(1, 2, 2, 3\)"),
        (np.zeros((3, 8, 9), np.uint8), "channels last"),
        (np.zeros((0, 4), np.uint8), "no pixels"),
        (np.float64(0.5), r"shape \(\)"),
    ],
)
def test_arrays_that_are_no_pictures(array: Any, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        open_image(array)


def test_a_rounding_error_beyond_one_is_forgiven() -> None:
    assert open_image(np.full((2, 2), 1.0000002)).getpixel((0, 0)) == (255, 255, 255)
