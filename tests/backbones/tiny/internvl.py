"""InternVL 3: fixed-size tiles, one pair of delimiters an image, a line break behind each image."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>")
PLAIN = ("<tool_call>", "</tool_call>", "<box>", "</box>")

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """InternVL 3 with 4 tokens a tile; ``tiling`` cuts an image into up to 12 tiles and a thumbnail."""
    tokenizer = make_tokenizer(
        SPECIAL,
        plain=PLAIN,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )
    config = hf.InternVLConfig(
        text_config=text(
            "qwen2", len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        ),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH], "attention_bias": True,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )  # fmt: skip
    # The processor's own default is to crop whatever the image processor's file says.
    image_processor = hf.GotOcr2ImageProcessor(size=square(), crop_to_patches=tiling, max_patches=12 if tiling else 1)
    processor = hf.InternVLProcessor(
        image_processor,
        tokenizer,
        hf.InternVLVideoProcessor(size=square()),
        image_seq_length=4,
        chat_template=TEMPLATE,
    )
    return hf.InternVLForConditionalGeneration(config), processor
