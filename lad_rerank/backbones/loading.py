"""Loading a model and its processor or tokenizer, on the right device and in the right type."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.errors import BackboneError, InvalidRequestError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin


def default_device() -> str:
    """The first GPU where there is one, Apple's where there is one, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def load(
    model: str | Path,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **model_kwargs: Any,
) -> tuple[PreTrainedModel, ProcessorMixin | PreTrainedTokenizerBase]:
    """Load a model and its processor from a folder, the hub or a GGUF file.

    A plain language model comes with its tokenizer.

    Args:
        model: Local folder, hub id, or the path of a GGUF file.
        device: Such as ``"cpu"`` or ``"cuda:1"``; see :func:`default_device`.
        dtype: Such as ``"float32"``; bfloat16 on a GPU and float32 elsewhere by default.
        device_map: Passed to transformers, in place of ``device``.
        revision: Hub revision.
        trust_remote_code: Run code that comes with the model. Only ever what the caller says.
        **model_kwargs: Passed to ``from_pretrained`` of the model, such as ``quantization_config``; ``gguf_file``
            names a GGUF file in a folder or on the hub.

    Raises:
        InvalidRequestError: Unknown device or dtype.
        BackboneError: The model cannot be loaded, or only by running code that the caller has not allowed.
        ImportError: It is a GGUF file, and what reads these is not installed.
    """
    import torch
    import transformers

    folder: str | Path = model
    if str(model).endswith(".gguf") and Path(model).expanduser().is_file():
        folder = Path(model).expanduser().parent
        model_kwargs["gguf_file"] = Path(model).name
    elif (Path(model).is_absolute() or str(model).startswith((".", "~"))) and not Path(model).expanduser().is_dir():
        raise BackboneError(f"There is no folder {model} to load a model from.")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if "gguf_file" in model_kwargs and missing:
        raise ImportError(f'GGUF files need {" and ".join(missing)}: pip install "lad-rerank[gguf]".')
    try:
        place = torch.device(device or default_device())
    except RuntimeError as error:
        raise InvalidRequestError(f"device={device!r} is no device torch knows; say 'cpu' or 'cuda'.") from error
    if dtype is None:
        dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    elif isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise InvalidRequestError(f"dtype={dtype!r} is no type torch knows; say 'float32' or 'bfloat16'.")
    hub: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        if "gguf_file" in model_kwargs:
            auto_class: Any = transformers.AutoModelForCausalLM
            processor_class: Any = transformers.AutoTokenizer
            hub["gguf_file"] = model_kwargs.pop("gguf_file")
        else:
            auto_class, processor_class = _auto_classes(folder, revision, trust_remote_code)
        processor = processor_class.from_pretrained(folder, **hub)
        loaded = auto_class.from_pretrained(
            folder, dtype=dtype, device_map=device_map, attn_implementation="sdpa", **hub, **model_kwargs
        )
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        raise BackboneError(f"Cannot load the model {str(model)!r}: {error}") from error
    except ImportError as error:
        if not trust_remote_code:
            raise
        raise BackboneError(
            f"The code that comes with {str(model)!r} does not run with transformers {transformers.__version__}: "
            f"{error} If it was written for an older release (LLaVA-OneVision-1.5 was: transformers<5), install that."
        ) from error
    # Quantised models and those with a device map are where they belong already.
    if device_map is None and getattr(loaded, "quantization_method", None) is None:
        try:
            loaded = loaded.to(place)
        except (RuntimeError, AssertionError) as error:
            raise BackboneError(f"Cannot put the model {str(model)!r} on {place}: {error}") from error
    return loaded.eval(), processor


def _auto_classes(model: str | Path, revision: str | None, trust_remote_code: bool) -> tuple[Any, Any]:
    """The auto classes that load a model and its processor.

    Those of language models for what is no multimodal model, and where a model's own code offers no better.

    Raises:
        BackboneError: transformers does not know the model, its own code is needed, and is not trusted.
    """
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoProcessor,
        AutoTokenizer,
        PretrainedConfig,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    settings, _ = PretrainedConfig.get_config_dict(model, revision=revision)
    own, model_type = settings.get("auto_map") or {}, settings.get("model_type")
    offers_images = AutoModelForImageTextToText.__name__ in own
    if model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText, AutoProcessor
    # Some language models that transformers knows come with older code of their own all the same.
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not offers_images and not (own and trust_remote_code):
        return AutoModelForCausalLM, AutoTokenizer
    if not own:
        return AutoModelForImageTextToText, AutoProcessor
    if not trust_remote_code:
        raise BackboneError(
            f"{str(model)!r} needs remote code: this transformers does not know its model_type "
            f"{model_type!r}, only the Python files that come with it do. They can do anything on "
            "your machine. Read them, then pass trust_remote_code=True (and a revision, so that they stay the same)."
        )
    return AutoModelForImageTextToText if offers_images else AutoModelForCausalLM, AutoProcessor
