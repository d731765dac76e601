"""What one eager forward says of candidates side by side: all tokens in a row, explicit mask and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.answers import render
from lad_rerank.backbones.decoder import FULL
from lad_rerank.backbones.preparing import TEXT_INPUTS
from lad_rerank.backbones.set_backbone import SetBackbone
from lad_rerank.contents import Showable, as_contents, kind_of
from lad_rerank.records import Observation
from tests.backbones.tiny.peaked import decoder_attentions

BOTH_WAYS = {"gemma3", "molmo2"}
"""Families in which the tokens of an image see each other both ways."""


def in_one_forward(backbone: SetBackbone, query: str, candidates: Sequence[Showable]) -> Observation:
    """Attention of one forward pass, pixels and all, with nothing kept and nothing run apart.

    Every decoder attention module is given a mask of all tokens by all tokens, whatever the model made itself.
    """
    inner, contents = backbone.arranged("sequence"), as_contents(candidates)
    model: Any = inner._model
    prefix = backbone.encoder.prefix
    blocks = [backbone.blocks.encoded(content) for content in contents]
    suffix = backbone.encoder.suffix(query, len(contents), kind_of(contents))
    ids = [*prefix, *(token for block in blocks for token in block.ids), *suffix.ids]
    owner = [-1] * len(prefix) + [i for i, block in enumerate(blocks) for _ in block.ids] + [-2] * len(suffix.ids)
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    marked = torch.isin(inputs["input_ids"], torch.tensor(inner._traits.marked_ids, dtype=torch.long))
    places = [_places(backbone, [*prefix, *block.ids, *suffix.ids], block) for block in blocks]
    ends = [p[..., : len(prefix) + len(b.ids)].max() + 1 for p, b in zip(places, blocks, strict=True)]
    start, last = len(prefix), torch.arange(len(suffix.ids)) + max(ends)
    own = [p[..., start : start + len(block.ids)] for p, block in zip(places, blocks, strict=True)]
    shape = places[0].shape[:-1]
    inputs["position_ids"] = torch.cat([places[0][..., :start], *own, last.expand(*shape, -1)], dim=-1)
    for name in inner._traits.type_ids:
        inputs[name] = marked.long()
    if inner._traits.wants_mask:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    pictures = [content.image for content in contents if content.image is not None]
    if pictures:
        assert inner._encoder.preparer is not None
        text = render(inner._processor, ((True, False),) * len(pictures), "digits")
        processed = inner._encoder.preparer.process(text, pictures)
        inputs |= {name: value for name, value in processed.items() if name not in TEXT_INPUTS}
    masks = _masks(model, torch.tensor(owner), inputs["position_ids"], marked[0] & (inner.name in BOTH_WAYS))
    hooks = [
        module.register_forward_pre_hook(_with_mask(mask), with_kwargs=True)
        for module, mask in zip(decoder_attentions(model), masks, strict=True)
    ]
    attention_tap.select(model, "eager")
    try:
        with torch.inference_mode():
            attentions = model(**inputs, output_attentions=True, use_cache=False).attentions
    finally:
        attention_tap.select(model, attention_tap.TAP_NAME)
        for hook in hooks:
            hook.remove()
    maps = torch.stack([attentions[layer][0] for layer in backbone.identity.layers])
    spans, at = [], start
    for block in blocks:
        spans.append([at + i for i in block.span])
        at += len(block.ids)
    rows = {"last": [len(ids) - 1], "query": [at + i for i in suffix.query]}
    return Observation(
        log_probs=np.full(len(contents), -np.log(len(contents))),
        attention={
            name: torch.stack([maps[:, :, r][..., s].sum(-1).mean(-1) for s in spans], -1).double().numpy()
            for name, r in rows.items()
        },
        layers=backbone.identity.layers,
        label_mass=0.0,
        prompt_tokens=len(ids),
        peaks={
            name: torch.stack([maps[:, :, r][..., s].amax(-1).mean(-1) for s in spans], -1).double().numpy()
            for name, r in rows.items()
        },
        lengths=tuple(map(len, spans)),
    )


def _places(backbone: SetBackbone, ids: list[int], block: Any) -> torch.Tensor:
    """Positions of a prompt that shows one candidate alone."""
    inner: Any = backbone.arranged("sequence")
    if not inner._traits.rope_index:
        return torch.arange(len(ids))[None]
    if block.image is None:
        return torch.arange(len(ids)).expand(3, 1, -1)
    tokens = torch.tensor([ids])
    more = {"mm_token_type_ids": (tokens == inner._traits.image_token_id).int()}
    taken = more if "mm_token_type_ids" in inner._traits.type_ids else {}
    places: torch.Tensor = inner._model.model.get_rope_index(
        tokens, image_grid_thw=block.image.inputs["image_grid_thw"], attention_mask=torch.ones_like(tokens), **taken
    )[0]
    return places


def _masks(model: Any, owner: torch.Tensor, places: torch.Tensor, both_ways: torch.Tensor) -> list[torch.Tensor]:
    """The additive (1, 1, T, T) mask of each decoder layer."""
    count = torch.arange(len(owner))
    asks = owner[:, None]
    seen = (count[:, None] >= count) & ((owner == -1) | (asks == -2) | (asks == owner))
    same_image = both_ways[:, None] & both_ways & (asks == owner)
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or [FULL] * text.num_hidden_layers
    position = places.reshape(-1, len(owner))[0]
    near = position[:, None] - position < (getattr(text, "sliding_window", None) or 2**30)
    return [
        torch.where((seen if kind == FULL else seen & near) | same_image, 0.0, torch.finfo(torch.float32).min)[
            None, None
        ]
        for kind in kinds
    ]


def _with_mask(mask: torch.Tensor) -> Any:
    def replaced(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        assert "attention_mask" in kwargs
        return args, kwargs | {"attention_mask": mask}

    return replaced
