"""Damaged, hostile, rotated and odd files; limits before decoding; nothing global changes."""

from __future__ import annotations

import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile

from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.images import ImageLimits, image_digest, open_image


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "ICO", "PPM"])
def test_formats_open_and_their_beginnings_do_not(kind: str) -> None:
    image = noise()
    data = encoded(image, kind)
    got = open_image(data)
    assert got.mode == "RGB"
    assert abs(np.asarray(got, float).mean() - np.asarray(image, float).mean()) < 4
    with pytest.raises(ImageError, match=r"truncated or corrupt|is corrupt|damaged"):
        open_image(data[: len(data) // 2])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied_once(orientation: int, kind: str) -> None:
    upright = Image.new("RGB", (32, 16), "white")
    upright.paste((255, 0, 0), (0, 0, 16, 8))  # top left
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(turn[orientation]) if orientation in turn else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, kind, exif=exif, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    for source in (data, Image.open(BytesIO(data))):
        got = open_image(source)
        assert got.size == (32, 16)
        assert np.abs(np.asarray(got, float) - np.asarray(upright, float)).mean() < 12
        # Whoever asks for the orientation again finds none: no second turn further down.
        assert got.info == {}
        assert got.getexif().get(0x0112, 1) == 1
        assert open_image(got).tobytes() == got.tobytes()


def test_a_damaged_exif_block_costs_nothing() -> None:
    data = encoded(noise(), "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff\x01\x12\x00\x03junk")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_image(data).size == (40, 30)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"hello, not an image, only text", "it is text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
        (b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "never run"),
        (b"8BPS\x00\x01" + bytes(40), "Photoshop"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(40), "pillow-heif"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(40), "a video"),
        (b"\xff\x0a" + bytes(40), "JPEG XL"),
        (b"PK\x03\x04" + bytes(40), "ZIP"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip"),
        (b'{"url": "mug.png"}', "JSON"),
        (b"\x00\x01\x02\x03" * 20, "no image format"),
        (b"\x89PNG\r\n\x1a\nrubbish", "damaged PNG"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        open_image(data)


def test_ghostscript_is_never_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: started.append(a))
    path = tmp_path / "logo.eps"
    noise().save(path, "EPS")
    with pytest.raises(ImageError, match="EPS"):
        open_image(path)
    with Image.open(path) as lazy, pytest.raises(ImageError, match="starts other programs"):
        open_image(lazy)
    assert started == []


@pytest.mark.parametrize("size", [(20_000, 20_000), (12_000, 12_000), (100_000, 100_000)])
def test_bombs_are_refused_by_their_header(size: tuple[int, int]) -> None:
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        with pytest.raises(ImageError, match="pixels"):
            open_image(png_header(*size))
    assert leaked == []


def test_limits_are_checked_before_decoding() -> None:
    # The body of this file is empty: decoding it would fail with "truncated" instead.
    with pytest.raises(ImageError, match=r"300x200 = 60,000 pixels; at most 59,999"):
        open_image(png_header(300, 200), limits=ImageLimits(max_pixels=59_999))
    with pytest.raises(ImageError, match="truncated"):
        open_image(png_header(300, 200), limits=ImageLimits(max_pixels=60_000))
    with pytest.raises(ImageError, match="thinner than 200:1"):
        open_image(png_header(1, 201))
    with pytest.raises(ImageError, match="max_pixels"):
        open_image(noise(), limits=ImageLimits(max_pixels=10))
    with pytest.raises(ImageError, match="max_pixels"):
        open_image(np.zeros((30, 40), np.uint8), limits=ImageLimits(max_pixels=10))
    assert open_image(Image.new("L", (1, 500)), limits=ImageLimits(max_aspect=None)).size == (1, 500)
    assert open_image(Image.new("L", (200, 1))).size == (200, 1)
    assert open_image(Image.new("L", (1, 1))).size == (1, 1)


@pytest.mark.parametrize("field", ["max_pixels", "max_bytes", "max_aspect", "timeout"])
def test_limits_are_validated(field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        ImageLimits(**{field: 0})
    assert getattr(ImageLimits(**{field: None}), field) is None


def test_pillow_is_left_as_it_was() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    open_image(encoded(noise(), "JPEG"))
    with pytest.raises(ImageError):
        open_image(png_header(20_000, 20_000))
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before


def test_many_threads_see_the_same_pictures() -> None:
    data = [encoded(noise((40 + i, 30)), "PNG") for i in range(8)]
    lazy = Image.open(BytesIO(data[0]))
    expected = [image_digest(open_image(item)) for item in data]
    filters = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda item: image_digest(open_image(item)), data * 20))
        shared = set(pool.map(lambda _: image_digest(open_image(lazy)), range(20)))
    assert got == expected * 20
    assert shared == {expected[0]}
    assert warnings.filters == filters


def test_digest_depends_on_size_and_pixels_only() -> None:
    image = noise()
    assert image_digest(open_image(encoded(image, "PNG"))) == image_digest(open_image(encoded(image, "BMP")))
    assert len(image_digest(image)) == 64
    assert image_digest(Image.new("RGB", (2, 6))) != image_digest(Image.new("RGB", (6, 2)))
    assert image_digest(Image.new("L", (2, 6))) == image_digest(Image.new("RGB", (2, 6)))
    changed = image.copy()
    changed.putpixel((0, 0), (1, 2, 3))
    assert image_digest(changed) != image_digest(image)


def test_importing_does_not_import_pillow() -> None:
    code = "import sys, lad_rerank.images; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
