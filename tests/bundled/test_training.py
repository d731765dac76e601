from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lad_rerank.bundled.shop import ATTRIBUTES, VALUES, Product, satisfies
from lad_rerank.bundled.train.config import LanguagePlan, VisionPlan
from lad_rerank.bundled.train.language import GROUNDED, forward
from lad_rerank.bundled.train.packing import Packer
from lad_rerank.bundled.train.pictures import draw_pictures, patches
from lad_rerank.bundled.train.run import language_stage, new_model, vision_stage
from lad_rerank.bundled.train.save import file_digests, write_digests
from lad_rerank.bundled.train.sets import UNSTATED, SetMaker
from lad_rerank.bundled.train.vision import tower_features
from lad_rerank.prompt import LabelStyle, chat_messages, question_parts

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="training needs torch 2.9 or later")


@pytest.fixture(scope="module")
def untrained() -> tuple[Any, Any]:
    model, processor = new_model(seed=3)
    model.set_attn_implementation("eager")
    return model.eval(), processor


@pytest.fixture(scope="module")
def drawn() -> tuple[Any, Any]:
    return draw_pictures(120, 1, "train")


def test_the_batched_tower_is_the_models_own(untrained: tuple[Any, Any], drawn: tuple[Any, Any]) -> None:
    model, processor = untrained
    pixels = drawn[0][:3]
    inputs = processor(text=["<|image_pad|>" * 3], images=[Image.fromarray(p) for p in pixels], return_tensors="pt")
    with torch.inference_mode():
        seen = model.model.get_image_features(
            inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True
        ).pooler_output
        found = tower_features(model.model.visual, patches(pixels))
    torch.testing.assert_close(found, torch.stack(list(seen)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("n", "style"), [(3, "letters"), (11, "digits")])
def test_packed_questions_read_as_prompts_of_their_own(
    untrained: tuple[Any, Any], drawn: tuple[Any, Any], n: int, style: LabelStyle
) -> None:
    model, processor = untrained
    pixels, labels = drawn
    found = SetMaker(labels).draw(Random(5), n, 3)
    packed = Packer(processor.tokenizer).pack([found], style)
    shown = [pixels[row] for row in found.rows]
    pad = processor.image_token_id
    before, after = question_parts(n, style)
    with torch.inference_mode():
        features = tower_features(model.model.visual, patches(np.stack(shown)))[None]
        seen = forward(model, packed, features)
        for j, question in enumerate(found.questions):
            prompt = processor.apply_chat_template(
                chat_messages(n, before + question.caption + after), add_generation_prompt=True
            )
            inputs = processor(text=[prompt], images=[Image.fromarray(p) for p in shown], return_tensors="pt")
            own = model(**inputs, output_attentions=True)
            places = (inputs["input_ids"][0] == pad).nonzero()[:, 0].view(n, -1)
            mass = [own.attentions[layer][0, :, -1][:, places].sum(-1).mean(0) for layer in GROUNDED]
            torch.testing.assert_close(seen.logits[0, j, 0], own.logits[0, -1], atol=1e-4, rtol=0)
            torch.testing.assert_close(seen.mass[0, :, j], torch.stack(mass), atol=1e-5, rtol=0)


def test_training_sets_say_which_pictures_are_right(drawn: tuple[Any, Any]) -> None:
    _, labels = drawn
    products = [Product(**{name: VALUES[name][i] for name, i in zip(ATTRIBUTES, row, strict=True)}) for row in labels]
    maker, rng = SetMaker(labels), Random(0)
    several = 0
    for _ in range(100):
        found = maker.draw(rng, 6, 4)
        shown = [products[row] for row in found.rows]
        assert len(set(shown)) == 6
        for question in found.questions:
            asks = {
                name: VALUES[name][value - 1]
                for name, value in zip(ATTRIBUTES, question.stated, strict=True)
                if value != UNSTATED
            }
            assert "kind" in asks
            assert question.right == tuple(satisfies(product, asks) for product in shown)
            several += sum(question.right) > 1
    assert several > 0


@needs_muon
def test_a_few_steps_run_and_leave_a_model_that_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    seen: list[tuple[int, int, str]] = []
    accuracy = vision_stage(
        tmp_path / "work",
        VisionPlan(images=160, steps=3, batch=16, workers=1),
        lambda *args: seen.append(args),
    )
    assert set(accuracy) == set(ATTRIBUTES)
    assert all(0 <= value <= 1 for value in accuracy.values())
    plan = LanguagePlan(steps=3, sequences=2, segments=2)
    figures = language_stage(tmp_path / "work", tmp_path / "models/mllm", plan, lambda *args: seen.append(args))
    assert math.isfinite(figures["loss"])
    assert math.isfinite(figures["grounding"])
    assert [(done, total) for done, total, _ in seen] == [(1, 3), (2, 3), (3, 3)] * 2
    folder = tmp_path / "models/mllm"
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert AutoProcessor.from_pretrained(folder).tokenizer.eos_token == "<|im_end|>"
    write_digests(tmp_path / "models", tmp_path / "digests.json")
    assert f"mllm/{next(iter(file_digests(folder)))}" in (tmp_path / "digests.json").read_text()


@needs_muon
def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        vision_stage(tmp_path / name, VisionPlan(images=64, steps=2, batch=8, workers=1))
        digests.append(file_digests(tmp_path / name))
    assert digests[0] == digests[1]


def test_language_needs_vision_first(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run the stage 'vision' first"):
        language_stage(tmp_path, tmp_path / "mllm", LanguagePlan(steps=1))
