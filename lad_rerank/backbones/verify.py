"""Is this model, on this machine, read correctly? A few passes over a tiny prompt tell."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.label_scoring import LOW_LABEL_MASS
from lad_rerank.contents import Content, as_contents
from lad_rerank.errors import AttentionNotSeenError, BackboneError
from lad_rerank.records import Observation

if TYPE_CHECKING:
    from PIL.Image import Image

    from lad_rerank.backbones.huggingface import HuggingFaceBackbone

logger = logging.getLogger(__name__)

QUERIES = ("a red square", "a photo of something blue, seen from far away")
TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 0.25}
"""Largest difference, in nats or in attention, that rounding in all layers before explains. What is read
wrongly is off by more: two rows of attention hardly ever agree to a quarter."""


def verify_backbone(backbone: HuggingFaceBackbone) -> None:
    """Check a backbone and switch off what does not hold for its model.

    - Cached image features give what pixels give; else features are not used.
    - A kept prefix gives what a full pass gives; else prefixes are not kept.
    - The tap reads what eager attention says; else the model is refused.
    - The labels carry probability; else a warning names what the model would rather say.

    Raises:
        AttentionNotSeenError: The rows that are read are not the model's attention.
        BackboneError: The model does not tell three different candidates apart at all.
    """
    candidates = examples(backbone)
    tolerance = TOLERANCE.get(backbone.identity.dtype, 0.25)
    backbone.uses_prefix, prefix = False, backbone.uses_prefix
    backbone.uses_features, features = False, backbone.uses_features
    try:
        plain = [backbone.observe(query, candidates) for query in QUERIES]
        if features:
            backbone.uses_features = True
            backbone.uses_features = _agrees("image features", backbone, candidates, plain, tolerance)
        if prefix:
            backbone.uses_prefix = True
            backbone.uses_prefix = _agrees("kept prefixes", backbone, candidates, plain, tolerance)
        _check_against_eager(backbone, candidates, plain[0], tolerance)
        _check_labels(backbone, plain)
    finally:
        backbone.forget()


def examples(backbone: HuggingFaceBackbone) -> list[Content]:
    """Three candidates that no model takes for one another: pictures, if it can be shown any."""
    if not backbone.reads_images:
        return [Content.of(text=text) for text in ("a red square", "two blue circles", "a photo of a green field")]
    return as_contents(_pictures())


def _pictures() -> list[Image]:
    from PIL import Image, ImageDraw

    pictures = []
    for colour, corner in (("red", 8), ("blue", 24), ("green", 40)):
        picture = Image.new("RGB", (96, 96), "white")
        ImageDraw.Draw(picture).rectangle((corner, corner, corner + 40, corner + 40), fill=colour)
        pictures.append(picture)
    return pictures


def _difference(a: Observation, b: Observation) -> float:
    return max(
        float(np.abs(a.log_probs - b.log_probs).max()),
        *(float(np.abs(a.attention[row] - b.attention[row]).max()) for row in a.attention),
    )


def _agrees(
    what: str,
    backbone: HuggingFaceBackbone,
    candidates: Sequence[Content],
    plain: Sequence[Observation],
    tolerance: float,
) -> bool:
    """Whether a short cut gives what plain passes gave; a failure of the short cut itself counts as no."""
    try:
        short = [backbone.observe(query, candidates) for query in QUERIES]
        difference = max(_difference(a, b) for a, b in zip(short, plain, strict=True))
    except Exception as error:
        # Whatever goes wrong in a short cut that nobody has to take is no reason to refuse the model.
        logger.info("%s: %s are not used (%s: %s).", backbone.name, what, type(error).__name__, error)
        return False
    if difference > tolerance:
        logger.info("%s: %s are not used, they are off by %.2g.", backbone.name, what, difference)
    return difference <= tolerance


def _check_against_eager(
    backbone: HuggingFaceBackbone, candidates: Sequence[Content], seen: Observation, tolerance: float
) -> None:
    """Compare the tapped rows with the model's own eager attention, where it has one."""
    import torch

    model: Any = backbone._model
    if model.config.get_text_config()._attn_implementation != attention_tap.TAP_NAME:
        # It has a class for each implementation, chosen when it was loaded.
        logger.info("%s calls SDPA itself; its own eager attention is not compared with what is read.", backbone.name)
        return
    prompt = backbone.encode(QUERIES[0], candidates)
    try:
        attention_tap.select(model, "eager")
        with torch.inference_mode():
            maps = backbone._passes.attentions(prompt, backbone.features(prompt))
    except (ValueError, RuntimeError, TypeError, NameError) as error:
        logger.info("%s has no working eager attention to compare with: %s", backbone.name, error)
        return
    finally:
        attention_tap.select(model, attention_tap.TAP_NAME)
    if maps is None or len(maps) <= max(seen.layers):
        return
    for i, layer in enumerate(seen.layers):
        row = maps[layer][0, :, -1].float()
        mass = torch.stack([row[:, list(span)].sum(-1) for span in prompt.spans], dim=-1).cpu().numpy()
        off = float(np.abs(mass - seen.attention["last"][i]).max())
        if off > tolerance:
            raise AttentionNotSeenError(
                f"The attention read from {backbone.name} differs from its eager attention by {off:.2g} in layer "
                f"{layer}: this model computes attention in a way that cannot be read. Please report it."
            )


def _check_labels(backbone: HuggingFaceBackbone, seen: Sequence[Observation]) -> None:
    if all(np.ptp(o.log_probs) == 0 for o in seen):
        raise BackboneError(f"{backbone.name} gives every label the same probability; its weights are not loaded.")
    if max(o.label_mass for o in seen) < LOW_LABEL_MASS:
        logger.warning(
            "%s puts %.2g of its probability on the labels; it would rather say %s. An open <think>, or a base model "
            "without chat training, looks like this.",
            backbone.name,
            max(o.label_mass for o in seen),
            ", ".join(map(repr, _top_tokens(backbone))),
        )


def _top_tokens(backbone: HuggingFaceBackbone, count: int = 5) -> list[str]:
    """What the model would most like to say, as text, for a message."""
    import torch

    with torch.inference_mode():
        (result,) = backbone._runs.whole([backbone.encode(QUERIES[0], examples(backbone))])
    best = np.argsort(-result.logits)[:count]
    return [str(backbone._encoder.tokenizer.decode([int(token)])) for token in best]
