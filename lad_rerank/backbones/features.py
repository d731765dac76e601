"""Image features, made once per image and given to the decoder in place of pixels."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

CONSTANT_FIELDS = frozenset({"visual_indicator_features"})
"""Features that are the same for every image (Ovis2's indicator tokens)."""
LEVEL_FIELDS = frozenset({"deepstack_features"})
"""Lists over decoder levels, each a list over images (Qwen3-VL)."""


@dataclass(frozen=True)
class ImageFeatures:
    """What the vision tower says of one image.

    Attributes:
        kind: The transformers output class that carries it.
        fields: ``pooler_output`` and the like: tensors, or (nested) lists of tensors.
    """

    kind: type[Any]
    fields: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Visual tokens they are for."""
        return sum(t.numel() // t.shape[-1] for t in _tensors(self.fields["pooler_output"]))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in _tensors(list(self.fields.values())))


def image_features(model: PreTrainedModel, inputs: Mapping[str, Any]) -> ImageFeatures:
    """Run the vision tower over one image.

    Args:
        model: The multimodal model.
        inputs: The image processor's tensors for this image, on the model's device.
    """
    get: Any = model.get_image_features
    taken = inspect.signature(get).parameters
    output = get(**{name: value for name, value in inputs.items() if name in taken}, return_dict=True)
    fields = {
        name: value
        for name, value in output.items()
        if name == "pooler_output" or name.endswith("_features")
        if value is not None
    }
    return ImageFeatures(type(output), fields)


def on_device(model: PreTrainedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A processor's tensors where the model is, floating point ones in its type."""
    return {
        name: value.to(model.device, dtype=model.dtype if value.is_floating_point() else None)
        for name, value in tensors.items()
    }


def merged(features: Sequence[ImageFeatures]) -> Any:
    """The output the vision tower would have given for all of these images at once."""
    first = features[0]
    return first.kind(**{name: _join(name, [f.fields[name] for f in features]) for name in first.fields})


def _join(name: str, values: list[Any]) -> Any:
    import torch

    if name in CONSTANT_FIELDS:
        return values[0]
    if name in LEVEL_FIELDS:
        return [[image for value in values for image in value[level]] for level in range(len(values[0]))]
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values, dim=0)
    return [image for value in values for image in value]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    else:
        yield value
