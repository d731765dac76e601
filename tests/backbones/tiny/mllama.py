"""Llama 3.2 Vision: images enter by cross-attention, so that self-attention never sees them. To be refused."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, square, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|python_tag|>", "<|finetune_right_pad_id|>", "<|image|>",
)  # fmt: skip

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Llama 3.2 Vision with one cross-attention layer in four."""
    tokenizer = make_tokenizer(
        SPECIAL, bos="<|begin_of_text|>", eos="<|eot_id|>", pad="<|finetune_right_pad_id|>", writes_bos=True
    )
    # The head has no row for the image token, which real checkpoints keep last.
    config = hf.MllamaConfig(
        text_config=text(
            "mllama_text_model",
            len(tokenizer) - 1,
            num_hidden_layers=4,
            cross_attention_layers=[2],
            rope_scaling={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_global_layers": 1,
            "attention_heads": 2, "image_size": SIDE, "patch_size": PATCH, "vision_output_dim": 64,
            "intermediate_layers_indices": [1],
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    image_processor = hf.MllamaImageProcessor(size=square(), max_image_tiles=4)
    return hf.MllamaForConditionalGeneration(config), hf.MllamaProcessor(image_processor, tokenizer, TEMPLATE)
