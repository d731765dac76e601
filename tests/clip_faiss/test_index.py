from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest
from PIL import Image

from clip_faiss import ClipEncoder, ClipFaissIndex, FirstStageError
from lad_rerank.bundled.shop import Item
from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.records import Candidate, FailedCandidate

GROCERY = Path(__file__).parents[3] / "shared" / "data" / "products_grocery"


@pytest.fixture(scope="module")
def index(encoder: ClipEncoder, pictures: list[Image.Image], items: list[Item]) -> ClipFaissIndex:
    return ClipFaissIndex.build(
        pictures,
        encoder=encoder,
        ids=[item.id for item in items],
        metadata=[{"title": item.title} for item in items],
        progress=False,
    )


def test_hits_are_the_nearest_by_inner_product(index: ClipFaissIndex, encoder: ClipEncoder, items: list[Item]) -> None:
    hits = index.search("a red striped mug", k=5)
    scores = index.vectors @ encoder.encode_texts(["a red striped mug"])[0]
    order = np.argsort(-scores, kind="stable")[:5]
    assert [hit.row for hit in hits] == list(order)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.id for hit in hits] == [items[row].id for row in order]
    assert [hit.metadata for hit in hits] == [{"title": items[row].title} for row in order]
    np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-6)


def test_hits_are_plain_python_and_go_into_json(index: ClipFaissIndex) -> None:
    hit = index.search("mug")[0]
    assert (type(hit.score), type(hit.row), type(hit.rank), type(hit.id)) == (float, int, int, str)
    assert json.loads(json.dumps(vars(hit)))["id"] == hit.id


def test_a_picture_finds_itself_first(index: ClipFaissIndex, pictures: list[Image.Image], items: list[Item]) -> None:
    for picture, item in zip(pictures, items, strict=True):
        hit = index.search_image(picture, k=1)[0]
        assert hit.id == item.id
        assert hit.score == pytest.approx(1, abs=1e-5)


def test_a_broken_picture_as_query_is_refused(index: ClipFaissIndex) -> None:
    with pytest.raises(ImageError):
        index.search_image(b"no picture")


def test_many_queries_are_answered_as_one_by_one(index: ClipFaissIndex) -> None:
    queries = ["a red mug", "голубой змей", "a mug " * 300]
    together = index.search_many(queries, k=4)
    for hits, query in zip(together, queries, strict=True):
        alone = index.search(query, k=4)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-5)
    assert index.search_many([]) == []


def test_more_hits_than_pictures_gives_all_of_them(index: ClipFaissIndex, items: list[Item]) -> None:
    hits = index.search("a mug", k=1000)
    assert sorted(hit.id for hit in hits) == sorted(item.id for item in items)


@pytest.mark.parametrize("k", [np.int64(3), np.uint8(3), np.array(3)])
def test_k_may_be_any_whole_number(index: ClipFaissIndex, pictures: list[Image.Image], k: SupportsIndex) -> None:
    assert index.search("a mug", k=k) == index.search("a mug", k=3)
    assert index.search_many(["a mug"], k) == [index.search("a mug", k=3)]
    assert len(index.search_image(pictures[0], k)) == 3


@pytest.mark.parametrize("k", [0, -1, 2.5, True, np.True_, np.float32(3), np.int64(0), None, "3"])
def test_k_that_is_no_number_of_hits_is_refused(index: ClipFaissIndex, k: object) -> None:
    with pytest.raises(InvalidRequestError, match="k must be"):
        index.search("a mug", k=k)  # type: ignore[arg-type]


@pytest.mark.parametrize("query", ["", " \t\n"])
def test_blank_query_is_refused(index: ClipFaissIndex, query: str) -> None:
    with pytest.raises(InvalidRequestError, match="blank"):
        index.search(query)


def test_changing_a_hit_does_not_change_the_index(index: ClipFaissIndex) -> None:
    index.search("mug", k=1)[0].metadata["title"] = "something else"
    assert index.search("mug", k=1)[0].metadata["title"] != "something else"


def test_equal_pictures_keep_the_order_they_were_indexed_in(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    index = ClipFaissIndex.build([pictures[0]] * 5, encoder=encoder)
    assert [hit.id for hit in index.search("mug", k=5)] == ["0", "1", "2", "3", "4"]


def test_empty_index_finds_nothing(encoder: ClipEncoder, tmp_path: Path) -> None:
    index = ClipFaissIndex.build([], encoder=encoder)
    assert len(index) == 0
    assert index.vectors.shape == (0, 96)
    index.save(tmp_path / "empty")
    for one in (index, ClipFaissIndex.load(tmp_path / "empty", encoder)):
        assert one.search("a mug") == []
        assert one.search_many(["a mug", "a kite"]) == [[], []]
        assert one.search_image(Image.new("RGB", (8, 8))) == []


def test_a_bad_picture_costs_itself_only(
    encoder: ClipEncoder, pictures: list[Image.Image], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    bad = [tmp_path / "torn.jpg", tmp_path / "nowhere.png", b"", Candidate(id="nothing")]
    mixed = [pictures[0], bad[0], pictures[1], bad[1], bad[2], bad[3], pictures[2]]
    with caplog.at_level(logging.WARNING):
        index = ClipFaissIndex.build(mixed, encoder=encoder, batch_size=2)
    assert "4 of 7 pictures could not be indexed" in caplog.text
    assert index.ids == ["0", "2", "6"]
    assert [(f.index, f.id) for f in index.failed] == [(1, "1"), (3, "3"), (4, "4"), (5, "nothing")]
    assert all(isinstance(f, FailedCandidate) and f.error for f in index.failed)
    np.testing.assert_allclose(index.vectors, encoder.encode_images(pictures[:3]), atol=1e-5)
    assert len(index.search("a mug", k=8)) == 3


def test_only_bad_pictures_make_an_empty_index(encoder: ClipEncoder) -> None:
    index = ClipFaissIndex.build([b"x", b"y"], encoder=encoder)
    assert (len(index), len(index.failed), index.search("mug")) == (0, 2, [])


def test_ids_come_from_candidates_or_places_or_the_caller(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    mixed = [Candidate(pictures[0], id="first", metadata={"price": 3}), pictures[1]]
    index = ClipFaissIndex.build(mixed, encoder=encoder, metadata=[{"shelf": 1}, {"shelf": 2}])
    assert index.ids == ["first", "1"]
    by_id = {hit.id: hit.metadata for hit in index.search("mug")}
    assert by_id == {"first": {"price": 3, "shelf": 1}, "1": {"shelf": 2}}
    assert ClipFaissIndex.build(mixed, encoder=encoder, ids=["x", "y"]).ids == ["x", "y"]


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (["a", "b", "a"], "'a' of picture 2 is in the list already"),
        (["a", "b"], "3 pictures, and ids must list one for each"),
        ("abc", "ids must list one for each"),
        (["a", 7, "c"], "picture 1 is a int; ids are strings"),
        (["a", " ", "c"], "picture 1 is blank"),
        (["a", "\ud83d", "c"], "no valid Unicode"),
    ],
)
def test_ids_that_do_not_fit_are_refused(
    encoder: ClipEncoder, pictures: list[Image.Image], ids: list[str], told: str
) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        ClipFaissIndex.build(pictures[:3], encoder=encoder, ids=ids)


def test_metadata_is_kept_as_json_keeps_it(encoder: ClipEncoder, pictures: list[Image.Image], tmp_path: Path) -> None:
    notes = {"price": np.float32(2.5), "file": tmp_path / "a", "tags": ("x", "ü"), 3: None}
    index = ClipFaissIndex.build(pictures[:1], encoder=encoder, metadata=[notes])
    kept = {"price": 2.5, "file": str(tmp_path / "a"), "tags": ["x", "ü"], "3": None}
    assert index.search("mug")[0].metadata == kept
    index.save(tmp_path / "index")
    assert ClipFaissIndex.load(tmp_path / "index", encoder).search("mug")[0].metadata == kept


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud83d", {1, 2}])
def test_metadata_that_is_no_json_is_refused_before_encoding(
    encoder: ClipEncoder, pictures: list[Image.Image], value: object
) -> None:
    with pytest.raises(InvalidRequestError, match="metadata of '0' cannot be kept as JSON"):
        ClipFaissIndex.build(pictures[:1], encoder=encoder, metadata=[{"x": value}])


def test_what_is_no_list_of_pictures_is_refused(
    encoder: ClipEncoder, pictures: list[Image.Image], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="no folder"):
        ClipFaissIndex.build(tmp_path / "nowhere", encoder=encoder)
    pictures[0].save(tmp_path / "a.png")
    with pytest.raises(InvalidRequestError, match="is a file"):
        ClipFaissIndex.build(str(tmp_path / "a.png"), encoder=encoder)
    one: Any
    for one in (pictures[0], np.asarray(pictures[0]), b"picture", io.BytesIO(b"picture"), Candidate(pictures[0])):
        with pytest.raises(InvalidRequestError, match="put it in a list"):
            ClipFaissIndex.build(one, encoder=encoder)
    assert len(ClipFaissIndex.build(np.stack([np.asarray(p) for p in pictures[:2]]), encoder=encoder)) == 2


def test_adding_goes_on_where_the_index_ends(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    index = ClipFaissIndex.build(pictures[:3], encoder=encoder)
    assert index.add([*pictures[3:5], b"bad"]) == 2
    assert index.ids == ["0", "1", "2", "3", "4"]
    np.testing.assert_allclose(index.vectors, encoder.encode_images(pictures[:5]), atol=1e-5)
    assert index.search_image(pictures[4], k=1)[0].id == "4"
    assert [f.index for f in index.failed] == [2]


def test_adding_is_all_or_nothing(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    index = ClipFaissIndex.build(pictures[:3], encoder=encoder)
    with pytest.raises(InvalidRequestError, match="'1' of picture 1 is in the index already"):
        index.add(pictures[3:5], ids=["new", "1"])
    with pytest.raises(KeyboardInterrupt):
        index.add(pictures[3:9], batch_size=2, progress=_interrupt)
    assert index.ids == ["0", "1", "2"]
    assert index.vectors.shape == (3, 96)
    assert len(index.search("mug")) == 3


def _interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_a_folder_is_indexed_with_paths_as_ids(encoder: ClipEncoder, photos: Path, pictures: list[Image.Image]) -> None:
    index = ClipFaissIndex.build(photos, encoder=encoder)
    assert index.ids == ["a.JPG", "b.png", "mugs/ünï/c d.webp"]
    assert index.failed == ()
    hit = index.search_image(pictures[2], k=1)[0]
    assert (hit.id, hit.metadata) == ("mugs/ünï/c d.webp", {"path": "mugs/ünï/c d.webp"})
    assert index.image_path(hit) == (photos / "mugs" / "ünï" / "c d.webp").resolve()
    assert [index.image_path(row) for row in range(3)] == [photos.resolve() / name for name in index.ids]
    assert index.metadata == [{"path": name} for name in index.ids]


def test_hits_become_candidates_that_can_be_opened(encoder: ClipEncoder, photos: Path) -> None:
    index = ClipFaissIndex.build(str(photos), encoder=encoder)
    hits = index.search("mug")
    (photos / "b.png").unlink()
    candidates = index.candidates(hits)
    assert [c.id for c in candidates] == [hit.id for hit in hits]
    assert {c.id: Path(str(c.image)).is_file() for c in candidates} == {
        "a.JPG": True,
        "b.png": False,
        "mugs/ünï/c d.webp": True,
    }
    gone = next(hit for hit in hits if hit.id == "b.png")
    with pytest.raises(FirstStageError, match=r"picture of 'b\.png' is gone"):
        index.image_path(gone)


def test_paths_in_a_list_are_remembered_pictures_in_memory_are_not(
    encoder: ClipEncoder, photos: Path, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    url = (photos / "mugs" / "ünï" / "c d.webp").as_uri()
    index = ClipFaissIndex.build(["b.png", photos / "a.JPG", pictures[3], url], encoder=encoder)
    monkeypatch.chdir(photos.parent)
    hits = {hit.id: hit for hit in index.search("mug")}
    assert index.image_path(hits["0"]).read_bytes() == (photos / "b.png").read_bytes()
    assert index.image_path(hits["1"]) == (photos / "a.JPG").resolve()
    assert index.image_path(hits["3"]) == (photos / "mugs" / "ünï" / "c d.webp").resolve()
    assert index.file(hits["2"]) is None
    with pytest.raises(FirstStageError, match="'2' was indexed from memory"):
        index.image_path(hits["2"])


def test_a_second_folder_keeps_its_own_paths(encoder: ClipEncoder, photos: Path, pictures: list[Image.Image]) -> None:
    index = ClipFaissIndex.build(photos, encoder=encoder)
    other = photos.parent / "other"
    other.mkdir()
    pictures[5].save(other / "z.png")
    assert index.add(other) == 1
    for hit in index.search("mug"):
        assert index.image_path(hit).is_file()


@pytest.mark.skipif(not GROCERY.is_dir(), reason="the shared photographs are not here")
def test_real_photographs(encoder: ClipEncoder, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (GROCERY / "items.jsonl").read_text(encoding="utf-8").splitlines()[:24]]
    files = [GROCERY / row["file"] for row in rows]
    index = ClipFaissIndex.build(files, encoder=encoder, ids=[r["id"] for r in rows], metadata=rows)
    index.save(tmp_path / "index")
    again = ClipFaissIndex.load(tmp_path / "index", encoder)
    assert again.failed == ()
    for row, file in zip(rows, files, strict=True):
        hit = again.search_image(file, k=1)[0]
        assert (hit.id, hit.metadata["text"]) == (row["id"], row["text"])
        assert again.image_path(hit) == file.resolve()
