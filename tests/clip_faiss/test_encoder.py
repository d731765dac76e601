from __future__ import annotations

import io
import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_faiss import ClipEncoder, FirstStageError
from lad_rerank.errors import ImageError, InvalidRequestError


def test_vectors_are_float32_of_length_one(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    seen = encoder.encode_images(pictures, batch_size=5)
    read = encoder.encode_texts(["a red mug", "a blue kite on a beach"])
    assert seen.shape == (12, 96)
    assert read.shape == (2, 96)
    for rows in (seen, read):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_half_precision_weights_are_used_in_float32(encoder: ClipEncoder) -> None:
    assert {str(p.dtype) for p in encoder.model.parameters()} == {"torch.float32"}


def test_same_pictures_give_the_same_vectors_whatever_the_batch(
    encoder: ClipEncoder, pictures: list[Image.Image]
) -> None:
    together = encoder.encode_images(pictures)
    np.testing.assert_array_equal(together, encoder.encode_images(pictures))
    np.testing.assert_allclose(together, encoder.encode_images(pictures, batch_size=1), atol=1e-5)


def test_vectors_are_those_of_plain_open_clip(
    model_folder: Path, encoder: ClipEncoder, pictures: list[Image.Image]
) -> None:
    import open_clip
    import torch

    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{model_folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{model_folder}")
    with torch.inference_mode():
        seen = model.eval().encode_image(torch.stack([preprocess(p) for p in pictures]), normalize=True)
        read = model.encode_text(tokenizer(["a red mug"]), normalize=True)
    np.testing.assert_allclose(encoder.encode_images(pictures), seen.numpy(), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_texts(["a red mug"]), read.numpy(), atol=1e-6)


def test_nothing_to_encode(encoder: ClipEncoder) -> None:
    assert encoder.encode_images([]).shape == (0, 96)
    assert encoder.encode_texts([]).shape == (0, 96)


def test_progress_is_called_after_every_batch(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    seen: list[tuple[int, int]] = []
    encoder.encode_images(pictures, batch_size=5, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(5, 12), (10, 12), (12, 12)]


def test_a_bad_picture_is_named(encoder: ClipEncoder, pictures: list[Image.Image]) -> None:
    with pytest.raises(ImageError, match="Image 1: "):
        encoder.encode_images([pictures[0], b"no picture"])


def test_bytes_and_paths_and_pictures_are_one(
    encoder: ClipEncoder, pictures: list[Image.Image], tmp_path: Path
) -> None:
    stream = io.BytesIO()
    pictures[0].save(stream, "PNG")
    pictures[0].save(tmp_path / "a.png")
    rows = encoder.encode_images([pictures[0], stream.getvalue(), tmp_path / "a.png", str(tmp_path / "a.png")])
    np.testing.assert_allclose(rows, rows[:1].repeat(4, 0), atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "tasse rouge à pois — édition spéciale",
        "красная кружка",
        "赤いマグカップ",
        "कप 🫖👨‍👩‍👧",
        "!!! ???",
        "</s> <pad> <unk> <|endoftext|>",
        "nul \0 byte",
        "half a pair \ud83d",
        "'; DROP TABLE images; --",
    ],
)
def test_any_text_can_be_encoded(encoder: ClipEncoder, bpe_encoder: ClipEncoder, text: str) -> None:
    for one in (encoder, bpe_encoder):
        row = one.encode_texts([text])
        np.testing.assert_allclose(np.linalg.norm(row), 1, atol=1e-6)


@pytest.mark.parametrize("which", ["encoder", "bpe_encoder"])
def test_long_text_is_cut_with_a_warning(
    which: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    one: ClipEncoder = request.getfixturevalue(which)
    exact = " ".join(["red"] * (one.context_length - (1 if which == "encoder" else 2)))
    with caplog.at_level(logging.WARNING):
        fits = one.encode_texts([exact])
        assert not caplog.records
        cut = one.encode_texts(["a mug", exact + " mug" * 500])
    assert [record.getMessage().startswith("Text 1 is cut") for record in caplog.records] == [True]
    assert str(one.context_length) in caplog.text
    np.testing.assert_allclose(cut[1], fits[0], atol=1e-5)


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_blank_text_is_refused(encoder: ClipEncoder, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="Text 1 is blank"):
        encoder.encode_texts(["a mug", text])


def test_what_is_no_list_of_texts_is_refused(encoder: ClipEncoder) -> None:
    with pytest.raises(InvalidRequestError, match="list"):
        encoder.encode_texts("a mug")
    with pytest.raises(InvalidRequestError, match="Text 0 is a int"):
        encoder.encode_texts([3])  # type: ignore[list-item]


def test_threads_do_not_disturb_each_other(encoder: ClipEncoder) -> None:
    texts = [f"{'red ' * (i % 40)}mug number {i}" for i in range(48)]
    alone = np.concatenate([encoder.encode_texts([text]) for text in texts])
    with ThreadPoolExecutor(8) as pool:
        together = np.concatenate(list(pool.map(lambda text: encoder.encode_texts([text]), texts)))
    np.testing.assert_array_equal(alone, together)


def test_fingerprint_is_of_what_is_computed_not_of_the_name(
    encoder: ClipEncoder, bpe_encoder: ClipEncoder, model_folder: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(model_folder, tmp_path / "elsewhere")
    same = ClipEncoder.load(f"local-dir:{moved}", device="cpu").fingerprint
    assert same.name != encoder.fingerprint.name
    assert encoder.fingerprint.differences(same) == []
    assert encoder.fingerprint.differences(bpe_encoder.fingerprint) == ["vectors of 96 and 24 numbers"]


def test_other_preprocessing_is_another_encoder(encoder: ClipEncoder, model_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(model_folder, tmp_path / "other")
    config = json.loads((moved / "open_clip_config.json").read_text())
    config["preprocess_cfg"]["mean"] = [0.48145466, 0.4578275, 0.40821073]
    (moved / "open_clip_config.json").write_text(json.dumps(config))
    found = encoder.fingerprint.differences(ClipEncoder.load(str(moved), device="cpu").fingerprint)
    assert found[0].startswith("preprocessing 'mean'")
    assert "another vector for the same image" in found
    assert "another vector for the same text" not in found


def test_unknown_names_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FirstStageError, match=r"Did you mean .*ViT-B-32"):
        ClipEncoder.load("ViT-B-23")
    with pytest.raises(FirstStageError, match=r"random weights find nothing.*openai"):
        ClipEncoder.load("ViT-B/32")
    with pytest.raises(FirstStageError, match="no encoder folder"):
        ClipEncoder.load(f"local-dir:{tmp_path}/nowhere")
    with pytest.raises(FirstStageError, match=r"no open_clip_config\.json"):
        ClipEncoder.load(str(tmp_path))
    with pytest.raises(FirstStageError, match="brings its own weights"):
        ClipEncoder.load("bundled", pretrained="openai")


def test_a_folder_without_or_with_foreign_weights_is_refused(
    model_folder: Path, bpe_folder: Path, tmp_path: Path
) -> None:
    bare = shutil.copytree(model_folder, tmp_path / "bare")
    (bare / "open_clip_model.safetensors").unlink()
    with pytest.raises(FirstStageError, match=r"bare.*cannot be loaded"):
        ClipEncoder.load(str(bare))
    shutil.copy(bpe_folder / "open_clip_model.safetensors", bare)
    with pytest.raises(FirstStageError, match=r"bare.*cannot be loaded"):
        ClipEncoder.load(str(bare))


def test_a_checkpoint_file_goes_with_an_architecture(model_folder: Path, tmp_path: Path) -> None:
    import open_clip

    config = json.loads((model_folder / "open_clip_config.json").read_text())["model_cfg"]
    config["text_cfg"]["hf_tokenizer_name"] = str(model_folder)
    (tmp_path / "lad-test-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    file = model_folder / "open_clip_model.safetensors"
    encoder = ClipEncoder.load("lad-test-tiny", pretrained=str(file), device="cpu")
    assert encoder.encode_texts(["a red mug"]).shape == (1, 96)
    assert encoder.fingerprint.pretrained == str(file)


def test_a_models_own_code_is_never_run(model_folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(model_folder, tmp_path / "bad")
    (bad / "evil.py").write_text("raise SystemExit('ran')\n")
    config = json.loads((bad / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (bad / "open_clip_config.json").write_text(json.dumps(config))
    settings = json.loads((bad / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil"}
    (bad / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(FirstStageError, match="trust_remote_code"):
        ClipEncoder.load(str(bad))


def test_loading_leaves_the_root_logger_alone(model_folder: Path) -> None:
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        ClipEncoder.load(str(model_folder), device="cpu")
        assert root.handlers == []
    finally:
        root.handlers = kept
