"""Any supported AutoModelForImageTextToText as a backbone: loading, and the one pass."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.backbones.encoding import AnswerTokens, EncodedPrompt, answer_tokens, encode
from lad_rerank.backbones.families import qwen_vl
from lad_rerank.backbones.identity import text_digest, weights_digest
from lad_rerank.backbones.label_scoring import Tokens, label_log_probs, label_mass, needs_cache
from lad_rerank.errors import BackboneError, PromptTooLongError
from lad_rerank.prompt import PROMPT_VERSION, LabelStyle
from lad_rerank.records import FloatArray, Observation

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from transformers import PreTrainedModel, ProcessorMixin

logger = logging.getLogger(__name__)

PAPER_PIXELS = 336 * 336
"""The paper's image size; an area here, since aspect ratios are kept."""


class HuggingFaceBackbone:
    """A loaded model and its processor, read through SDPA in one pass.

    Holds nothing that a call changes, so threads may share it.

    Args:
        model: A ``PreTrainedModel`` in evaluation mode. Its decoder is switched to the attention tap.
        processor: The processor that belongs to it.
        name: What to call it.
        revision: Hub revision, for the record.
        labels: How candidates are named, ``"digits"`` or ``"letters"``.
        max_pixels: Pixel budget of one image; the paper's 336 x 336 where the processor allows as much.

    Raises:
        BackboneError: A model family that this release does not read, or settings it cannot obey.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        *,
        name: str,
        revision: str | None = None,
        labels: LabelStyle = "digits",
        max_pixels: int | None = None,
    ) -> None:
        model_type = model.config.model_type
        if model_type not in qwen_vl.MODEL_TYPES:
            raise BackboneError(
                f"Models of type {model_type!r} are not supported yet, only {', '.join(sorted(qwen_vl.MODEL_TYPES))}."
            )
        self._model = model
        self._processor = processor
        self._name = name
        self._revision = revision
        self._labels = labels
        budget, self._images_kwargs = qwen_vl.pixel_budget(processor, max_pixels or PAPER_PIXELS)
        attention_tap.install(model)
        modules = attention_tap.full_attention_modules(model)
        self._layer_of = {id(module): layer for layer, module in modules.items()}
        self._answer = lru_cache(maxsize=64)(self._answer_tokens)
        self._identity = BackboneIdentity(
            model_type=model_type,
            weights=weights_digest(model),
            prompt=PROMPT_VERSION,
            chat_template=text_digest(str(processor.chat_template)),
            labels=labels,
            max_pixels=budget,
            spans="visual",
            dtype=str(model.dtype).removeprefix("torch."),
            layers=tuple(modules),
        )
        logger.info(
            "Loaded %s (%s) on %s in %s; decoder attention: SDPA with %d of its layers read.",
            name, model_type, model.device, self._identity.dtype, len(modules),
        )  # fmt: skip

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        labels: LabelStyle = "digits",
        max_pixels: int | None = None,
        name: str | None = None,
        **model_kwargs: Any,
    ) -> HuggingFaceBackbone:
        """Load a model and its processor from a folder or the hub.

        Args:
            model: Local folder or hub id.
            device: Such as ``"cpu"`` or ``"cuda:1"``; the first GPU where there is one, else the CPU.
            dtype: Such as ``"float32"``; bfloat16 on a GPU and float32 on a CPU by default.
            device_map: Passed to transformers, in place of ``device``.
            revision: Hub revision.
            trust_remote_code: Run code that comes with the model. Only ever what the caller says.
            labels: How candidates are named.
            max_pixels: Pixel budget of one image.
            name: What to call it; the ``model`` argument by default.
            **model_kwargs: Passed to ``from_pretrained`` of the model, such as ``quantization_config``.

        Raises:
            BackboneError: The model cannot be loaded or read.
        """
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype is None:
            dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
        hub = {"revision": revision, "trust_remote_code": trust_remote_code}
        try:
            processor = AutoProcessor.from_pretrained(model, **hub)
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                model, dtype=dtype, device_map=device_map, attn_implementation="sdpa", **hub, **model_kwargs
            )
        except (OSError, ValueError, KeyError) as error:
            raise BackboneError(f"Cannot load the model {str(model)!r}: {error}") from error
        if device_map is None:
            loaded = loaded.to(device)
        return cls(
            loaded.eval(), processor, name=name or str(model), revision=revision, labels=labels, max_pixels=max_pixels
        )

    @property
    def name(self) -> str:
        """What the user calls the model."""
        return self._name

    @property
    def revision(self) -> str | None:
        """Hub revision, where one was given."""
        return self._revision

    @property
    def identity(self) -> BackboneIdentity:
        """What the model's position bias depends on."""
        return self._identity

    def _answer_tokens(self, n: int) -> AnswerTokens:
        return answer_tokens(self._processor, n, self._labels)

    def encode(self, query: str, images: Sequence[Image]) -> EncodedPrompt:
        """Tokens of the prompt that shows the images in this order.

        Raises:
            PromptTooLongError: It does not fit the context window. Nothing is truncated.
            BackboneError: The processor did not do what it must.
        """
        prompt = encode(
            self._processor,
            self._model.config.image_token_id,
            query,
            images,
            self._labels,
            self._images_kwargs,
            self._answer(len(images)),
        )
        qwen_vl.check_pixels(self._processor, prompt.inputs, self._identity.max_pixels)
        window = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        if window is not None and prompt.length > window:
            raise PromptTooLongError(
                f"The prompt of {len(images)} images and this query has {prompt.length} tokens, the model takes "
                f"{window}. Lower max_pixels, rerank fewer candidates, or shorten the query."
            )
        return prompt

    def observe(self, query: str, images: Sequence[Image]) -> Observation:
        """Show the images in this order and ask for the query, in one forward pass.

        A second step over the few tokens of a label's beginning runs on the kept keys and values where
        labels take more than one token; the prompt itself is never run twice.

        Args:
            query: One line of text.
            images: At least two RGB pictures.

        Raises:
            PromptTooLongError: The prompt does not fit the context window.
            AttentionNotSeenError: The read-out rows did not arrive.
            BackboneError: The model or processor did not behave as it must.
        """
        import torch

        prompt = self.encode(query, images)
        answer = prompt.answer
        rows = {"last": (prompt.length - 1,), "query": prompt.query}
        sink = attention_tap.AttentionSink(self._layer_of, rows, prompt.spans)
        keep = needs_cache(answer.labels, answer.end)
        with torch.inference_mode():
            inputs = {k: v.to(self._model.device) for k, v in prompt.inputs.items()}
            # One unpadded prompt: without a mask SDPA may use its causal kernels.
            inputs.pop("attention_mask", None)
            positions, behind = self._positions(inputs, prompt.length)
            with attention_tap.open_sink(sink):
                output = self._model(**inputs, position_ids=positions, logits_to_keep=1, use_cache=keep)
            first = _float64(output.logits[0, -1])
            if not np.isfinite(first).all():
                raise BackboneError(
                    f"{self._name} gave NaN or infinite logits in {self._identity.dtype}; try dtype='float32'."
                )
            step = self._stepper(output, behind) if keep else _no_further_token
            log_probs = label_log_probs(answer.labels, answer.end, first, step)
        layers = self._identity.layers
        return Observation(
            log_probs=log_probs,
            attention=sink.result(layers),
            layers=layers,
            label_mass=label_mass(answer.labels, first),
            prompt_tokens=prompt.length,
        )

    def _positions(self, inputs: dict[str, torch.Tensor], length: int) -> tuple[torch.Tensor, int]:
        """Explicit position ids of the prompt, and the position of the token behind it.

        Left to itself a model with M-RoPE keeps an offset from its last prompt on the module, and would
        use another thread's.
        """
        positions, delta = self._model.model.get_rope_index(
            inputs["input_ids"],
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            attention_mask=inputs["input_ids"].new_ones(1, length),
        )
        return positions, length + int(delta)

    def _stepper(self, output: Any, behind: int) -> Callable[[Sequence[Tokens]], FloatArray]:
        """Logits behind label beginnings, all of them in one batch on a copy of the prompt's cache."""
        import torch

        cache = output.cache

        def step(prefixes: Sequence[Tokens]) -> FloatArray:
            expanded = copy.deepcopy(cache)
            expanded.reorder_cache(torch.zeros(len(prefixes), dtype=torch.long, device=self._model.device))
            ids = torch.tensor(prefixes, device=self._model.device)
            positions = torch.arange(behind, behind + ids.shape[1], device=ids.device)
            result = self._model(
                input_ids=ids,
                position_ids=positions.expand(3, len(prefixes), -1),
                cache=expanded,
                use_cache=True,
                logits_to_keep=1,
            )
            return _float64(result.logits[:, -1])

        return step


def _no_further_token(prefixes: Sequence[Tokens]) -> FloatArray:
    raise BackboneError(f"Labels of one token asked for a further one behind {list(prefixes)}.")


def _float64(tensor: torch.Tensor) -> FloatArray:
    """Raw logits as float64 on the CPU."""
    array: FloatArray = tensor.float().cpu().numpy().astype(np.float64)
    return array
