"""Every form in which a picture may be given."""

from __future__ import annotations

import base64
import os
from io import BytesIO, StringIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.errors import ImageError
from lad_rerank.images import ImageLimits, open_image

COLOUR = (200, 40, 90)


def encoded(kind: str = "PNG", size: tuple[int, int] = (6, 4), **options: Any) -> bytes:
    out = BytesIO()
    Image.new("RGB", size, COLOUR).save(out, kind, **options)
    return out.getvalue()


PNG = encoded()
B64 = base64.b64encode(PNG).decode()


def assert_is_it(image: Image.Image) -> None:
    assert image.mode == "RGB"
    assert image.size == (6, 4)
    assert image.getpixel((5, 3)) == COLOUR


@pytest.mark.parametrize(
    "source",
    [
        PNG,
        bytearray(PNG),
        memoryview(PNG),
        B64,
        B64.rstrip("="),
        B64.replace("+", "-").replace("/", "_"),
        "\n".join(B64[i : i + 20] for i in range(0, len(B64), 20)),
        B64.encode(),  # LlamaIndex's MediaResource.data
        f"data:image/png;base64,{B64}",
        f"  DATA:image/jpeg;charset=utf-8;BASE64, {B64}\n",
        f"data:image/png;base64,{B64}".encode(),
        f"data:;base64,{B64.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
        np.full((4, 6, 3), COLOUR, np.uint8),
    ],
    ids=lambda s: type(s).__name__,
)
def test_in_memory(source: Any) -> None:
    assert_is_it(open_image(source))


@pytest.mark.parametrize(
    "name",
    [
        "mug.png",
        "mug.jpg",
        "mug",
        " mug .png",
        "Фото – №1 猫🐱.PNG",
        "red%20mug #1 100%.png",
        "C:\\mug.png",
        "data.png",
    ],
)
def test_paths_under_any_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(PNG)
    assert_is_it(open_image(tmp_path / name))
    assert_is_it(open_image(str(tmp_path / name)))
    monkeypatch.chdir(tmp_path)
    assert_is_it(open_image(name))


def test_file_url_is_unescaped_once(tmp_path: Path) -> None:
    path = tmp_path / "red%20mug #1 100%.png"
    path.write_bytes(PNG)
    assert_is_it(open_image(path.as_uri()))
    assert_is_it(open_image(path.as_uri().replace("file://", "file://localhost")))
    with pytest.raises(ImageError, match="host 'elsewhere'"):
        open_image("file://elsewhere/mug.png")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mug.png").write_bytes(PNG)
    assert_is_it(open_image("~/mug.png"))
    assert_is_it(open_image(PurePosixPath("~/mug.png")))


def test_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "mug.png"
    path.write_bytes(PNG)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    images = [open_image(path) for _ in range(5)]
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before
    path.write_bytes(b"gone")
    for image in images:
        assert_is_it(image)


def test_streams_are_read_from_the_start_and_left_where_they_were() -> None:
    stream = BytesIO(PNG)
    stream.seek(17)
    assert_is_it(open_image(stream))
    assert stream.tell() == 17
    assert not stream.closed
    assert_is_it(open_image(stream))


def test_streams_that_only_read(tmp_path: Path) -> None:
    class Dripping:
        def __init__(self) -> None:
            self.inner = BytesIO(PNG)

        def read(self, count: int = -1) -> bytes:
            return self.inner.read(min(count, 7))

    assert_is_it(open_image(Dripping()))  # type: ignore[arg-type]
    path = tmp_path / "mug.png"
    path.write_bytes(PNG)
    with path.open("rb", buffering=0) as raw:
        assert_is_it(open_image(raw))


def test_streams_that_do_not_work() -> None:
    closed = BytesIO(PNG)
    closed.close()
    with pytest.raises(ImageError, match="closed file"):
        open_image(closed)
    with pytest.raises(ImageError, match="binary mode"):
        open_image(StringIO("mug"))  # type: ignore[arg-type]


def test_a_callers_picture_is_copied_never_changed() -> None:
    given = Image.new("RGB", (6, 4), COLOUR)
    got = open_image(given)
    got.putpixel((0, 0), (0, 0, 0))
    assert given.getpixel((0, 0)) == COLOUR
    turned = Image.new("RGB", (6, 4))
    exif = turned.getexif()
    exif[0x0112] = 6
    buffer = BytesIO()
    turned.save(buffer, "JPEG", exif=exif)
    lazy = Image.open(buffer)
    assert open_image(lazy).size == (4, 6)
    assert lazy.size == (6, 4)
    assert lazy.getexif()[0x0112] == 6


def test_a_callers_animation_keeps_its_frame() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    buffer = BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    animation = Image.open(buffer)
    animation.seek(1)
    assert open_image(animation).getpixel((0, 0)) == (0, 0, 255)
    assert animation.tell() == 1
    assert open_image(buffer.getvalue()).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "blank string"),
        ("  \n", "blank string"),
        ("no/such/mug.png", "no file 'no/such/mug.png'"),
        ("photos/mugs/of/the/year/blue/one/x", "Nor is there a file"),
        ("a\0.jpg", "NUL"),
        ("x" * 400 + ".jpg", "no valid base64"),
        ("C:\\Users\\me\\mug.jpg", "Windows path"),
        ("<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        ("s3://bucket/mug.jpg", "s3:// is not supported"),
        ("https://example.com/mug.jpg?sig=secret", "allow_urls=True"),
        ("data:image/png;base64,", "no payload"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,@@@not*base64@@@", "damaged base64"),
        ("data:image/svg+xml;utf8,<svg/>", "SVG"),
        (f"b'{B64}'", "repr of a bytes object"),
        (base64.b64encode(B64.encode()).decode(), "base64 inside base64"),
        (b"", "empty"),
        (12, "A int is no picture"),
        (None, "A NoneType is no picture"),
        (["mug.png"], "A list is no picture"),
    ],
)
def test_what_is_refused_and_why(source: Any, says: str) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(source)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_secrets_and_base64_stay_out_of_messages() -> None:
    with pytest.raises(ImageError) as caught:
        open_image("https://me:word@example.com/mug.jpg?sig=secret")
    assert "https://example.com/mug.jpg" in str(caught.value)
    assert "word" not in str(caught.value)
    assert "secret" not in str(caught.value)
    cut = f"data:image/png;base64,{base64.b64encode(encoded(size=(300, 300))[:-30]).decode()}"
    with pytest.raises(ImageError, match="truncated or corrupt") as caught:
        open_image(cut)
    assert len(str(caught.value)) < 300


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nothing.png")
    os.mkfifo(tmp_path / "pipe.png")
    for source, says in [
        (tmp_path, "a directory"),
        (tmp_path / "dangling.png", "a link to a file that does not exist"),
        (tmp_path / "pipe.png", "a device, pipe or socket"),
        (tmp_path / "nothing.png", "does not exist"),
        (Path("/dev/zero"), "a device"),
        (tmp_path / "mug.png" / "x", "does not exist"),
        (Path("a\0b"), "cannot be read"),
    ]:
        with pytest.raises(ImageError, match=says):
            open_image(source)
    with pytest.raises(ImageError, match="a link to a file that does not exist"):
        open_image(str(tmp_path / "dangling.png"))


def test_max_bytes_holds_for_every_form(tmp_path: Path) -> None:
    path = tmp_path / "mug.png"
    path.write_bytes(PNG)
    limits = ImageLimits(max_bytes=len(PNG) - 3)
    for source in (path, str(path), PNG, BytesIO(PNG), B64, B64.encode(), f"data:;base64,{B64}"):
        with pytest.raises(ImageError, match="larger than"):
            open_image(source, limits=limits)
        assert_is_it(open_image(source, limits=ImageLimits(max_bytes=len(PNG))))
