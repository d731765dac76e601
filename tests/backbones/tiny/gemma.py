"""Gemma 3 (sliding and full layers, images seen both ways) and PaliGemma (a prompt seen both ways as a whole)."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import hf, siglip, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>",
    "<image_soft_token>",
)  # fmt: skip

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>"
    "{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

PALIGEMMA_TEMPLATE = (
    "{% for message in messages %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """``gemma3``, ``gemma3_sliding`` (no full-attention layer) or ``paligemma``; ``tiling`` pans and scans Gemma 3."""
    return _paligemma() if family == "paligemma" else _gemma3(family == "gemma3_sliding", tiling)


def _gemma3(sliding_only: bool, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = make_tokenizer(
        SPECIAL,
        bos="<bos>",
        family_class="GemmaTokenizerFast",
        eos="<end_of_turn>",
        pad="<pad>",
        named={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        writes_bos=True,
    )
    kinds = ["sliding_attention"] * 4 if sliding_only else ["sliding_attention", "full_attention"] * 2
    config = hf.Gemma3Config(
        text_config=text(
            "gemma3_text",
            len(tokenizer),
            num_hidden_layers=4,
            layer_types=kinds,
            sliding_window=16,
            query_pre_attn_scalar=16,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=siglip(),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    image_processor = hf.Gemma3ImageProcessor(
        size=square(),
        do_pan_and_scan=tiling,
        pan_and_scan_min_crop_size=28,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )
    processor = hf.Gemma3Processor(image_processor, tokenizer, chat_template=TEMPLATE, image_seq_length=4)
    return hf.Gemma3ForConditionalGeneration(config), processor


def _paligemma() -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = make_tokenizer(
        ("<pad>", "<eos>", "<bos>", "<unk>", "<image>"),
        bos="<bos>",
        family_class="GemmaTokenizerFast",
        eos="<eos>",
        pad="<pad>",
        named={"image_token": "<image>"},
    )
    image_processor = hf.SiglipImageProcessor(size=square())
    image_processor.image_seq_length = 16
    # The processor adds 1,152 location and segmentation tokens to the tokenizer.
    processor = hf.PaliGemmaProcessor(image_processor, tokenizer, chat_template=PALIGEMMA_TEMPLATE)
    config = hf.PaliGemmaConfig(
        text_config=text(
            "gemma",
            len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=siglip(),
        projection_dim=64,
        image_token_index=tokenizer.image_token_id,
    )
    return hf.PaliGemmaForConditionalGeneration(config), processor
