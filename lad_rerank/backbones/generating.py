"""Text that a model writes about its candidates, through transformers' own ``generate``."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.batching import batches, each, halving
from lad_rerank.errors import InvalidRequestError, PromptTooLongError

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

    from lad_rerank.backbones.encoding import EncodedPrompt
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone
    from lad_rerank.contents import Showable

_ONE_AT_A_TIME = threading.Lock()
"""Sampling draws from torch's global generator, and older M-RoPE models keep their offset on the module."""


def generate(
    backbone: HuggingFaceBackbone,
    query: str,
    contents: Sequence[Showable],
    *,
    max_new_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """Let the model write freely behind the prompt that shows the candidates in this order.

    What is written follows from the model's raw logits alone: nothing of the checkpoint's generation settings
    (repetition penalties, top-k, banned words) is used but the tokens that end an answer.

    Args:
        backbone: The model.
        query: One line of text.
        contents: At least two contents or RGB pictures.
        max_new_tokens: Tokens written at most; less where the context ends before.
        samples: How many texts; more than one only with a temperature.
        temperature: 0 always takes the likeliest token; otherwise tokens are drawn from the whole vocabulary.
        seed: Of the draws. The caller's own torch generators are left as they were.

    Returns:
        The texts, without special tokens.

    Raises:
        InvalidRequestError: A number is out of range, or several samples without a temperature.
        PromptTooLongError: The context has no room for an answer.
        BackboneError: The processor did not do what it must.
    """
    import torch

    if max_new_tokens < 1 or samples < 1:
        raise InvalidRequestError(f"max_new_tokens and samples must be at least 1, got {max_new_tokens} and {samples}.")
    if temperature < 0 or (samples > 1 and temperature == 0):
        raise InvalidRequestError(f"{samples} samples at temperature {temperature}: several need one above 0.")
    prompt = _unforced(backbone.encode(query, contents))
    room = max_new_tokens if backbone._context is None else min(max_new_tokens, backbone._context - prompt.length)
    if room < 1:
        raise PromptTooLongError(f"The prompt has {prompt.length} tokens and leaves no room for an answer.")
    ends = _ends(backbone, prompt)
    # A copy of the module's shell, its weights shared: with settings of its own it hides the checkpoint's, and no
    # other thread sees them.
    writer: Any = copy.copy(backbone._model)
    writer.generation_config = config = _config(backbone, room, temperature, ends)

    def write(some: Sequence[int]) -> list[str]:
        written = writer.generate(**_inputs(backbone, prompt, len(some)), generation_config=config)
        return [_text(backbone, row[prompt.length :].tolist(), ends) for row in written]

    with torch.inference_mode(), _ONE_AT_A_TIME, _seeded(seed, writer.device):
        if prompt.inputs is not None:
            # Pixels are not made ready for several prompts at once.
            return each(range(samples), write)
        return [text for some in batches(range(samples), backbone._batch_size) for text in halving(some, write)]


def _unforced(prompt: EncodedPrompt) -> EncodedPrompt:
    """The prompt without the beginning that all labels share: the model is free to begin otherwise."""
    return replace(prompt, ids=prompt.ids[: prompt.length - len(prompt.answer.forced)])


def _inputs(backbone: HuggingFaceBackbone, prompt: EncodedPrompt, copies: int) -> dict[str, Any]:
    """What the model is given for a batch of one prompt."""
    import torch

    inputs, _, _ = backbone._passes._whole_inputs([prompt] * copies, [backbone.features(prompt)] * copies)
    # Left out, it is guessed from padding tokens, which some templates write into prompts.
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "position_ids" in inputs and backbone._traits.wants_mask:
        # Before 5.24 generate cuts positions as if they were two-dimensional; left to itself it makes its own.
        del inputs["position_ids"]
        if prompt.images:
            grids = [image.inputs["image_grid_thw"] for image in prompt.images]
            inputs["image_grid_thw"] = torch.cat(grids * copies).to(inputs["input_ids"].device)
    return inputs


def _ends(backbone: HuggingFaceBackbone, prompt: EncodedPrompt) -> frozenset[int]:
    """Tokens that end an answer."""
    model: Any = backbone._model
    own = getattr(model.generation_config, "eos_token_id", None)
    listed = own if isinstance(own, list) else [own]
    return frozenset(
        int(i) for i in (*listed, backbone._encoder.tokenizer.eos_token_id, prompt.answer.end) if i is not None
    )


def _config(
    backbone: HuggingFaceBackbone, max_new_tokens: int, temperature: float, ends: frozenset[int]
) -> GenerationConfig:
    from transformers import GenerationConfig

    pad = backbone._encoder.tokenizer.pad_token_id
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=min(ends) if pad is None else pad,
        **(sampling or {"do_sample": False}),
    )


def _text(backbone: HuggingFaceBackbone, tokens: Sequence[int], ends: frozenset[int]) -> str:
    """What was written before the answer's end."""
    stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return str(backbone._encoder.tokenizer.decode(tokens[:stop], skip_special_tokens=True))


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, and put them back behind."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
