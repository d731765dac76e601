from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.calibration.samples import (
    CalibrationSample,
    open_samples,
    read_samples,
    samples_digest,
    samples_from_titles,
)
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (shade, 0, 0))


def test_titled_images_make_samples_without_labels() -> None:
    titled = [(f"mug {i}", picture(i)) for i in range(20)]
    samples = samples_from_titles(titled, count=5, candidates=8, seed=3)
    assert len(samples) == 5
    for sample in samples:
        assert len(sample.images) == 8
        assert titled[int(sample.query.split()[1])][1] is sample.images[sample.target]
    assert samples == samples_from_titles(titled, count=5, candidates=8, seed=3)
    assert len({s.target for s in samples}) > 1


def test_equal_titles_never_distract() -> None:
    titled = [("same", picture(i)) for i in range(10)] + [("other", picture(99)), ("third", picture(98))]
    for sample in samples_from_titles(titled, count=3, candidates=3, seed=0):
        reds = [image.getpixel((0, 0))[0] for image in sample.images]  # type: ignore[union-attr, index]
        assert sum(red < 10 for red in reds) == 1


def test_too_few_titles_say_so() -> None:
    with pytest.raises(CalibrationSampleError, match="3 different titles are too few"):
        samples_from_titles([(str(i), picture(i)) for i in range(3)], count=5, candidates=8)


def test_samples_are_read_from_json_lines(tmp_path: Path) -> None:
    for i in range(3):
        picture(i * 50).save(tmp_path / f"{i}.png")
    lines = [
        {"query": "a", "images": ["0.png", "1.png", "2.png"], "target": 1},
        {"query": "b", "images": ["0.png", "1.png"], "target": "1.png"},
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    opened = open_samples(read_samples(tmp_path / "s.jsonl"))
    assert [s.target for s in opened] == [1, 1]
    assert [len(s.images) for s in opened] == [3, 2]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"query": "a", "images": [], "target": 0}\n{"query": "a"}\n')
    with pytest.raises(CalibrationSampleError, match="line 2"):
        read_samples(tmp_path / "s.jsonl")
    with pytest.raises(CalibrationSampleError, match="Cannot read"):
        read_samples(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"query": "a", "images": [picture(0)], "target": 0}, "has 1 images"),
        ({"query": "a", "images": [picture(0), picture(1)], "target": 2}, "no index"),
        ({"query": "a", "images": [picture(0), picture(1)], "target": True}, "index or path"),
        ({"query": " ", "images": [picture(0), picture(1)], "target": 0}, "empty"),
        ({"query": "a", "images": [picture(0), picture(0)], "target": 0}, "same picture twice"),
        ({"query": "a", "images": [picture(0), b"no image"], "target": 0}, "image 1"),
        ({"query": "a", "images": "ab", "target": 0}, "must be a list"),
        ({"query": "a"}, "fields query, images and target"),
    ],
)
def test_what_is_wrong_with_a_sample_is_said(sample: dict[str, object], says: str) -> None:
    with pytest.raises(CalibrationSampleError, match=says):
        open_samples([sample])


def test_no_samples_is_an_error() -> None:
    with pytest.raises(CalibrationSampleError, match="no calibration samples"):
        open_samples([])


def test_a_reduced_sample_keeps_its_target() -> None:
    (opened,) = open_samples([CalibrationSample("a", [picture(i) for i in range(6)], 4)])
    reduced = opened.reduced(3)
    assert reduced.digests[reduced.target] == opened.digests[4]
    assert len(reduced.images) == 3
    assert samples_digest([reduced]) != samples_digest([opened])


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """JSON strings may hold U+2028, U+2029 and U+0085 as they are; Windows writes a BOM and CR LF."""
    for i in range(2):
        picture(i * 50).save(tmp_path / f"{i}.png")
    queries = ["a\u2028b", "a\u2029b", "a\u0085b", "plain"]
    lines = [
        json.dumps({"query": query, "images": ["0.png", "1.png"], "target": 0}, ensure_ascii=False) for query in queries
    ]
    for start, end in (("", "\n"), ("\ufeff", "\r\n")):
        (tmp_path / "s.jsonl").write_bytes((start + end.join(lines) + end).encode())
        read = read_samples(tmp_path / "s.jsonl")
        assert [sample.query for sample in read] == queries
        assert [sample.query for sample in open_samples(read)] == ["a b", "a b", "a b", "plain"]


@pytest.mark.parametrize("text", ["[" * 200_000, '{"query": ' + '{"a": ' * 200_000])
def test_a_line_nested_too_deeply_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.jsonl").write_text("\n" + text)
    with pytest.raises(CalibrationSampleError, match=r"s\.jsonl, line 2: too deeply nested"):
        read_samples(tmp_path / "s.jsonl")


def test_base64_text_is_not_taken_for_a_long_file_name(tmp_path: Path) -> None:
    data = io.BytesIO()
    picture(7).save(data, "PNG")
    text = base64.b64encode(data.getvalue()).decode().ljust(400, "\n")
    line = {"query": "a", "images": [text, text], "target": 0}
    (tmp_path / "s.jsonl").write_text(json.dumps(line))
    (sample,) = read_samples(tmp_path / "s.jsonl")
    assert sample.images == [text, text]


@pytest.mark.parametrize("target", ["a", None, 0.0, True, np.True_, [0], Path("a")])
def test_a_target_of_the_wrong_kind_is_named(target: Any) -> None:
    images = [np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 9, np.uint8)]
    for sample in (CalibrationSample("a", images, target), {"query": "a", "images": images, "target": target}):
        with pytest.raises(CalibrationSampleError, match="sample 1: target must be the index or path"):
            open_samples([CalibrationSample("a", images, 0), sample])


def test_a_target_may_be_a_path_or_any_whole_number(tmp_path: Path) -> None:
    picture(3).save(tmp_path / "a.png")
    images: list[Any] = [np.zeros((8, 8, 3), np.uint8), tmp_path / "a.png"]
    for target in (1, np.int64(1), tmp_path / "a.png", str(tmp_path / "a.png")):
        (opened,) = open_samples([{"query": "a", "images": images, "target": target}])
        assert opened.target == 1
        assert samples_digest([opened])


def test_limits_bound_the_images_of_samples() -> None:
    sample = CalibrationSample("a", [picture(0), Image.new("RGB", (8, 16))], 0)
    assert len(open_samples([sample], limits=ImageLimits(max_pixels=128))) == 1
    with pytest.raises(CalibrationSampleError, match="sample 0, image 1"):
        open_samples([sample], limits=ImageLimits(max_pixels=100))
