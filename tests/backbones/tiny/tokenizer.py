"""A byte-level BPE tokenizer made in memory: 256 bytes, a few merges, and a family's added tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORD_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words with their leading space, digits one by one: the way Qwen2, Llama 3 and others cut text."""

MERGED_PAIRS = ("th", "he", "in", "an", "er", "re", "on", "at", "or", "es", "ar", "te", "st", "ou", "le")


def make_tokenizer(
    special: Sequence[str],
    *,
    eos: str,
    pad: str,
    bos: str | None = None,
    plain: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    writes_bos: bool = False,
    family_class: str = "",
) -> PreTrainedTokenizerFast:
    """Build a tokenizer in which literal text of any added token becomes that token's id.

    Digits are one token each, wherever they stand. A letter and a letter behind a space are one token each, and
    differ. Every other byte has a token, so that no text is unknown.

    Args:
        special: Added tokens marked special, in the order of their ids.
        eos: Which of them ends an answer.
        pad: Which of them pads.
        bos: Which of them begins a text, if any.
        plain: Added tokens that are not special, such as ``<tool_call>`` in Qwen's.
        family_class: Tokenizer class that the family's processor insists on in transformers 4.
        named: Attributes that the family's processor asks its tokenizer for, such as ``image_token``.
        writes_bos: Whether the tokenizer itself puts ``bos`` before a text, as those of Gemma and Mistral do.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "Ġ"
    merges = [(space, letter) for letter in ascii_letters]
    merges += [(pair[0], pair[1]) for pair in MERGED_PAIRS]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *("".join(m) for m in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
    if writes_bos:
        assert bos is not None
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    roles = {"eos_token": eos, "pad_token": pad} | ({} if bos is None else {"bos_token": bos})
    # The processors of transformers 4 insist on their family's class.
    old = int(transformers.__version__.split(".")[0]) < 5
    tokenizer_class = getattr(transformers, family_class) if old and family_class else PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = tokenizer_class(
        tokenizer_object=backend,
        extra_special_tokens=dict(named or {}),
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        **roles,
    )
    others = [token for token in special if token not in tokenizer.all_special_tokens]
    tokenizer.add_special_tokens({"additional_special_tokens": others})
    return tokenizer
