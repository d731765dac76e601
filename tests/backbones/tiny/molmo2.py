"""Molmo 2: a low-resolution view and overlapping crops of every image, pooled by attention."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

VISUAL = (
    "<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>", "<im_low>",
    "<frame_start>", "<frame_end>", "<|video|>",
)  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISUAL)

TEMPLATE = (
    "{% for message in messages %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<|image|>{% endfor %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Molmo 2; without ``tiling`` each image has its low-resolution view and a single crop."""
    tokenizer = make_tokenizer(SPECIAL, bos="<|endoftext|>", eos="<|im_end|>", pad="<|endoftext|>")
    tokens = {
        name: tokenizer.convert_tokens_to_ids(token)
        for name, token in (
            ("image_start_token_id", "<im_start>"),
            ("low_res_image_start_token_id", "<low_res_im_start>"),
            ("image_end_token_id", "<im_end>"),
            ("image_patch_id", "<im_patch>"),
            ("frame_start_token_id", "<frame_start>"),
            ("frame_end_token_id", "<frame_end>"),
        )
    }
    decoder = text(
        "molmo2_text",
        len(tokenizer) - len(VISUAL),
        additional_vocab_size=len(VISUAL),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32}
    config = hf.Molmo2Config(
        text_config=decoder,
        vision_config={
            **heads, "intermediate_size": 64, "num_hidden_layers": 2, "image_size": [SIDE, SIDE], "patch_size": PATCH,
        },
        adapter_config={**heads, "vision_feature_layer": [-1, -2], "intermediate_size": 64, "text_hidden_size": 64},
        tie_word_embeddings=False,
        **tokens,
    )  # fmt: skip
    image_processor = hf.Molmo2ImageProcessor(
        size=square(), max_crops=8 if tiling else 1, overlap_margins=[1, 1], patch_size=PATCH
    )
    processor = hf.Molmo2Processor(image_processor, hf.Molmo2VideoProcessor(), tokenizer, chat_template=TEMPLATE)
    return hf.Molmo2ForConditionalGeneration(config), processor
