"""GLM-4.1V: dynamic resolution, M-RoPE on part of each head, answers that no end token follows."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import hf, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
    "<|image|>", "<|video|>",
)  # fmt: skip
PLAIN = ("<think>", "</think>", "<answer>", "</answer>")

TEMPLATE = (
    "[gMASK]<sop>"
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """GLM-4.1V; there is no tiling to turn on."""
    tokenizer = make_tokenizer(SPECIAL, plain=PLAIN, eos="<|endoftext|>", pad="<|endoftext|>")
    tokens = {
        f"{name}_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in (
            ("image_token", "<|image|>"),
            ("video_token", "<|video|>"),
            ("image_start_token", "<|begin_of_image|>"),
            ("image_end_token", "<|end_of_image|>"),
            ("video_start_token", "<|begin_of_video|>"),
            ("video_end_token", "<|end_of_video|>"),
        )
    }
    config = hf.Glm4vConfig(
        text_config=text(
            "glm4v_text",
            len(tokenizer),
            partial_rotary_factor=0.5,
            rope_scaling={
                "rope_type": "default",
                "type": "default",
                "mrope_section": [1, 1, 2],
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "image_size": 56,
            "patch_size": 14, "out_hidden_size": 64,
        },
        tie_word_embeddings=False,
        **tokens,
    )  # fmt: skip
    image_processor = hf.Glm4vImageProcessor(
        patch_size=14, merge_size=2, size={"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}
    )
    processor = hf.Glm4vProcessor(
        image_processor, tokenizer, hf.Glm4vVideoProcessor(patch_size=14), chat_template=TEMPLATE
    )
    return hf.Glm4vForConditionalGeneration(config), processor
