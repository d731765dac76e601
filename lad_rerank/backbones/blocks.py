"""One candidate's keys and values: as the model uses them, and packed as they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

BlockDtype: TypeAlias = Literal["model", "bfloat16", "int8"]
"""How a candidate's keys and values are kept: as they are, rounded, or as whole numbers with scales."""

Layers: TypeAlias = "tuple[tuple[torch.Tensor, torch.Tensor], ...]"
"""(key, value) of each decoder layer, each (1, Hk, T, D)."""

INT8 = 127


@dataclass(frozen=True)
class BlockFacts:
    """What is known of a block beside its keys and values.

    Attributes:
        span: Which of its tokens count as the candidate's own, ascending.
        end: Position id behind its largest one.
        cut: Tokens of its text that were cut off.
    """

    span: tuple[int, ...]
    end: int
    cut: int


@dataclass(frozen=True)
class Block:
    """One candidate behind the prefix, as it was run; the prefix's keys and values are not among these.

    Attributes:
        layers: Its T keys and values in every decoder layer.
        facts: What else is known of it.
    """

    layers: Layers
    facts: BlockFacts

    @property
    def tokens(self) -> int:
        """T, all of its tokens."""
        return int(self.layers[0][0].shape[2])


@dataclass(frozen=True)
class PackedBlock:
    """A block as it is kept.

    Attributes:
        tensors: ``k0``, ``v0`` and so on by layer; with int8 also their scales, ``k0s``, ``v0s``.
        facts: What else is known of it.
    """

    tensors: dict[str, torch.Tensor]
    facts: BlockFacts

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())


def pack(block: Block, dtype: BlockDtype) -> PackedBlock:
    """Pack a block.

    With int8 every channel (of a layer and a head) is scaled by its largest magnitude over the block's tokens.
    """
    tensors: dict[str, Any] = {}
    for i, pair in enumerate(block.layers):
        for side, tensor in zip("kv", pair, strict=True):
            name = f"{side}{i}"
            if dtype == "int8":
                tensors[name], tensors[f"{name}s"] = _whole_numbers(tensor)
            else:
                tensors[name] = tensor if dtype == "model" else tensor.bfloat16()
    return PackedBlock(tensors, block.facts)


def moved(packed: PackedBlock, like: Layers) -> PackedBlock:
    """A packed block on the devices of these layers, so that it need not travel at every use."""
    devices = {
        f"{side}{i}": tensor.device for i, pair in enumerate(like) for side, tensor in zip("kv", pair, strict=True)
    }
    tensors = {name: t.to(devices.get(name.removesuffix("s"), t.device)) for name, t in packed.tensors.items()}
    return PackedBlock(tensors, packed.facts)


def unpack(packed: PackedBlock, like: Layers) -> Block:
    """Unpack a block.

    Args:
        packed: The block as it was kept.
        like: Keys and values whose devices and types are wanted.

    Raises:
        ValueError: They are not of this model's layers, heads or sizes.
    """
    tensors = packed.tensors
    layers = []
    for i, pair in enumerate(like):
        both = []
        for side, model in zip("kv", pair, strict=True):
            tensor, scale = tensors.get(f"{side}{i}"), tensors.get(f"{side}{i}s")
            if tensor is None or tensor.dim() != 4 or _without_tokens(tensor) != _without_tokens(model):
                raise ValueError(f"{side}{i} does not fit the model")
            tensor = tensor.to(model.device)
            if scale is not None:
                tensor = tensor.to(model.dtype) * scale.to(model.device, model.dtype)
            both.append(tensor.to(model.dtype))
        layers.append((both[0], both[1]))
    lengths = {t.shape[2] for pair in layers for t in pair}
    if len(lengths) != 1 or len(tensors) not in (2 * len(like), 4 * len(like)):
        raise ValueError("the layers do not fit each other")
    if not packed.facts.span or not 0 <= packed.facts.span[0] <= packed.facts.span[-1] < lengths.pop():
        raise ValueError("the candidate's own tokens are not among its tokens")
    return Block(tuple(layers), packed.facts)


def joined(prefix: Layers, blocks: Sequence[Block], batch: int) -> Any:
    """A new cache of the prefix and, behind it, all blocks, for each question of a batch."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    for i, own in enumerate(prefix):
        # Expanded views: the first update of the cache concatenates, so nothing kept is written to.
        key, value = (
            torch.cat([own[side], *(b.layers[i][side] for b in blocks)], dim=2).expand(batch, -1, -1, -1)
            for side in (0, 1)
        )
        cache.update(key, value, i)
    return cache


def _without_tokens(tensor: torch.Tensor) -> tuple[int, ...]:
    return (*tensor.shape[:2], *tensor.shape[3:])


def _whole_numbers(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers, and the float32 scale of each channel (1, Hk, 1, D)."""
    import torch

    values = tensor.float()
    scale = values.abs().amax(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / INT8
    return (values / scale).round().to(torch.int8), scale
