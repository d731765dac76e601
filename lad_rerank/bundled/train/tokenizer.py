"""A byte-level tokenizer of Qwen's kind, learnt from the shop's captions, and the processor around it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lad_rerank.bundled.shop import all_products, caption
from lad_rerank.bundled.train.config import MERGE, PATCH
from lad_rerank.prompt import question_parts

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLProcessor, Qwen2Tokenizer

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# Qwen2's: words carry the space before them, every digit stands alone.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' or 'video' in part %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def corpus() -> list[str]:
    """Text whose words become one token each: captions, the question, the roles of a chat."""
    products = all_products("train")[::5]
    texts = [f"Caption: {caption(product, seed)}\n" for seed, product in enumerate(products)]
    for style in ("digits", "letters"):
        for n in range(2, 27):
            before, after = question_parts(n, style)
            texts += [before, after, "user\n", "assistant\n", "system\n"]
    return texts


def build_tokenizer() -> Qwen2Tokenizer:
    """Learn the tokenizer. Every UTF-8 text can be encoded; each digit and each capital is one token."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    learnt = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],  # type: ignore[misc]  # pairs, as in the file
        unk_token=None,  # type: ignore[arg-type]  # bytes leave nothing unknown
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32_768,
        padding_side="left",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    return tokenizer


def build_processor(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLProcessor:
    """The processor: any picture becomes about 64 x 64 pixels, its aspect ratio kept."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes: dict[str, Any] = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
    area = {"shortest_edge": 64 * 64, "longest_edge": 64 * 64}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=area, **sizes),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=area, **sizes),
        chat_template=CHAT_TEMPLATE,
    )
