"""SoFA: passes in which candidates see each other in both directions, half-heartedly.

What the source says (Tian et al., "Identifying and Mitigating Position Bias of Multi-image Vision-Language
Models", CVPR 2025, arXiv 2503.13792): causal attention between images is what makes a model depend on their
order, since a later image sees the earlier ones and not the reverse. "SoFt Attention" interpolates linearly
between causal and bidirectional attention *between* images, without training, in every second layer; the factor
sigma is chosen on a small validation set. Xian et al. (ICML 2026), who compare with it, take sigma = 0.5.

What is assumed here, because abstracts and summaries do not settle it:

- Interpolated is the attention after its softmax, ``(1 - sigma) A_causal + sigma A_both``. Attention is linear
  in the values, so this is the same mixture of the two outputs. (The code of Xian et al. does another thing under
  the same name: it lets image tokens see all later image tokens, of their own image too, with ``log sigma`` added
  to their scores, and nothing at all where the model runs without a mask.)
- Inside an image everything stays as the model has it.
- "Every second layer" begins with the first. Counted are layers with full attention: others never see far.
- What is said of images is done to candidates of any kind; the text around them keeps its causal view.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.decoder import full_attention_modules
from lad_rerank.errors import BackboneError, InvalidRequestError
from lad_rerank.records import Observation

if TYPE_CHECKING:
    import torch

    from lad_rerank.backbones.huggingface import HuggingFaceBackbone
    from lad_rerank.contents import Showable

SIGMA = 0.5
"""Share of bidirectional attention; what Xian et al. compare with."""
EVERY = 2
"""One layer of so many is softened."""


def observe_softened(
    backbone: HuggingFaceBackbone,
    query: str,
    contents: Sequence[Showable],
    *,
    sigma: float = SIGMA,
    every: int = EVERY,
) -> Observation:
    """Show candidates in this order, in one forward pass with softened attention between them.

    The read-out rows are those of an ordinary pass: the query and the last token stand behind all candidates and
    see them in either view. Nothing is kept of the pass, and nothing kept of others is used.

    Args:
        backbone: The model.
        query: One line of text.
        contents: At least two contents or RGB pictures.
        sigma: From 0, the ordinary pass, to 1, candidates that see all of each other.
        every: One full-attention layer of so many is softened, the first among them.

    Raises:
        InvalidRequestError: ``sigma`` or ``every`` is out of range.
        BackboneError: The model calls SDPA itself, past the attention function that this replaces.
        PromptTooLongError: The prompt does not fit the context window.
    """
    import torch

    if not 0 <= sigma <= 1:
        raise InvalidRequestError(f"sigma must lie between 0 and 1, got {sigma}.")
    if every < 1:
        raise InvalidRequestError(f"every must be at least 1, got {every}.")
    model: Any = backbone._model
    if model.config.get_text_config()._attn_implementation != attention_tap.TAP_NAME:
        raise BackboneError(f"{backbone.name} calls SDPA itself; its attention cannot be softened.")
    prompt = backbone.encode(query, contents)
    modules = list(full_attention_modules(model).values())[::every]
    with torch.inference_mode(), _softened(modules, prompt.spans, sigma):
        (result,) = backbone._runs.whole([prompt])
        # Labels of several tokens ask for more: behind the kept keys and values, or whole and softened again.
        return backbone._runs.observation(prompt, result, result.kept)


@contextlib.contextmanager
def _softened(modules: Sequence[torch.nn.Module], spans: Sequence[Sequence[int]], sigma: float) -> Iterator[None]:
    """Soften these attention modules, in this context, for single prompts with their candidates at ``spans``."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    chosen = frozenset(map(id, modules)) if sigma > 0 else frozenset()
    between: dict[tuple[int, torch.device], torch.Tensor] = {}

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        plain: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        tokens = key.shape[2]
        # Behind kept keys and values runs only text that follows all candidates: it sees the same in either view.
        if id(module) not in chosen or query.shape[2] < tokens:
            return plain
        place = tokens, key.device
        if place not in between:
            between[place] = _between(spans, *place)
        mask = _opened(attention_mask, between[place])
        both, _ = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        return torch.lerp(plain[0], both, sigma), None

    with attention_tap.attending(attend):
        yield


def _between(spans: Sequence[Sequence[int]], tokens: int, device: torch.device) -> torch.Tensor:
    """(T, T) bool: whether two tokens belong to two different candidates."""
    import torch

    owner = torch.full((tokens,), -1)
    for k, span in enumerate(spans):
        owner[list(span)] = k
    owned = owner >= 0
    pairs: torch.Tensor = owned[:, None] & owned & (owner[:, None] != owner)
    return pairs.to(device)


def _opened(mask: torch.Tensor | None, between: torch.Tensor) -> torch.Tensor:
    """The mask of a pass, (1, 1, T, T), with what ``between`` names made visible.

    Args:
        mask: (1, 1, T, T) bool or additive, or ``None`` for plain causal attention.
        between: (T, T) bool.
    """
    import torch

    if mask is None:
        return (torch.ones_like(between).tril() | between)[None, None]
    if mask.dtype == torch.bool:
        return mask | between
    return mask.masked_fill(between, 0.0)
