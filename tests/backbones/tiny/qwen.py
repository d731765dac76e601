"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL: dynamic resolution, M-RoPE; Qwen3-VL adds QK-norm and DeepStack."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import hf, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
PLAIN = ("<tool_call>", "</tool_call>", "<|fim_prefix|>")

TEMPLATE = (
    "{% for message in messages %}"
    "{% if SYSTEM and loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """One of the three families; there is no tiling to turn on."""
    tokenizer = make_tokenizer(
        SPECIAL, plain=PLAIN, eos="<|im_end|>", pad="<|endoftext|>", family_class="Qwen2TokenizerFast"
    )
    template = TEMPLATE.replace("SYSTEM", str(family != "qwen3_vl").lower())
    patch = 16 if family == "qwen3_vl" else 14
    image_processor = hf.Qwen2VLImageProcessor(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": (2 * patch) ** 2 * 4, "longest_edge": (2 * patch) ** 2 * 16384},
    )
    tokens = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in (
            ("image", "<|image_pad|>"),
            ("video", "<|video_pad|>"),
            ("vision_start", "<|vision_start|>"),
            ("vision_end", "<|vision_end|>"),
        )
    }
    tokens["tie_word_embeddings"] = False
    end = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if family == "qwen3_vl":
        text_config = text("qwen3_vl_text", len(tokenizer), rope_scaling=_mrope([4, 2, 2], interleaved=True), **end)
        config: Any = hf.Qwen3VLConfig(text_config=text_config, vision_config=_vision3(), **tokens)
        model: PreTrainedModel = hf.Qwen3VLForConditionalGeneration(config)
        videos = hf.Qwen3VLVideoProcessor(patch_size=patch)
        return model, hf.Qwen3VLProcessor(image_processor, tokenizer, videos, chat_template=template)
    text_config = text(f"{family}_text", len(tokenizer), rope_scaling=_mrope([2, 3, 3]), **end)
    videos = hf.Qwen2VLVideoProcessor(patch_size=patch)
    if family == "qwen2_5_vl":
        config = hf.Qwen2_5_VLConfig(text_config=text_config, vision_config=_vision2_5(), **tokens)
        model = hf.Qwen2_5_VLForConditionalGeneration(config)
        return model, hf.Qwen2_5_VLProcessor(image_processor, tokenizer, videos, chat_template=template)
    config = hf.Qwen2VLConfig(text_config=text_config, vision_config=_vision2(), **tokens)
    model = hf.Qwen2VLForConditionalGeneration(config)
    return model, hf.Qwen2VLProcessor(image_processor, tokenizer, videos, chat_template=template)


def _mrope(section: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "type": "default", "mrope_section": section, "rope_theta": 10000.0} | {
        f"mrope_{name}": value for name, value in more.items()
    }


def _vision2() -> dict[str, Any]:
    return {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}


def _vision2_5() -> dict[str, Any]:
    return {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14,
        "window_size": 56, "out_hidden_size": 64, "fullatt_block_indexes": [1],
    }  # fmt: skip


def _vision3() -> dict[str, Any]:
    return {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 16,
        "out_hidden_size": 64, "num_position_embeddings": 256, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
