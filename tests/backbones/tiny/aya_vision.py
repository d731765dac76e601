"""Aya Vision: a Cohere 2 decoder of sliding and full layers, a placeholder that is not the visual token."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, siglip, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<PAD>", "<UNK>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_OF_IMG|>",
    "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "<|IMG_PATCH|>", "TILE_GLOBAL", *(f"TILE_{i}" for i in range(1, 13)),
    "TILE", "<image>",
)  # fmt: skip

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}<|END_OF_TURN_TOKEN|>"
    "{% else %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Aya Vision with 4 tokens a tile; ``tiling`` cuts an image into up to 12 tiles and a thumbnail."""
    tokenizer = make_tokenizer(SPECIAL, bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", pad="<PAD>", writes_bos=True)
    config = hf.AyaVisionConfig(
        text_config=text(
            "cohere2",
            len(tokenizer),
            num_hidden_layers=4,
            layer_types=["sliding_attention", "full_attention"] * 2,
            sliding_window=16,
            logit_scale=1.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=siglip(),
        downsample_factor=2,
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )
    image_processor = hf.GotOcr2ImageProcessor(size=square(), crop_to_patches=tiling, max_patches=12 if tiling else 1)
    processor = hf.AyaVisionProcessor(
        image_processor, tokenizer, patch_size=PATCH, img_size=SIDE, downsample_factor=2, chat_template=TEMPLATE
    )
    return hf.AyaVisionForConditionalGeneration(config), processor
