from __future__ import annotations

import json
from pathlib import Path

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
