from __future__ import annotations

import base64
import hashlib
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
    samples_from_texts,
    samples_from_titles,
)
from lad_rerank.errors import CalibrationSampleError
from lad_rerank.images import ImageLimits, image_digest
from lad_rerank.records import Candidate


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (shade, 0, 0))


def test_titled_images_make_samples_without_labels() -> None:
    titled = [(f"mug {i}", picture(i)) for i in range(20)]
    samples = samples_from_titles(titled, count=5, candidates=8, seed=3)
    assert len(samples) == 5
    for sample in samples:
        assert len(sample.candidates) == 8
        assert titled[int(sample.query.split()[1])][1] is sample.candidates[sample.target]
    assert samples == samples_from_titles(titled, count=5, candidates=8, seed=3)
    assert len({s.target for s in samples}) > 1


def test_equal_titles_never_distract() -> None:
    titled = [("same", picture(i)) for i in range(10)] + [("other", picture(99)), ("third", picture(98))]
    for sample in samples_from_titles(titled, count=3, candidates=3, seed=0):
        reds = [image.getpixel((0, 0))[0] for image in sample.candidates]  # type: ignore[union-attr, index]
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
    assert [len(s.contents) for s in opened] == [3, 2]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"query": "a", "images": [], "target": 0}\n{"query": "a"}\n')
    with pytest.raises(CalibrationSampleError, match="line 2"):
        read_samples(tmp_path / "s.jsonl")
    with pytest.raises(CalibrationSampleError, match="Cannot read"):
        read_samples(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"query": "a", "images": [picture(0)], "target": 0}, "has 1 candidates"),
        ({"query": "a", "images": [picture(0), picture(1)], "target": 2}, "no index"),
        ({"query": "a", "images": [picture(0), picture(1)], "target": True}, "index, path or text"),
        ({"query": " ", "images": [picture(0), picture(1)], "target": 0}, "empty"),
        ({"query": "a", "images": [picture(0), picture(0)], "target": 0}, "same picture or text twice"),
        ({"query": "a", "images": [picture(0), b"no image"], "target": 0}, "candidate 1"),
        ({"query": "a", "images": "ab", "target": 0}, "must be a list"),
        ({"query": "a"}, "fields query, target and one of"),
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
    assert len(reduced.contents) == 3
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
    assert sample.candidates == [Candidate(text)] * 2


@pytest.mark.parametrize("target", ["a", None, 0.0, True, np.True_, [0], Path("a")])
def test_a_target_of_the_wrong_kind_is_named(target: Any) -> None:
    images = [np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 9, np.uint8)]
    for sample in (CalibrationSample("a", images, target), {"query": "a", "images": images, "target": target}):
        with pytest.raises(CalibrationSampleError, match="sample 1: target must be the index, path or text"):
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
    with pytest.raises(CalibrationSampleError, match="sample 0, candidate 1"):
        open_samples([sample], limits=ImageLimits(max_pixels=100))


CAPTIONS = [[f"{kind} number {i}" for kind in ("caption", "sentence", "line")] for i in range(12)]


def texts(sample: CalibrationSample) -> list[str]:
    return [candidate.text or "" for candidate in sample.candidates if isinstance(candidate, Candidate)]


def test_grouped_texts_make_samples_without_labels() -> None:
    samples = samples_from_texts(CAPTIONS, count=5, candidates=8, seed=3)
    assert samples == samples_from_texts(CAPTIONS, count=5, candidates=8, seed=3)
    assert samples != samples_from_texts(CAPTIONS, count=5, candidates=8, seed=4)
    assert len({s.query.split()[-1] for s in samples}) == 5
    for sample in samples:
        shown = texts(sample)
        number = sample.query.split()[-1]
        assert [text.split()[-1] == number for text in shown] == [i == sample.target for i in range(8)]
        assert sample.query not in shown
        assert len({text.split()[-1] for text in shown}) == 8
    (opened, *_) = open_samples(samples)
    assert opened.kind == "text"
    assert opened.first_stage_scores is None


def test_groups_that_share_a_text_do_not_distract_each_other() -> None:
    groups = [["A dog", "one dog"], ["ONE DOG", "the dog"], ["a cat"], ["A cat"], ["a mug"], [" ", "a cup"]]
    for seed in range(20):
        for sample in samples_from_texts(groups, count=2, candidates=4, seed=seed):
            shown = [text.casefold() for text in texts(sample)]
            assert sum("dog" in text for text in shown) == 1
            assert len(set(shown)) == 4
    with pytest.raises(CalibrationSampleError, match="6 groups of texts, 2 of them"):
        samples_from_texts(groups, count=3, candidates=4)
    with pytest.raises(CalibrationSampleError, match="are too few for 1 samples of 5"):
        samples_from_texts(groups, count=1, candidates=5)
    with pytest.raises(CalibrationSampleError, match="at least 2 candidates"):
        samples_from_texts(groups, candidates=1)


def test_candidates_of_all_kinds_are_read_from_json_lines(tmp_path: Path) -> None:
    for i in range(2):
        picture(i * 50).save(tmp_path / f"{i}.png")
    cards = [
        {"image": "0.png", "text": "a red\nmug", "first_stage_score": 0.5},
        {"text": "a cup", "first_stage_score": 0.25},
        {"image": "1.png", "first_stage_score": 1},
    ]
    lines = [
        {"query": "a", "candidates": cards, "target": "a cup"},
        {"query": "b", "candidates": ["0.png", {"text": "0.png"}], "target": "0.png"},
        {"query": "c", "candidates": [{"text": "x"}, {"text": "y"}], "target": 1},
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    mixed, path, text = open_samples(read_samples(tmp_path / "s.jsonl"))
    assert [content.text for content in mixed.contents] == ["a red mug", "a cup", None]
    assert [content.image is None for content in mixed.contents] == [False, True, False]
    assert (mixed.kind, path.kind, text.kind) == ("mixed", "mixed", "text")
    assert (mixed.target, path.target, text.target) == (1, 0, 1)
    assert mixed.first_stage_scores == (0.5, 0.25, 1.0)
    assert mixed.reduced(2).first_stage_scores == (0.5, 0.25)
    assert path.first_stage_scores is None
    assert path.digests[0] == image_digest(picture(0))
    assert samples_digest([text]) != samples_digest([mixed])


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"query": "a", "images": [], "candidates": [], "target": 0}, "one of images and candidates"),
        ({"query": "a", "candidates": [{"text": "x"}, {"text": "x\n"}], "target": 0}, "same picture or text twice"),
        ({"query": "a", "candidates": [{"text": "x"}, {"text": "\t"}], "target": 0}, "candidate 1: .*neither"),
        ({"query": "a", "candidates": [{"text": "x"}, {"txet": "y"}], "target": 0}, "candidate 1 has the unknown"),
        ({"query": "a", "candidates": [{"text": "x"}, {"text": 7}], "target": 0}, "candidate 1: .*string, got int"),
    ],
)
def test_what_is_wrong_with_a_candidate_is_said(sample: dict[str, object], says: str) -> None:
    with pytest.raises(CalibrationSampleError, match=says):
        open_samples([sample])


def test_samples_of_images_keep_their_digest() -> None:
    """Calibrations name it: it must not change between releases."""
    (opened,) = open_samples([{"query": "a", "images": [picture(0), picture(9)], "target": 1}])
    before = hashlib.sha256(json.dumps(["a", [image_digest(picture(i)) for i in (0, 9)], 1]).encode())
    assert samples_digest([opened]) == before.hexdigest()[:16]
