"""A Qwen2.5-VL with random weights, its processor and some pictures, all made in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

from lad_rerank.prompt import question_parts

hf: Any = transformers
"""transformers without its annotations, which do not know all keywords that its own files pass."""

QUERIES = (
    "a red enamel mug with a white rim on a wooden table",
    "two brown dogs asleep on a green sofa beside the window",
    "a blue bicycle that leans on the wall of an old brick house",
)
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORD_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen's own tokenizer cuts text into words; digits one by one."""
PATCH = 14


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. The defaults are the published 3B's, about an eighth as wide and a third as deep.

    Attributes:
        layers: Decoder layers.
        hidden: Width of the decoder.
        heads: Attention heads of the decoder.
        kv_heads: Key-value heads of the decoder.
        mlp: Width of the decoder's MLP; the 3B's is 5.4 times its hidden size.
        vocabulary: Rows of the output layer.
        vision_layers: Blocks of the vision tower; every fourth attends to the whole image.
        vision_hidden: Width of the vision tower, 0.6 of the decoder's as in the 3B.
        side: Pixels along the side of an image.
    """

    layers: int = 12
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 1376
    vocabulary: int = 32768
    vision_layers: int = 12
    vision_hidden: int = 160
    side: int = 336

    @property
    def image_tokens(self) -> int:
        """Visual tokens of one image: cells of 28 x 28 pixels."""
        return (self.side // (2 * PATCH)) ** 2


MID = Shape()
SMALL = Shape(layers=2, hidden=64, mlp=128, vocabulary=2048, vision_layers=4, vision_hidden=32, side=56)


def build(shape: Shape, seed: int = 0) -> tuple[PreTrainedModel, ProcessorMixin]:
    """A model in float32 and evaluation mode, and its processor. Same seed, same weights."""
    tokenizer = _tokenizer()
    size = {"shortest_edge": (2 * PATCH) ** 2 * 4, "longest_edge": (2 * PATCH) ** 2 * 16384}
    image_processor = hf.Qwen2VLImageProcessor(patch_size=PATCH, merge_size=2, temporal_patch_size=2, size=size)
    processor: ProcessorMixin = hf.Qwen2_5_VLProcessor(
        image_processor, tokenizer, hf.Qwen2VLVideoProcessor(patch_size=PATCH), chat_template=TEMPLATE
    )
    tokens = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            *(("image", "image_pad"), ("video", "video_pad")),
            *(("vision_start", "vision_start"), ("vision_end", "vision_end")),
        )
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = hf.Qwen2_5_VLForConditionalGeneration(
            hf.Qwen2_5_VLConfig(
                text_config=_decoder(shape, tokenizer),
                vision_config=_vision(shape),
                tie_word_embeddings=False,
                **tokens,
            )
        )
        _randomise(model)
    return model.float().eval(), processor


def pictures(count: int, side: int, seed: int = 0) -> list[Image.Image]:
    """Different pictures of coarse coloured noise, ``side`` pixels square."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return [Image.fromarray(pixels).resize((side, side)) for pixels in coarse]


def _decoder(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    head = shape.hidden // shape.heads
    # The 3B deals its 64 frequencies out as 16, 24, 24 to time, height and width.
    time, space = head // 8, 3 * head // 16
    return {
        "model_type": "qwen2_5_vl_text",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 8192,
        "rope_scaling": {
            "rope_type": "default",
            "type": "default",
            "mrope_section": [time, space, space],
            "rope_theta": 1e6,
        },
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _vision(shape: Shape) -> dict[str, Any]:
    return {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": 43 * shape.vision_hidden // 16,
        "num_heads": 4,
        "patch_size": PATCH,
        "window_size": 8 * PATCH,
        "out_hidden_size": shape.hidden,
        "fullatt_block_indexes": list(range(3, shape.vision_layers, 4)),
    }


@torch.no_grad()
def _randomise(model: PreTrainedModel) -> None:
    """Weights of a scale that carries content through: at the usual 0.02 a small model's attention is uniform."""
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv3d)):
            module.weight.normal_(0, module.weight[0].numel() ** -0.5)
        elif isinstance(module, torch.nn.Embedding):
            module.weight.normal_(0, 1.0)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that has learned the benchmark's own words, so that texts have realistic lengths."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    known = [*QUERIES, *question_parts(8, "digits"), *question_parts(8, "letters")]
    known += ["system\nYou are a helpful assistant.", "user\n", "assistant\n"]
    backend.train_from_iterator(known, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=8192
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:2] + SPECIAL[3:])})
    return tokenizer
