"""Ovis2: visual words from a probabilistic table, and indicator tokens that carry features too."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<IMG_ATOM>", *INDICATORS)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\n' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Ovis2 with 4 tokens a tile; ``tiling`` cuts an image into up to 12 tiles."""
    tokenizer = make_tokenizer(SPECIAL, plain=("<tool_call>", "</tool_call>"), eos="<|im_end|>", pad="<|endoftext|>")
    config = hf.Ovis2Config(
        text_config=text(
            "qwen2", len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        ),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": SIDE, "patch_size": PATCH, "vocab_size": 64, "hidden_stride": 2,
            "num_visual_indicator_tokens": len(INDICATORS),
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(list(INDICATORS)),
        vocab_size=len(tokenizer),
        hidden_size=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    image_processor = hf.Ovis2ImageProcessor(size=square(), crop_to_patches=tiling)
    processor = hf.Ovis2Processor(image_processor, tokenizer, chat_template=TEMPLATE, image_seq_length=4)
    return hf.Ovis2ForConditionalGeneration(config), processor
