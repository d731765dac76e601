from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
from PIL import Image

from clip_faiss import ClipEncoder, ClipFaissIndex, FirstStageError, storage


@pytest.fixture
def saved(encoder: ClipEncoder, photos: Path, tmp_path: Path) -> Path:
    ClipFaissIndex.build(photos, encoder=encoder).save(tmp_path / "index")
    return tmp_path / "index"


def test_round_trip(saved: Path, encoder: ClipEncoder, photos: Path, pictures: list[Image.Image]) -> None:
    built = ClipFaissIndex.build(photos, encoder=encoder)
    again = ClipFaissIndex.load(saved)  # with no encoder named: the one that made it is found
    assert again.ids == built.ids
    np.testing.assert_array_equal(again.vectors, built.vectors)
    assert again.search("a red mug", k=3) == built.search("a red mug", k=3)
    hit = again.search_image(pictures[2], k=1)[0]
    assert again.image_path(hit) == built.image_path(hit)
    assert again.add(pictures[5:6]) == 1


def test_the_folder_holds_two_files_that_can_be_read(saved: Path) -> None:
    names = sorted(path.name for path in saved.iterdir())
    assert len(names) == 2
    assert names[0] == "index.json"
    vectors = faiss.read_index(str(saved / names[1]))
    assert (vectors.ntotal, vectors.d) == (3, 96)
    text = (saved / "index.json").read_text(encoding="utf-8")
    assert '{"id": "mugs/ünï/c d.webp", "file": "mugs/ünï/c d.webp", "metadata": {"path": "mugs/ünï/c d.webp"}}' in text
    content = json.loads(text)
    assert content["schema_version"] == 1
    assert content["vectors"]["file"] == names[1]
    assert content["encoder"]["dimension"] == 96
    assert all(os.stat(saved / name).st_mode & 0o777 == 0o644 for name in names)


def test_the_same_index_is_saved_as_the_same_bytes(saved: Path, encoder: ClipEncoder) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    ClipFaissIndex.load(saved, encoder).save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_saving_again_replaces_the_index_and_nothing_else(
    saved: Path, encoder: ClipEncoder, pictures: list[Image.Image]
) -> None:
    (saved / "notes.txt").write_text("mine")
    ClipFaissIndex.build(pictures[:7], encoder=encoder).save(saved)
    assert len(ClipFaissIndex.load(saved, encoder)) == 7
    assert (saved / "notes.txt").read_text() == "mine"
    assert len(list(saved.iterdir())) == 3


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failed_save_leaves_the_old_index_whole(
    saved: Path, encoder: ClipEncoder, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    other = ClipFaissIndex.build(pictures[:7], encoder=encoder)
    replace, calls = os.replace, []

    def full_disk(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "replace", full_disk)
        with pytest.raises(OSError, match="No space left"):
            other.save(saved)
    assert ClipFaissIndex.load(saved, encoder).ids == ["a.JPG", "b.png", "mugs/ünï/c d.webp"]
    assert not list(saved.glob(".*"))
    other.save(saved)
    assert len(list(saved.iterdir())) == 2


def test_another_encoder_is_refused_with_both_names(
    saved: Path, encoder: ClipEncoder, bpe_encoder: ClipEncoder, model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(FirstStageError) as caught:
        ClipFaissIndex.load(saved, bpe_encoder)
    for part in (encoder.name, bpe_encoder.name, "96", "24"):
        assert part in str(caught.value)

    # The same shape and settings, other weights: only what it computes tells it apart.
    twin = tmp_path / "twin"
    shutil.copytree(model_folder, twin)
    from safetensors.torch import load_file, save_file

    weights = load_file(twin / "open_clip_model.safetensors")
    save_file({name: value + 0.05 for name, value in weights.items()}, twin / "open_clip_model.safetensors")
    with pytest.raises(FirstStageError, match=r"tiny'.*twin'.*another vector for the same"):
        ClipFaissIndex.load(saved, str(twin))


def test_pictures_are_found_when_index_or_pictures_or_both_move(
    saved: Path, encoder: ClipEncoder, photos: Path, tmp_path: Path
) -> None:
    def found(folder: Path, images: Path | None = None) -> set[Path]:
        index = ClipFaissIndex.load(folder, encoder, images=images)
        return {index.image_path(hit).parent for hit in index.search("mug") if hit.id == "b.png"}

    alone = shutil.move(saved, tmp_path / "deeper" / "index") if (tmp_path / "deeper").mkdir() is None else None
    assert alone is not None
    assert found(Path(alone)) == {photos.resolve()}
    shutil.move(alone, saved)

    both = tmp_path / "both"
    both.mkdir()
    shutil.move(saved, both / "index")
    shutil.move(photos, both / "photos")
    assert found(both / "index") == {(both / "photos").resolve()}

    shutil.move(both / "photos", tmp_path / "renamed")
    with pytest.raises(FirstStageError, match="load the index with `images=`"):
        found(both / "index")
    assert found(both / "index", tmp_path / "renamed") == {(tmp_path / "renamed").resolve()}


def _edit(saved: Path, **changes: object) -> None:
    content = json.loads((saved / "index.json").read_text(encoding="utf-8"))
    content.update(changes)
    (saved / "index.json").write_text(json.dumps(content), encoding="utf-8")


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(FirstStageError, match=r"no index in .*index\.json is missing"):
        ClipFaissIndex.load(tmp_path)


def test_damaged_json(saved: Path, encoder: ClipEncoder) -> None:
    content = json.loads((saved / "index.json").read_text(encoding="utf-8"))
    _edit(saved, items=content["items"][:2])
    with pytest.raises(FirstStageError, match="3 vectors, 2 ids"):
        ClipFaissIndex.load(saved, encoder)
    _edit(saved, items=[content["items"][0]] * 3)
    with pytest.raises(FirstStageError, match="each id once"):
        ClipFaissIndex.load(saved, encoder)
    _edit(saved, items=[{"id": 3}])
    with pytest.raises(FirstStageError, match=r"damaged at 'items\.0\.id'"):
        ClipFaissIndex.load(saved, encoder)
    _edit(saved, schema_version=99)
    with pytest.raises(FirstStageError, match="schema version 99, and this version reads 1"):
        ClipFaissIndex.load(saved, encoder)
    (saved / "index.json").write_text('{"schema_version": 1, "enc')
    with pytest.raises(FirstStageError, match="cannot be read"):
        ClipFaissIndex.load(saved, encoder)


def test_damaged_or_missing_vectors(saved: Path, encoder: ClipEncoder) -> None:
    path = next(saved.glob("*.faiss"))
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b"\0\0\0\0")
    with pytest.raises(FirstStageError, match=r"is not the file that index\.json describes"):
        ClipFaissIndex.load(saved, encoder)
    path.unlink()
    with pytest.raises(FirstStageError, match="vectors of the index cannot be read"):
        ClipFaissIndex.load(saved, encoder)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("l2", "no flat inner-product index"),
        ("garbage", "FAISS cannot read"),
        ("narrow", "vectors of 8 numbers, and its encoder .* makes 96"),
    ],
)
def test_other_faiss_files_are_refused(saved: Path, encoder: ClipEncoder, kind: str, told: str) -> None:
    import hashlib

    made = {"l2": faiss.IndexFlatL2(96), "narrow": faiss.IndexFlatIP(8)}.get(kind)
    if made is None:
        data = b"garbage that is no index"
    else:
        made.add(np.ones((3, made.d), np.float32))
        data = faiss.serialize_index(made).tobytes()
    path = next(saved.glob("*.faiss"))
    path.write_bytes(data)
    content = json.loads((saved / "index.json").read_text(encoding="utf-8"))
    _edit(saved, vectors=content["vectors"] | {"sha256": hashlib.sha256(data).hexdigest()})
    with pytest.raises(FirstStageError, match=told):
        ClipFaissIndex.load(saved, encoder)
