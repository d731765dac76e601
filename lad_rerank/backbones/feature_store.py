"""Image features on disk: a catalogue's pictures meet the vision tower once, whatever is asked later."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.features import ImageFeatures
from lad_rerank.backbones.identity import text_digest
from lad_rerank.files import replacing

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class FeatureStore:
    """One safetensors file per picture, in a folder per model and pixel settings.

    Args:
        folder: Root; files go to a subfolder of it.
        model: The model whose features these are; says where they are loaded to.
        settings: What else they depend on, as text: weights, pixel budget, dtype.
    """

    def __init__(self, folder: Path, model: PreTrainedModel, settings: str) -> None:
        self.folder = folder / f"features-{text_digest(settings)}"
        self._model = model

    def get(self, digest: str) -> ImageFeatures | None:
        """Features of the picture with this digest; ``None`` where there are none or they cannot be read."""
        from safetensors import SafetensorError, safe_open

        path = self._path(digest)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt", device=str(self._model.device)) as stored:
                layout = json.loads(stored.metadata()["layout"])
                kind = self._kind(stored.metadata()["kind"])
                fields = {name: _filled(shape, name, stored) for name, shape in layout.items()}
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            logger.warning("Features in %s cannot be read and are made again: %s", path, error)
            return None
        return ImageFeatures(kind, fields)

    def put(self, digest: str, features: ImageFeatures) -> None:
        """Write features; the file appears whole or not at all. A disk that is full is no reason to stop."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        layout = {name: _layout(value, name, tensors) for name, value in features.fields.items()}
        metadata = {"kind": features.kind.__name__, "layout": json.dumps(layout)}
        try:
            with replacing(self._path(digest)) as temporary:
                save_file({name: t.contiguous().cpu() for name, t in tensors.items()}, temporary, metadata)
        except (OSError, SafetensorError) as error:
            logger.warning("Features cannot be kept in %s: %s", self.folder, error)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def _kind(self, name: str) -> type[Any]:
        """The transformers output class of that name, from the model's own module or the common ones."""
        from transformers import modeling_outputs
        from transformers.utils.generic import ModelOutput

        for module in (sys.modules[type(self._model).__module__], modeling_outputs):
            kind = getattr(module, name, None)
            if isinstance(kind, type) and issubclass(kind, ModelOutput):
                return kind
        raise ValueError(f"{name} is no output of {type(self._model).__name__}")


def _layout(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Nesting of a field: a list of layouts, or ``None`` for a tensor, which is put into ``tensors``."""
    if isinstance(value, (list, tuple)):
        return [_layout(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    tensors[name] = value
    return None


def _filled(layout: Any, name: str, stored: Any) -> Any:
    """A field from its layout and the stored tensors."""
    if layout is None:
        return stored.get_tensor(name)
    return [_filled(item, f"{name}.{i}", stored) for i, item in enumerate(layout)]
