"""What a model can do, read from signatures and configurations; nothing here goes by a model's name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.answers import shows_images
from lad_rerank.errors import BackboneError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

TYPE_IDS = ("mm_token_type_ids", "token_type_ids")
"""Per-token inputs that mark visual tokens with a 1; which one a model takes depends on its family."""


@dataclass(frozen=True)
class Traits:
    """Abilities of a loaded model.

    Attributes:
        image_token_id: Placeholder id that stands for one visual token; ``None`` where the model reads texts only.
        marked_ids: All ids that the per-token type inputs mark as belonging to an image; more than the
            placeholder for some (Molmo 2's row marks).
        cache_keyword: Forward argument for kept keys and values (renamed in transformers 5.24).
        wants_mask: Whether a mask must be given even where nothing is masked: before 5.24 some families
            take three-dimensional positions for packed sequences without one, or size it wrongly.
        keeps_logits: Whether forward takes ``logits_to_keep``; without it every position's are made.
        type_ids: Forward arguments among TYPE_IDS.
        rope_index: Whether positions are three-dimensional (M-RoPE) and asked of the model.
        encoder_outputs: Whether forward takes image features in place of pixels (transformers 5.18).
        keeps_prefix: Whether keys and values can be kept at all: no linear-attention or convolution layer.
    """

    image_token_id: int | None
    marked_ids: tuple[int, ...]
    cache_keyword: str
    wants_mask: bool
    keeps_logits: bool
    type_ids: tuple[str, ...]
    rope_index: bool
    encoder_outputs: bool
    keeps_prefix: bool


def read_traits(model: PreTrainedModel, processor: ProcessorMixin | PreTrainedTokenizerBase) -> Traits:
    """Read a model's traits.

    Args:
        model: The loaded model.
        processor: Its processor; with a mere tokenizer the model reads texts only.

    Raises:
        BackboneError: Images do not enter the decoder's self-attention, or nothing says which token they are.
    """
    config: Any = model.config
    text = config.get_text_config()
    if getattr(text, "cross_attention_layers", None) or getattr(config, "is_encoder_decoder", False):
        raise BackboneError(
            f"{type(model).__name__} shows images to its decoder by cross-attention: they have no position in the "
            "prompt whose attention could be read. Choose a model that puts image tokens into the prompt."
        )
    named = (getattr(config, "image_token_id", None), getattr(config, "image_token_index", None))
    candidates = (*named, getattr(processor, "image_token_id", None)) if shows_images(processor) else ()
    image_token_id = next((int(i) for i in candidates if i is not None), None)
    if shows_images(processor) and image_token_id is None:
        raise BackboneError(f"{type(model).__name__} does not say which token stands for its images.")
    parameters = inspect.signature(model.forward).parameters
    kinds = set(getattr(text, "layer_types", None) or ())
    return Traits(
        image_token_id=image_token_id,
        marked_ids=()
        if image_token_id is None
        else tuple({image_token_id, *(getattr(processor, "image_token_ids", None) or ())}),
        cache_keyword="cache" if "cache" in parameters else "past_key_values",
        wants_mask="cache" not in parameters,
        keeps_logits="logits_to_keep" in parameters,
        type_ids=tuple(name for name in TYPE_IDS if name in parameters),
        rope_index=hasattr(getattr(model, "model", None), "get_rope_index") and _has_mrope(model),
        encoder_outputs="mm_encoder_outputs" in parameters,
        keeps_prefix=kinds <= {"full_attention", "sliding_attention", "chunked_attention"},
    )


def _has_mrope(model: PreTrainedModel) -> bool:
    """Whether the decoder turns by three positions: its configuration or its rotary module says in which shares.

    LLaVA-OneVision-1.5 has ``get_rope_index`` from the file it began as, and plain positions.
    """
    text: Any = model.config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return "mrope_section" in rope or any(hasattr(module, "mrope_section") for module in model.modules())
