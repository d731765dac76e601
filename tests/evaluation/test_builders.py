from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_faiss import ClipFaissIndex
from lad_rerank.bundled import shop
from lad_rerank.errors import EvaluationSetError, InvalidRequestError
from lad_rerank.evaluation.annotations import find_image, set_from_annotations
from lad_rerank.evaluation.builders import (
    SIMILAR_TITLES,
    Vectors,
    encode_titled,
    end_to_end_set,
    index_vectors,
    set_from_titles,
)
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.sets import open_set
from lad_rerank.evaluation.shop_sets import shop_samples, shop_set
from lad_rerank.evaluation.titled import TitledImage, distinct, split, titled_folder, titled_index


def test_random_sets_ask_for_titles(titled: list[TitledImage]) -> None:
    made = set_from_titles(titled, candidates=5, instances=20, seed=3)
    assert len(made) == 20
    assert made.counts == (5,)
    title_of = {one.id: one.title for one in titled}
    for item in made.items:
        assert item.target is not None
        titles = [title_of[str(candidate.id)] for candidate in item.candidates]
        assert titles[item.target] == item.query
        assert len({c.id for c in item.candidates}) == 5
        assert titles.count(item.query) == 1
    assert len({item.query for item in made.items}) == 20
    assert len({item.target for item in made.items}) == 5
    again = set_from_titles(titled, candidates=5, instances=20, seed=3)
    assert again == made
    assert set_from_titles(titled, candidates=5, instances=20, seed=4) != made
    assert len(set_from_titles(titled, candidates=5, instances=500)) == 36


def test_pairs_of_title_and_path_do(titled: list[TitledImage]) -> None:
    pairs = [one.pair for one in titled]
    made = set_from_titles([*pairs, (" ", titled[0].image)], candidates=3, instances=4)
    assert [i.query for i in made.items] == [i.query for i in set_from_titles(titled, candidates=3, instances=4).items]
    assert made.items[0].candidates[0].id == str(made.items[0].candidates[0].image)


def test_a_title_is_asked_of_each_of_its_pictures_and_never_distracts() -> None:
    images = [("mug", Image.new("RGB", (4, 4), (i, 0, 0))) for i in range(3)]
    images += [("Mug", Image.new("RGB", (4, 4), (9, 0, 0))), ("kite", Image.new("RGB", (4, 4), (0, 0, 9)))]
    made = set_from_titles(images, candidates=2, instances=10)
    assert sorted(item.query for item in made.items) == ["Mug", "kite", "mug", "mug", "mug"]
    assert {made.items[0].query.casefold(), made.items[1].query.casefold()} == {"mug", "kite"}
    for item in made.items:
        assert len({images[int(str(c.id))][0].casefold() for c in item.candidates}) == 2


def test_adversarial_is_nearest_in_pictures_and_not_in_titles(index: ClipFaissIndex) -> None:
    titled = titled_index(index)
    vectors = index_vectors(index, titled)
    made = set_from_titles(titled, candidates=4, instances=12, seed=1, difficulty="adversarial", vectors=vectors)
    random = set_from_titles(titled, candidates=4, instances=12, seed=1, vectors=vectors)
    place = {one.id: i for i, one in enumerate(titled)}
    images, titles = vectors.images @ vectors.images.T, vectors.titles @ vectors.titles.T
    near: dict[str, list[float]] = {"adversarial": [], "random": []}
    for name, one in (("adversarial", made), ("random", random)):
        for item in one.items:
            assert item.target is not None
            target = place[str(item.candidates[item.target].id)]
            others = [place[str(c.id)] for i, c in enumerate(item.candidates) if i != item.target]
            near[name] += images[target, others].tolist()
            scores = [c.first_stage_score for c in item.candidates if c.first_stage_score is not None]
            assert len(scores) == len(item.candidates)
            assert scores == sorted(scores, reverse=True)
            if name == "adversarial":
                assert (titles[target, others] < SIMILAR_TITLES).all()
                allowed = [i for i in range(len(titled)) if i != target and titles[target, i] < SIMILAR_TITLES]
                assert min(images[target, others]) >= sorted(images[target, allowed])[-3] - 1e-12
    assert np.mean(near["adversarial"]) > np.mean(near["random"]) + 0.1


def test_the_index_and_the_encoder_agree(index: ClipFaissIndex) -> None:
    titled = titled_index(index)[:5]
    by_index, by_encoder = index_vectors(index, titled), encode_titled(index.encoder, titled)
    np.testing.assert_allclose(by_index.images, by_encoder.images, atol=1e-5)
    np.testing.assert_array_equal(by_index.titles, by_encoder.titles)
    with pytest.raises(InvalidRequestError, match="of that index"):
        index_vectors(index, [TitledImage("a mug", "a.png", "a")])


def test_requests_that_make_no_sense(titled: list[TitledImage]) -> None:
    for wrong in ({"candidates": 1}, {"candidates": 27}, {"instances": 0}, {"difficulty": "easy"}):
        with pytest.raises(InvalidRequestError):
            set_from_titles(titled, **wrong)
    with pytest.raises(InvalidRequestError, match="encode_titled"):
        set_from_titles(titled, difficulty="adversarial")
    with pytest.raises(InvalidRequestError, match="vectors of 1"):
        set_from_titles(titled, vectors=Vectors(np.zeros((1, 2)), np.zeros((1, 2))))
    with pytest.raises(EvaluationSetError, match="Give more images"):
        set_from_titles(titled[:3], candidates=4)
    ones = Vectors(np.eye(36), np.ones((36, 1)))
    with pytest.raises(EvaluationSetError, match=r"less than 0\.9 similar"):
        set_from_titles(titled, difficulty="adversarial", vectors=ones)


def test_end_to_end_counts_what_is_not_found(index: ClipFaissIndex) -> None:
    titled = titled_index(index)
    made = end_to_end_set(index, titled, candidates=2, instances=36)
    assert len(made) == 36
    hits = {item.query: [hit.id for hit in index.search(item.query, 2)] for item in made.items}
    title_of = {one.id: one.title for one in titled}
    for item in made.items:
        shown = [str(candidate.id) for candidate in item.candidates]
        assert shown == hits[item.query]
        assert item.retrieved == any(title_of[name] == item.query for name in shown)
        assert (item.target is not None) == item.retrieved
        scores = [c.first_stage_score for c in item.candidates if c.first_stage_score is not None]
        assert len(scores) == len(item.candidates)
        assert scores == sorted(scores, reverse=True)
    # Asked for what they do not show, pictures are missed until nearly all are retrieved.
    turned = [replace(one, title=titled[i - 1].title) for i, one in enumerate(titled)]
    few = end_to_end_set(index, turned, candidates=2, instances=36)
    many = end_to_end_set(index, turned, candidates=26, instances=36)
    assert sum(i.retrieved for i in few.items) < sum(i.retrieved for i in many.items) < 36
    assert end_to_end_set(index, titled, candidates=2, instances=36) == made


def test_end_to_end_passes_over_samples_and_same_titles(index: ClipFaissIndex) -> None:
    parts = split(titled_index(index), titles=6, seed=0)
    made = end_to_end_set(index, parts.evaluated, candidates=8, instances=30, without=parts.samples)
    shown = {candidate.id for item in made.items for candidate in item.candidates}
    assert shown.isdisjoint(one.id for one in parts.samples)
    assert {item.query for item in made.items} == {one.title for one in parts.evaluated}
    same = [replace(one, title="a product") for one in titled_index(index)]
    with pytest.raises(EvaluationSetError, match="no two pictures"):
        end_to_end_set(index, same, candidates=4)
    with pytest.raises(InvalidRequestError, match="of its index"):
        end_to_end_set(index, [replace(one, row=None) for one in same])


def test_folders_are_titled_by_file_names(pictures: Path, tmp_path: Path) -> None:
    for name in ("red-mug_02.png", "sub/blue kite.png", "0001.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "broken jar.png").write_bytes(b"no picture")
    found = titled_folder(tmp_path)
    assert [(one.id, one.title) for one in found] == [
        ("broken jar.png", "broken jar"),
        ("red-mug_02.png", "red mug"),
        ("sub/blue kite.png", "blue kite"),
    ]
    # The broken one cannot be opened, the kite shows what the mug shows.
    assert [one.title for one in distinct(found, CandidateOpener())] == ["red mug"]
    with pytest.raises(InvalidRequestError):
        titled_folder(tmp_path / "none")
    assert len(distinct(titled_folder(pictures), CandidateOpener())) == 36


def test_metadata_titles_come_first(pictures: Path) -> None:
    paths = sorted(pictures.iterdir())[:3]
    built = ClipFaissIndex.build(
        [str(path) for path in paths],
        ids=["a", "1", "kept word"],
        metadata=[{"title": " Mug "}, {}, {}],
        progress=False,
    )
    assert [(one.title, one.id, one.row) for one in titled_index(built)] == [
        ("Mug", "a", 0),
        ("kept word", "kept word", 2),
    ]


def test_a_split_shares_no_title(titled: list[TitledImage]) -> None:
    doubled = [*titled, *(replace(one, title=one.title.upper(), id=f"{one.id} again") for one in titled)]
    parts = split(doubled, titles=5, seed=2)
    assert len({one.key for one in parts.samples}) == 5
    assert len(parts.samples) == 10
    assert {one.key for one in parts.samples}.isdisjoint({one.key for one in parts.evaluated})
    assert sorted(one.id for one in (*parts.samples, *parts.evaluated)) == sorted(one.id for one in doubled)
    assert split(doubled, titles=5, seed=2) == parts
    assert split(doubled, titles=5, seed=3) != parts
    with pytest.raises(EvaluationSetError, match="36 different titles are too few"):
        split(doubled, titles=36)


def test_shop_sets_are_held_out() -> None:
    made = shop_set(candidates=3, instances=4, seed=5, difficulty="adversarial")
    drawn = shop.candidate_set(3, 5_000_000, "adversarial", "held_out")
    assert made.items[0].query == drawn.caption
    assert made.items[0].target == drawn.target
    assert shop_set(candidates=3, instances=4, seed=5, difficulty="adversarial").digest() == made.digest()
    assert shop_set(candidates=3, instances=4, seed=6).digest() != made.digest()
    samples = shop_samples(count=2, candidates=3, seed=5)
    assert [len(sample.candidates) for sample in samples] == [3, 3]
    assert samples[0].query != samples[1].query


def save_images(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        Image.new("RGB", (4, 4), (30 * i, 0, 0)).save(folder / name)


def test_annotations_of_the_papers_kind(tmp_path: Path) -> None:
    images = tmp_path / "images"
    save_images(images, "COCO_val2014_000000000042.jpg", "7.png", "mug.jpg", "000000000009.jpg")
    records = [
        {"image_ids": [42, 7, "mug", "9"], "index": 2, "caption": " a mug "},
        {"image_ids": ["COCO_val2014_000000000042", "7.png"], "index": "0", "caption": ["a", "b"], "extra": 1},
        {"image_ids": ["000000000042", "mug.jpg"], "index": -1, "caption": "none"},
    ]
    path = tmp_path / "annotations_4.json"
    path.write_text(json.dumps(records))
    made = set_from_annotations(path, images)
    assert made.name == "annotations_4"
    assert [(i.query, i.target, len(i.candidates)) for i in made.items] == [
        (" a mug ", 2, 4),
        ("a", 0, 2),
        ("none", None, 2),
    ]
    assert [instance.query for instance in open_set(made)] == ["a mug", "a", "none"]
    for text in (json.dumps({"annotations": records}), "\n".join(map(json.dumps, records))):
        path.write_text(text)
        assert set_from_annotations(path, images) == made
    some = set_from_annotations(path, images, instances=2, seed=1)
    assert len(some) == 2
    assert some == set_from_annotations(path, images, instances=2, seed=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no JSON"),
        ("{}", "no list of records"),
        ("[]", "no list of records"),
        ("[3]", "record 0: it is no object"),
        ('[{"image_ids": ["mug", "7"], "index": 0}]', "record 0: field 'caption' is missing"),
        ('[{"image_ids": "mug", "index": 0, "caption": "a"}]', "'image_ids' must be a list"),
        ('[{"image_ids": ["mug", "7"], "index": 2, "caption": "a"}]', "2 is no index into 2 image_ids"),
        ('[{"image_ids": ["mug", "7"], "index": 0.5, "caption": "a"}]', "'index'"),
        ('[{"image_ids": ["mug", "7"], "index": 0, "caption": ""}]', "field 'query'"),
        ('[{"image_ids": ["mug", "8"], "index": 0, "caption": "a"}]', "COCO_val2014_000000000008.jpg"),
        ('[{"image_ids": ["mug", "../secret"], "index": 0, "caption": "a"}]', "no image '../secret'"),
    ],
)
def test_annotations_that_cannot_be_used(tmp_path: Path, text: str, told: str) -> None:
    save_images(tmp_path / "images", "mug.jpg", "7.jpg")
    save_images(tmp_path, "secret.jpg")
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(EvaluationSetError) as caught:
        set_from_annotations(path, tmp_path / "images")
    assert told in str(caught.value)
    assert "a.json" in str(caught.value)


def test_annotations_without_files(tmp_path: Path) -> None:
    with pytest.raises(EvaluationSetError, match="no folder"):
        set_from_annotations(tmp_path / "a.json", tmp_path / "none")
    with pytest.raises(EvaluationSetError, match="Cannot read"):
        set_from_annotations(tmp_path / "a.json", tmp_path)
    with pytest.raises(EvaluationSetError, match="no image '/etc/passwd'"):
        find_image(tmp_path, "/etc/passwd")
