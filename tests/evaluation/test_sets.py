from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lad_rerank.errors import EvaluationSetError
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.set_files import read_set, write_set
from lad_rerank.evaluation.sets import EvaluationItem, EvaluationSet, named, open_set, without_targets
from lad_rerank.records import Candidate


def picture(shade: int, size: int = 8) -> Image.Image:
    return Image.new("RGB", (size, size), (shade, 0, 0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for i in range(6):
        picture(40 * i).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


def lines(folder: Path, *values: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values), encoding="utf-8-sig")
    return path


def item(**changes: Any) -> dict[str, Any]:
    base = {"id": "a", "query": "a mug", "candidates": ["images/0.png", "images/1.png", "images/2.png"], "target": 1}
    return base | changes


def test_every_form_of_a_line_is_read(folder: Path) -> None:
    path = lines(
        folder,
        item(note="further fields are passed over"),
        "",
        item(id=7, target="images/2.png"),
        {"query": "a\u2028line", "candidates": ["images/0.png", str(folder / "images" / "1.png")], "target": None},
        item(
            id="card",
            candidates=[
                {"id": "x", "image": "images/0.png", "text": "red", "first_stage_score": 0.5},
                {"id": "y", "text": "blue"},
                {"image": "images/3.png"},
            ],
            target="y",
        ),
        item(id="missed", target=None, retrieved=False),
    )
    read = read_set(path)
    assert read.name == "set"
    assert [one.id for one in read.items] == ["a", "7", "4", "card", "missed"]
    assert [one.target for one in read.items] == [1, 2, None, 1, None]
    assert [one.retrieved for one in read.items] == [True, True, True, True, False]
    assert read.counts == (2, 3)
    x, y, z = read.items[3].candidates
    assert x == Candidate(image=folder / "images" / "0.png", id="x", text="red", first_stage_score=0.5)
    assert (y.image, y.text) == (None, "blue")
    assert z.id == "images/3.png"
    instances = open_set(read)
    assert [sorted(one.relevant) for one in instances] == [[1], [2], [], [1], []]
    assert [one.retrieved for one in instances] == [True] * 4 + [False]
    assert instances[2].query == "a line"
    assert instances[0].contents[2].image is not None
    assert instances[3].contents[1].image is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "no JSON"),
        ("[1]", "must be an object"),
        ({"query": "a", "candidates": []}, "field 'target' is missing (null"),
        (item(query=" "), "field 'query'"),
        (item(query=3), "field 'query'"),
        (item(id=["a"]), "field 'id'"),
        (item(candidates="images/0.png"), "field 'candidates' must be a list, got a text"),
        (item(candidates=["images/0.png"], target=0), "field 'candidates' must list at least two"),
        (item(candidates=["images/0.png", 3]), "field 'candidates': number 1"),
        (item(candidates=["images/0.png", {"id": "a"}]), "field 'candidates': number 1 has neither"),
        (item(candidates=["images/0.png", {"text": 3}]), "'text' must be a text"),
        (item(candidates=["a", {"text": "b", "first_stage_score": "high"}]), "'first_stage_score'"),
        ('{"query": "a", "candidates": ["a", {"text": "b", "first_stage_score": NaN}], "target": 0}', "finite"),
        (item(target=3), "field 'target': 3 is no index into 3"),
        (item(target=True), "field 'target'"),
        (item(target="images/9.png"), "field 'target': 'images/9.png' is no id"),
        (item(candidates=["images/0.png"] * 2, target="images/0.png"), "names 2 candidates"),
        (item(retrieved=False), "field 'retrieved' is false"),
        (item(retrieved="no", target=None), "field 'retrieved'"),
    ],
)
def test_errors_name_line_and_field(folder: Path, line: object, told: str) -> None:
    path = lines(folder, item(id="good"), line)
    with pytest.raises(EvaluationSetError) as caught:
        read_set(path)
    assert "set.jsonl, line 2" in str(caught.value)
    assert told in str(caught.value)


def test_what_is_no_set_is_refused(folder: Path) -> None:
    with pytest.raises(EvaluationSetError, match="Cannot read"):
        read_set(folder / "none.jsonl")
    with pytest.raises(EvaluationSetError, match="UTF-8"):
        read_set(folder / "images" / "0.png")
    with pytest.raises(EvaluationSetError, match="no lines"):
        read_set(lines(folder, " "))
    with pytest.raises(EvaluationSetError, match="'a' twice"):
        read_set(lines(folder, item(), item()))


def test_a_missing_picture_is_told_before_anything_runs(folder: Path) -> None:
    (folder / "images" / "2.png").write_bytes(b"no picture")
    with pytest.raises(EvaluationSetError, match=r"set, item a, candidate 2 \(images/2.png\)"):
        open_set(read_set(lines(folder, item())))
    (folder / "images" / "2.png").unlink()
    with pytest.raises(EvaluationSetError, match="candidate 2"):
        read_set(lines(folder, item())).digest()


def test_written_sets_are_read_again(folder: Path, tmp_path: Path) -> None:
    made = EvaluationSet(
        "made",
        (
            EvaluationItem(
                "1",
                "größe",
                (Candidate(folder / "images" / "0.png", "zero"), Candidate(picture(9), first_stage_score=0.25)),
                1,
            ),
            EvaluationItem("2", "text", (Candidate(text="a"), Candidate(np.zeros((4, 4, 3), np.uint8), text="b")), 0),
            EvaluationItem("3", "missed", (Candidate(picture(9)), Candidate(text="a")), None, retrieved=False),
        ),
    )
    path = tmp_path / "kept" / "made.jsonl"
    write_set(made, path)
    read = read_set(path)
    assert read.digest() == made.digest()
    assert [(i.id, i.query, i.target, i.retrieved) for i in read.items] == [
        (i.id, i.query, i.target, i.retrieved) for i in made.items
    ]
    assert read.items[0].candidates[0].id == "zero"
    assert read.items[0].candidates[1].first_stage_score == 0.25
    assert len(list((path.parent / "made_images").iterdir())) == 2
    beside = folder / "beside.jsonl"
    write_set(made, beside)
    assert '"images/0.png"' in beside.read_text()
    beside.rename(folder / "renamed.jsonl")
    assert read_set(folder / "renamed.jsonl").digest() == made.digest()


def test_the_digest_is_of_contents(folder: Path) -> None:
    first = read_set(lines(folder, item()))
    digest = first.digest()
    assert len(digest) == 16
    (folder / "images" / "0.png").rename(folder / "images" / "zero.png")
    moved = item(id="b", candidates=["images/zero.png", "images/1.png", "images/2.png"])
    assert read_set(lines(folder, moved)).digest() == digest
    for change in ({"query": "a cup"}, {"target": 2}, {"target": None}, {"candidates": moved["candidates"][::-1]}):
        assert read_set(lines(folder, moved | change)).digest() != digest


def test_equal_pictures_are_right_together(folder: Path) -> None:
    picture(40).save(folder / "images" / "twin.bmp")
    read = read_set(lines(folder, item(candidates=["images/0.png", "images/1.png", "images/twin.bmp"])))
    assert open_set(read)[0].relevant == {1, 2}


def test_pictures_are_kept_within_bounds_and_opened_again(folder: Path) -> None:
    bytes_of_one = 3 * 8 * 8 + 1024
    opener = CandidateOpener(max_bytes=2 * bytes_of_one)
    read = read_set(lines(folder, item(candidates=[f"images/{i}.png" for i in range(6)])))
    (instance,) = open_set(read, opener=opener)
    seen = [content.digest for content in instance.contents]
    assert opener._pictures.nbytes <= 2 * bytes_of_one
    assert (
        [instance.contents[i].digest for i in range(6)] == seen == [opener.digest(c) for c in read.items[0].candidates]
    )
    assert instance.contents[5] is instance.contents[5]
    assert [content.digest for content in instance.contents[1:3]] == seen[1:3]
    held = instance.contents[0]
    for i in range(1, 6):
        assert instance.contents[i].digest == seen[i]
    assert instance.contents[0] is held
    # A changed file is noticed neither way: its digest is that of the first time.
    (folder / "images" / "0.png").unlink()
    assert opener.digest(read.items[0].candidates[0]) == seen[0]


def test_a_slice_without_right_answers() -> None:
    shown = tuple(Candidate(picture(40 * i)) for i in range(4))
    made = EvaluationSet("some", (EvaluationItem("a", "q", shown, 2), EvaluationItem("b", "q", shown[:2], 0)))
    none = without_targets(made)
    assert none.name == "some, none right"
    (left,) = none.items
    assert (left.id, left.target, left.retrieved) == ("a", None, True)
    assert left.candidates == (shown[0], shown[1], shown[3])
    assert none.digest() != made.digest()
    with pytest.raises(EvaluationSetError, match="without its target"):
        without_targets(EvaluationSet("two", (EvaluationItem("b", "q", shown[:2], 0),)))


def test_sets_need_names_and_items() -> None:
    shown = (Candidate(picture(0)), Candidate(picture(9)))
    one = EvaluationSet("one", (EvaluationItem("a", "q", shown, 0),))
    assert named([one]) == [one]
    with pytest.raises(EvaluationSetError, match="names of their own"):
        named([one, one])
    with pytest.raises(EvaluationSetError, match="no set"):
        named([])
    with pytest.raises(EvaluationSetError, match="empty"):
        EvaluationSet("none", ())
    with pytest.raises(EvaluationSetError, match="'id'"):
        EvaluationItem(" ", "q", shown, 0)
