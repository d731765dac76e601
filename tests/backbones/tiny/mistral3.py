"""Mistral Small 3.1: dynamic resolution with a break token a row, no generation prompt of its own."""

from __future__ import annotations

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, hf, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]", "<pad>",
    "[IMG_BREAK]", "[IMG_END]",
)  # fmt: skip

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST]"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}[IMG]{% endif %}"
    "{% endfor %}{% endif %}[/INST]"
    "{% elif message['role'] == 'assistant' %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Mistral Small 3.1 with a Pixtral tower; there is no tiling to turn on."""
    tokenizer = make_tokenizer(SPECIAL, bos="<s>", eos="</s>", pad="<pad>", writes_bos=True)
    config = hf.Mistral3Config(
        text_config=text(
            "mistral",
            len(tokenizer),
            sliding_window=None,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config={
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "head_dim": 16, "image_size": 1540, "patch_size": PATCH,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    image_processor = hf.PixtralImageProcessor(patch_size=PATCH, size={"longest_edge": 1540})
    processor = hf.PixtralProcessor(
        image_processor, tokenizer, patch_size=PATCH, spatial_merge_size=2, chat_template=TEMPLATE
    )
    return hf.Mistral3ForConditionalGeneration(config), processor
