"""The tiny models are what the conformance tests take them for: runnable, peaked, honest about their image tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, ProcessorMixin

from tests.backbones.tiny import FAMILIES, REFUSED, TILING, build

SIZES = ((40, 56), (64, 64), (90, 30))
QUESTION = "Given 3 images, which is a red mug? Answer 1, 2 or 3."


def pictures(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def render(processor: ProcessorMixin, n: int, answer: str | None = None) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [*({"type": "image"} for _ in range(n)), {"type": "text", "text": QUESTION}]}
    ]
    if answer is not None:
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    text = processor.apply_chat_template(messages, add_generation_prompt=answer is None, tokenize=False)
    assert isinstance(text, str)
    return text


def encode(
    processor: ProcessorMixin, images: list[Image.Image], **images_kwargs: Any
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """The processor's tensors, and what it put in place of each image."""
    text = render(processor, len(images))
    bos = processor.tokenizer.bos_token
    inputs = dict(
        processor(
            text=[text],
            images=[images],
            images_kwargs=images_kwargs,
            truncation=False,
            return_text_replacement_offsets=True,
            return_tensors="pt",
            # A template that writes the first token itself must not get a second one.
            **({"add_special_tokens": False} if bos and text.startswith(bos) else {}),
        )
    )
    inputs.pop("labels", None)  # PaliGemma's processor makes them for training
    replacements = inputs.pop("text_replacement_offsets", None)
    return inputs, None if replacements is None else replacements[0]


def counts(processor: ProcessorMixin, replacements: list[dict[str, Any]], image_token_id: int) -> list[int]:
    """Visual tokens of each image."""
    return [
        processor.tokenizer(r["replacement"], add_special_tokens=False)["input_ids"].count(image_token_id)
        for r in replacements
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_with_peaked_attention_that_differs_by_head_and_image(family: str) -> None:
    model, processor = build(family)
    assert model.config.model_type == family
    inputs, replacements = encode(processor, pictures())
    assert replacements is not None
    ids = inputs["input_ids"][0].tolist()
    per_image = counts(processor, replacements, model.config.image_token_id)
    assert len(per_image) == 3
    assert min(per_image) > 0
    assert sum(per_image) == ids.count(model.config.image_token_id)

    model.set_attn_implementation("eager")
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True)
        swapped = model(**encode(processor, pictures()[1::-1] + pictures()[2:])[0])
    assert output.logits.isfinite().all()
    assert not torch.allclose(output.logits[0, -1], swapped.logits[0, -1], atol=1e-2)
    length = len(ids)
    visual = torch.tensor([i for i, token in enumerate(ids) if token == model.config.image_token_id])
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"] * len(output.attentions)
    assert kinds.count("full_attention") >= 2
    for kind, attention in zip(kinds, output.attentions, strict=True):
        torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
        last = attention[0, :, -1]
        assert last.max(dim=-1).values.min() > 3 / length
        assert torch.cdist(last, last)[~torch.eye(len(last), dtype=torch.bool)].min() > 0.05
        if kind == "full_attention":
            mass = [share.sum(-1) for share in last[:, visual].split(per_image, dim=-1)]
            assert torch.stack(mass).std(dim=0).max() > 1e-3
        else:
            # Sliding layers of these prompts have lost the first image: reading them would be wrong.
            assert last[:, visual[: per_image[0]]].max() == 0


@pytest.mark.parametrize("family", FAMILIES + REFUSED)
def test_grouped_heads_and_weights_repeat(family: str) -> None:
    first, second = build(family)[0], build(family)[0]
    text = first.config.get_text_config()
    assert text.num_key_value_heads < text.num_attention_heads
    assert not first.training
    assert first.dtype == torch.float32
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_tells_digits_letters_and_added_tokens_apart(family: str) -> None:
    tokenizer = build(family)[1].tokenizer

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    assert all(len(ids(digit)) == 1 for digit in "0123456789")
    assert ids("12") == ids("1") + ids("2")
    assert len(ids("A")) == len(ids(" A")) == 1
    assert ids("A") != ids(" A")
    for text, token in tokenizer.get_added_vocab().items():
        assert ids(f"a {text} b").count(token) == 1, text
    assert tokenizer.decode(ids("Größe 12, 赤い mug")) == "Größe 12, 赤い mug"


@pytest.mark.parametrize("family", FAMILIES)
def test_answer_turn_has_the_family_s_shape(family: str) -> None:
    _, processor = build(family)
    prompt, full = render(processor, 3), render(processor, 3, "1")
    expected = {
        "smolvlm": " 1<end_of_utterance>\n",
        "idefics3": " 1<end_of_utterance>\n",
        "gemma3": "1<end_of_turn>\n",
        "mistral3": "1</s>",
        "aya_vision": "1<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
        "glm4v": "1",
        "paligemma": "1<eos>",
    }.get(family, "1<|im_end|>\n")
    if family == "llava_onevision":
        assert not full.startswith(prompt)
        assert prompt.endswith("<|im_start|>assistant\n")
        assert full.endswith("<|im_start|>assistant \n1<|im_end|>")
    else:
        assert full == prompt + expected


@pytest.mark.parametrize("family", FAMILIES + REFUSED)
def test_saved_and_loaded_by_the_auto_classes_it_is_the_same(family: str, tmp_path: Path) -> None:
    model, processor = build(family)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    inputs = encode(AutoProcessor.from_pretrained(tmp_path), pictures())[0]
    with torch.inference_mode():
        expected = model(**encode(processor, pictures())[0]).logits
        torch.testing.assert_close(loaded(**inputs).logits, expected)


@pytest.mark.parametrize("family", TILING)
def test_tiling_multiplies_visual_tokens_only_when_asked_for(family: str) -> None:
    # LLaVA-OneVision cuts lone images only.
    photo = pictures(((300, 200),)) * (1 if family == "llava_onevision" else 2)
    made = {}
    for tiling in (False, True):
        model, processor = build(family, tiling=tiling)
        inputs, replacements = encode(processor, photo)
        assert replacements is not None
        made[tiling] = counts(processor, replacements, model.config.image_token_id)
        with torch.inference_mode():
            assert model(**inputs, logits_to_keep=1).logits.isfinite().all()
    assert made[True][0] > 1.5 * made[False][0]


@pytest.mark.parametrize("family", REFUSED)
def test_refused_families_run_but_show_no_image_to_full_self_attention(family: str) -> None:
    model, processor = build(family)
    inputs, replacements = encode(processor, pictures())
    with torch.inference_mode():
        assert model(**inputs, logits_to_keep=1).logits.isfinite().all()
    if family == "mllama":
        assert replacements is None
        assert inputs["input_ids"][0].tolist().count(model.config.image_token_id) == 3
        assert "cross_attention_mask" in inputs
    else:
        assert set(model.config.get_text_config().layer_types) == {"sliding_attention"}
