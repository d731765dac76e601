"""The tiny CLIP as open_clip knows it: architecture, word-level tokenizer, and the folder it is kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.bundled.shop import SIDE, vocabulary

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerFast

CONTEXT = 32
"""Tokens of a text, the end marker included; captions of the shop take at most 16."""

EMBEDDING = 96
"""Length of the vectors that pictures and texts become."""

SPECIAL = ("<pad>", "<unk>", "</s>")
PAD, UNKNOWN, END = range(3)

_WEIGHTS = "open_clip_model.safetensors"


def clip_config() -> dict[str, Any]:
    """What ``open_clip_config.json`` holds: ``model_cfg`` and ``preprocess_cfg``."""
    return {
        "model_cfg": {
            "embed_dim": EMBEDDING,
            "vision_cfg": {
                "image_size": SIDE,
                "patch_size": 8,
                "layers": 4,
                "width": 128,
                "head_width": 32,
                "mlp_ratio": 2.0,
                "pool_type": "avg",
            },
            "text_cfg": {
                "context_length": CONTEXT,
                "vocab_size": len(SPECIAL) + len(vocabulary()),
                # open_clip reads the tokenizer from the folder itself when this is set at all.
                "hf_tokenizer_name": "tiny-clip",
                "width": 96,
                "heads": 3,
                "layers": 2,
                "mlp_ratio": 2.0,
                "pool_type": "eos",
                "eos_id": END,
                "pad_id": PAD,
            },
        },
        "preprocess_cfg": {
            "size": [SIDE, SIDE],
            "mode": "RGB",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "interpolation": "bicubic",
            "resize_mode": "shortest",
            "fill_color": 0,
        },
    }


def new_clip() -> nn.Module:
    """An untrained model; torch's random state fixes its weights."""
    from open_clip import CLIP

    return CLIP(**clip_config()["model_cfg"])  # type: ignore[no-any-return]


def build_clip_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the shop's captions; every other word is ``<unk>``, punctuation is dropped.

    Any UTF-8 text can be encoded; one without a single word is the end marker alone.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate((*SPECIAL, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # Hyphenated words are one word in the shop's vocabulary; a hyphen at the edge of a word is punctuation.
    between_words = r"[^\p{L}\p{M}\p{N}-]+|(?<![\p{L}\p{M}\p{N}])-+|-+(?![\p{L}\p{N}])"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(between_words), behavior="removed")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        model_max_length=CONTEXT,
        padding_side="right",
    )


def save_clip(model: nn.Module, folder: Path) -> None:
    """Write what open_clip's ``local-dir:`` schema reads: config, float16 weights, tokenizer.

    Args:
        model: From :func:`new_clip`, trained or not.
        folder: Made where it is missing.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(clip_config(), indent=2)
    (folder / "open_clip_config.json").write_text(config + "\n", encoding="utf-8")
    # Half the bytes; open_clip copies them into a float32 model, so nothing is computed in half precision.
    weights = {name: value.detach().cpu().half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _WEIGHTS).chmod(0o644)  # safetensors keeps files to their owner; a package is read by everyone
    build_clip_tokenizer().save_pretrained(folder)
    # Transformers 5 names a class that 4.57 does not have; this one reads the same file in both.
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
