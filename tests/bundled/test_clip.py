from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from clip_faiss import ClipEncoder, ClipFaissIndex
from lad_rerank.bundled import clip_folder
from lad_rerank.bundled.shop import VALUES, all_products, caption, catalogue, vocabulary
from lad_rerank.bundled.train.clip import contrast_loss, measure_clip, train_clip
from lad_rerank.bundled.train.clip_model import CONTEXT, END, UNKNOWN, build_clip_tokenizer


@pytest.fixture(scope="module")
def encoder() -> ClipEncoder:
    return ClipEncoder.load("bundled", device="cpu")


def test_open_clip_loads_it_without_any_code_of_ours() -> None:
    import open_clip

    name = f"local-dir:{clip_folder()}"
    model, _, preprocess = open_clip.create_model_and_transforms(name, require_pretrained=True)
    tokenizer = open_clip.get_tokenizer(name)
    item = catalogue(1, 0)[0]
    with torch.inference_mode():
        picture = model.encode_image(preprocess(item.image())[None], normalize=True)
        texts = model.encode_text(tokenizer([item.title, "a saxophone"]), normalize=True)
    assert (picture @ texts.T).argmax().item() == 0


def test_it_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in clip_folder().iterdir()}
    assert sizes["open_clip_model.safetensors"] < 1.6e6
    assert sum(sizes.values()) < 1.7e6


def test_it_finds_held_out_products() -> None:
    figures = measure_clip(clip_folder(), 2000)
    assert figures["exact@8"] >= 0.97  # the model card says 99; the issue asks for 90
    assert figures["partial_right@8"] >= 0.96


def test_search_by_words(encoder: ClipEncoder) -> None:
    items = catalogue(400, 21, "held_out")
    index = ClipFaissIndex.build(
        [item.image() for item in items], encoder=encoder, ids=[item.id for item in items], progress=False
    )
    answers = index.search_many([item.title for item in items])
    found = [item.id in {hit.id for hit in hits} for item, hits in zip(items, answers, strict=True)]
    assert np.mean(found) >= 0.97
    # A kind alone, among words that the model does not know: nearly always that kind.
    right = [
        items[hit.row].product.kind == kind
        for kind in VALUES["kind"]
        for hit in index.search(f"where can I buy a cheap {kind} today", k=5)
    ]
    assert np.mean(right) >= 0.75


def test_case_and_punctuation_do_not_matter(encoder: ClipEncoder) -> None:
    rows = encoder.encode_texts(["a red two-tone mug on a lawn", "  A RED,  (Two-Tone) MUG -- on - a lawn!"])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_every_word_of_the_shop_is_known() -> None:
    tokenizer = build_clip_tokenizer()
    texts = [caption(product, seed) for seed, product in enumerate(all_products()[::7])]
    tokens = tokenizer(texts)["input_ids"]
    assert all(UNKNOWN not in row and row[-1] == END for row in tokens)
    assert max(len(row) for row in tokens) < CONTEXT
    assert tokenizer(list(vocabulary()))["input_ids"] == [[i, END] for i in range(3, 3 + len(vocabulary()))]


def test_words_it_does_not_know_are_no_error() -> None:
    tokenizer = build_clip_tokenizer()
    assert tokenizer("Red, two-tone MUG — 日本 🎈!")["input_ids"] == [
        *tokenizer("red two-tone mug")["input_ids"][:-1],
        UNKNOWN,
        END,
    ]
    assert tokenizer("?!")["input_ids"] == [END]


def test_pictures_that_fit_a_caption_are_not_its_negatives() -> None:
    values = torch.tensor([[0, 0], [0, 1], [1, 1]])
    logits = torch.tensor([[2.0, 9.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 3.0]])
    # Caption 0 names the first attribute only, so picture 1 fits it as well.
    named = torch.tensor([[True, False], [True, True], [True, True]])

    def nll(row: list[float], own: int) -> float:
        return math.log(sum(math.exp(v) for v in row)) - row[own]

    by_caption = [nll([2, 0], 0), nll([0, 1, 1], 1), nll([0, 0, 3], 2)]
    by_picture = [nll([2, 0, 0], 0), nll([1, 0], 0), nll([0, 1, 3], 2)]
    expected = (np.mean(by_caption) + np.mean(by_picture)) / 2
    assert contrast_loss(logits, values, named).item() == pytest.approx(expected, abs=1e-6)


def test_training_takes_its_steps_and_repeats_itself(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for name in ("a", "b"):
        figures = train_clip(
            tmp_path / name,
            steps=2,
            images=192,
            measured=16,
            progress=lambda done, total, line: seen.append((done, total)),
        )
        assert figures["exact@12"] <= figures["right@12"] <= 1
    assert seen == [(1, 2), (2, 2)] * 2
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert files[0] == files[1]
    assert files[0]["tokenizer.json"] == (clip_folder() / "tokenizer.json").read_bytes()
    assert files[0]["open_clip_config.json"] == (clip_folder() / "open_clip_config.json").read_bytes()


def test_another_seed_is_another_model(tmp_path: Path) -> None:
    for seed in (1, 2):
        assert train_clip(tmp_path / str(seed), steps=1, seed=seed, images=192, measured=0) == {}
    files = [(tmp_path / seed / "open_clip_model.safetensors").read_bytes() for seed in "12"]
    assert files[0] != files[1]
