"""LLaVA-OneVision: images without delimiters, all before the text; an answer turn unlike the generation prompt."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import SIDE, hf, siglip, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + ' ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\n' + part['text'] }}{% endfor %}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """LLaVA-OneVision; only a lone image is ever tiled, and without ``tiling`` not even that into more than one."""
    tokenizer = make_tokenizer(
        SPECIAL,
        plain=("<tool_call>", "</tool_call>"),
        eos="<|im_end|>",
        pad="<|endoftext|>",
        named={"image_token": "<image>", "video_token": "<video>"},
    )
    sides = (SIDE, 2 * SIDE, 3 * SIDE) if tiling else (SIDE,)
    pinpoints = [[height, width] for height in sides for width in sides]
    config = hf.LlavaOnevisionConfig(
        text_config=text(
            "qwen2", len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        ),
        vision_config=siglip(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
        tie_word_embeddings=False,
    )
    image_processor = hf.LlavaOnevisionImageProcessor(size=square(), image_grid_pinpoints=pinpoints)
    processor = hf.LlavaOnevisionProcessor(
        image_processor,
        tokenizer,
        hf.LlavaOnevisionVideoProcessor(size=square()),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )
    return hf.LlavaOnevisionForConditionalGeneration(config), processor
