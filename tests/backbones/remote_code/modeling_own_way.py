"""A small model with LLaVA-OneVision-1.5's habits, none of which a backbone may stumble over.

A class for each attention implementation, chosen when the model is made, past the AttentionInterface; keys
repeated before SDPA is called; no mask where plain causal attention will do; a vision tower that calls SDPA
too; plain positions, whatever positions it is given, beside a ``get_rope_index`` that does not even run; no
``logits_to_keep``; loads as a causal language model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_own_way import OwnWayConfig, OwnWayTextConfig

PATCH_VALUES = 3 * 2 * 14 * 14
MERGED = 4


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions over the whole head."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device).float() / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = (torch.cat([f, f], dim=-1) for f in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class OwnWayAttention(nn.Module):
    def __init__(self, config: OwnWayTextConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim)
        self.k_norm = nn.RMSNorm(config.head_dim)

    def states(self, hidden: torch.Tensor, positions: torch.Tensor, past_key_value: Any) -> tuple[torch.Tensor, ...]:
        shape = (*hidden.shape[:2], -1, self.head_dim)
        query = rotated(self.q_norm(self.q_proj(hidden).view(shape)).transpose(1, 2), positions)
        key = rotated(self.k_norm(self.k_proj(hidden).view(shape)).transpose(1, 2), positions)
        value = self.v_proj(hidden).view(shape).transpose(1, 2)
        if past_key_value is not None:
            key, value = past_key_value.update(key, value, self.layer_idx)
        return query, key.repeat_interleave(self.groups, dim=1), value.repeat_interleave(self.groups, dim=1)

    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, past_key_value: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.states(hidden, positions, past_key_value)
        scores = query @ key.transpose(2, 3) * self.head_dim**-0.5
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(dim=-1)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2)), weights


class OwnWaySdpaAttention(OwnWayAttention):
    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, past_key_value: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.states(hidden, positions, past_key_value)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None and hidden.shape[1] > 1
        )
        return self.o_proj(output.transpose(1, 2).flatten(2)), None


ATTENTION_CLASSES = {"eager": OwnWayAttention, "sdpa": OwnWaySdpaAttention}


class OwnWayLayer(nn.Module):
    def __init__(self, config: OwnWayTextConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = ATTENTION_CLASSES[config._attn_implementation](config, layer_idx)
        self.mlp = nn.Sequential(nn.Linear(config.hidden_size, 96), nn.SiLU(), nn.Linear(96, config.hidden_size))
        self.norm1 = nn.RMSNorm(config.hidden_size)
        self.norm2 = nn.RMSNorm(config.hidden_size)


class OwnWayPreTrainedModel(PreTrainedModel):
    config_class = OwnWayConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        """The tests give it weights of their own."""


class OwnWayTextModel(OwnWayPreTrainedModel):
    config_class = OwnWayTextConfig

    def __init__(self, config: OwnWayTextConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([OwnWayLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size)
        self.post_init()

    def forward(
        self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None, past_key_values: Any
    ) -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]:
        hidden, fed = inputs_embeds, inputs_embeds.shape[1]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        positions = torch.arange(past, past + fed, device=hidden.device)
        visible = torch.arange(past + fed, device=hidden.device) <= positions[:, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()
        mask = None
        eager = self.config._attn_implementation == "eager"
        if eager or (past and fed > 1) or (attention_mask is not None and not attention_mask.all()):
            mask = torch.zeros(visible.shape, dtype=hidden.dtype).masked_fill(~visible, torch.finfo(hidden.dtype).min)
        maps: tuple[torch.Tensor | None, ...] = ()
        for layer in self.layers:
            attended, weights = layer.self_attn(layer.norm1(hidden), mask, positions, past_key_values)
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.norm2(hidden))
            maps += (weights,)
        return self.norm(hidden), maps


class OwnWayVision(nn.Module):
    """Patches that see each other, four to a visual token."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.patch = nn.Linear(PATCH_VALUES, 32)
        self.merge = nn.Linear(32 * MERGED, hidden_size)

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> torch.Tensor:
        images = self.patch(pixel_values).split(image_grid_thw.prod(dim=1).tolist())
        seen = [x + F.scaled_dot_product_attention(*(x[None, None],) * 3)[0, 0] for x in images]
        merged: torch.Tensor = self.merge(torch.cat(seen).view(-1, 32 * MERGED))
        return merged


class OwnWayModel(OwnWayPreTrainedModel):
    def __init__(self, config: OwnWayConfig) -> None:
        super().__init__(config)
        self.visual = OwnWayVision(config.text_config.hidden_size)
        self.language_model = OwnWayTextModel._from_config(config.text_config)
        self.post_init()

    def get_rope_index(self, *args: Any, **kwargs: Any) -> None:
        raise AttributeError("left over from the file this one began as")


class OwnWayForConditionalGeneration(OwnWayPreTrainedModel):
    def __init__(self, config: OwnWayConfig) -> None:
        super().__init__(config)
        self.model = OwnWayModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.language_model.embed_tokens

    def get_decoder(self) -> nn.Module:
        return self.model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        embedded = self.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            features = self.model.visual(pixel_values, image_grid_thw)
            embedded = embedded.masked_scatter((input_ids == self.config.image_token_id)[..., None], features)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        hidden, maps = self.model.language_model(embedded, attention_mask, past_key_values)
        return CausalLMOutputWithPast(
            logits=self.lm_head(hidden),
            past_key_values=past_key_values,
            attentions=maps if output_attentions else None,
        )
