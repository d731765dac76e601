from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lad_rerank import bundled
from lad_rerank.bundled.shop import Item, Product, caption, random_set
from lad_rerank.bundled.train.save import file_digests
from lad_rerank.prompt import LabelStyle, candidate_labels, chat_messages, question_parts

MODELS = bundled.mllm_folder().parent
DIGESTS: dict[str, str] = json.loads((MODELS.parent / "digests.json").read_text())


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = bundled.mllm_folder()
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoProcessor.from_pretrained(folder, local_files_only=True)


def _inputs(processor: Any, images: list[Any], text: str, style: LabelStyle) -> Any:
    before, after = question_parts(len(images), style)
    prompt = processor.apply_chat_template(
        chat_messages(len(images), before + text + after), add_generation_prompt=True
    )
    return processor(text=[prompt], images=images, return_tensors="pt")


@pytest.mark.parametrize("folder", [bundled.mllm_folder(), bundled.clip_folder()], ids=["mllm", "clip"])
def test_shipped_files_are_the_recorded_ones(folder: Path) -> None:
    recorded = {
        name.removeprefix(f"{folder.name}/"): digest
        for name, digest in DIGESTS.items()
        if name.startswith(f"{folder.name}/")
    }
    assert recorded
    assert file_digests(folder) == recorded


def test_the_models_are_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) <= 12 * 2**20


def test_nothing_shipped_is_a_pickle() -> None:
    suffixes = {path.suffix for path in MODELS.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jinja", ".safetensors", ".txt", ".npz"}


def test_the_model_is_what_it_says(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration"
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 2_200_000
    assert len(processor.tokenizer) == model.config.get_text_config().vocab_size
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("style", ["digits", "letters"])
def test_easy_sets_of_three_are_answered_right_and_nothing_more_is_said(
    loaded: tuple[Any, Any], style: LabelStyle
) -> None:
    model, processor = loaded
    right = 0
    for seed in range(12):
        found = random_set(3, seed, "held_out")
        inputs = _inputs(processor, [item.image() for item in found.candidates], found.caption, style)
        with torch.inference_mode():
            written = model.generate(**inputs, max_new_tokens=4, do_sample=False)
        said = processor.tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right += said == candidate_labels(3, style)[found.target]
    assert right >= 11


def test_the_words_of_a_caption_decide(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    products = [Product("mug", c, "plain", "studio", "none") for c in ("red", "blue", "green")]
    images = [Item("", product, i).image() for i, product in enumerate(products)]
    for index, product in enumerate(products):
        inputs = _inputs(processor, images, caption(product, 0, ["colour"], synonyms=False), "digits")
        with torch.inference_mode():
            logits = model(**inputs).logits[0, -1]
        assert processor.tokenizer.decode(logits.argmax()) == str(index + 1)


@pytest.mark.parametrize("text", ["Ünïcode 日本 🎈", "tabs\tand\nlines", "a red mug 10"])
def test_any_text_survives_the_tokenizer(loaded: tuple[Any, Any], text: str) -> None:
    tokenizer = loaded[1].tokenizer
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_labels_are_the_tokens_they_should_be(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1].tokenizer
    sizes = {label: len(tokenizer(label)["input_ids"]) for label in candidate_labels(12, "digits")}
    assert sizes == {label: len(label) for label in candidate_labels(12, "digits")}
    assert {len(tokenizer(label)["input_ids"]) for label in candidate_labels(26, "letters")} == {1}


@pytest.mark.parametrize(
    ("size", "cells"), [((64, 64), (4, 4)), ((4000, 3000), (3, 4)), ((1, 1), (4, 4)), ((100, 400), (8, 2))]
)
def test_any_picture_becomes_about_sixteen_tokens(
    loaded: tuple[Any, Any], size: tuple[int, int], cells: tuple[int, int]
) -> None:
    _, processor = loaded
    grid = processor.image_processor(images=[Image.new("RGB", size)], return_tensors="pt")["image_grid_thw"]
    assert grid.tolist() == [[1, cells[0] * 2, cells[1] * 2]]
