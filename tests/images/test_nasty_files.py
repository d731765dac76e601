"""Pictures and strings that real users hit, where that collection lies beside the repository."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lad_rerank.errors import ImageError
from lad_rerank.images import ImageLimits, open_image

NASTY = Path(__file__).parents[3] / "shared" / "data" / "nasty"

pytestmark = pytest.mark.skipif(not NASTY.is_dir(), reason="no ../shared/data/nasty")


def rows(name: str, *keys: str) -> list[dict[str, Any]]:
    path = NASTY / name
    if not path.is_file():
        return []
    data = json.loads(path.read_text("utf-8"))
    return [row for key in keys for row in data[key]] if keys else list(data)


@pytest.mark.parametrize("row", rows("manifest.json", "files", "pngsuite"), ids=lambda row: row["file"])
def test_files(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / row.get("use_this_name", Path(row["file"]).name)
    if path.name == "directory.jpg":
        path.mkdir()
    elif path.name == "dangling_link.jpg":
        path.symlink_to(tmp_path / "nothing")
    else:
        shutil.copy(NASTY / row["file"], path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if row["expect"] == "refuse":
            with pytest.raises(ImageError) as caught:
                open_image(path)
            assert 20 < len(str(caught.value)) < 600
            return
        try:
            image = open_image(path)
        except ImageError:
            assert row["expect"] == "policy"
            return
    assert image.mode == "RGB"
    assert list(image.size) == row["rgb_size"]
    assert np.asarray(image).mean() == pytest.approx(row["ref_rgb_mean"], abs=1.0)


def test_all_orientations_show_the_same_picture() -> None:
    pictures = [np.asarray(open_image(path), float) for path in sorted(NASTY.glob("files/exif_orientation_*.jpg"))]
    assert len(pictures) > 5
    for picture in pictures:
        assert picture[2, 5:30, 0].mean() > 150 > picture[2, 5:30, 2].mean()  # red bar along the top left
        assert picture[15:38, 2, 2].mean() > 150 > picture[15:38, 2, 0].mean()  # blue bar down the left


@pytest.mark.parametrize("row", rows("strings.json"), ids=lambda row: row["id"])
@pytest.mark.parametrize("allow_urls", [False, True])
def test_strings(row: dict[str, Any], allow_urls: bool) -> None:
    text = row["value"].replace("{NASTY_DIR}", str(NASTY))
    limits = ImageLimits(timeout=2)
    if row["expect"] == "open":
        assert list(open_image(text, allow_urls=allow_urls, limits=limits).size) == row["rgb_size"]
    elif row["expect"] == "refuse":
        with pytest.raises(ImageError) as caught:
            open_image(text, allow_urls=allow_urls, limits=limits)
        assert 20 < len(str(caught.value)) < 600
    else:
        with contextlib.suppress(ImageError):
            assert list(open_image(text, allow_urls=allow_urls, limits=limits).size) == row["rgb_size"]
