"""Forward passes: whole prompts, and what comes behind a prompt whose keys and values were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.attention_tap import AttentionRows, AttentionSink, ReadOut
from lad_rerank.backbones.encoding import EncodedPrompt
from lad_rerank.backbones.families.base import Family
from lad_rerank.backbones.features import ImageFeatures, merged, on_device
from lad_rerank.backbones.kept import KeptPrompt, keep
from lad_rerank.backbones.preparing import TEXT_INPUTS, PreparedImage
from lad_rerank.backbones.traits import Traits
from lad_rerank.errors import BackboneError
from lad_rerank.records import FloatArray

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PassResult:
    """What a pass yields for one prompt.

    Attributes:
        logits: (V,) raw logits behind the last token, float64.
        attention: Read-out rows; empty where none was asked for.
        kept: The prompt's keys and values, where they were asked for.
    """

    logits: FloatArray
    attention: AttentionRows
    kept: KeptPrompt | None = None


class Passes:
    """Runs a model. Holds nothing that a call changes.

    Args:
        model: The model, its decoder switched to the attention tap.
        traits: What it can do.
        modules: Attention modules that are read, by layer.
        family: What its family marks and where its positions begin.
    """

    def __init__(
        self, model: PreTrainedModel, traits: Traits, modules: Mapping[int, torch.nn.Module], family: Family
    ) -> None:
        self._family = family
        self._model: Any = model
        self._traits = traits
        self._layers = tuple(modules)
        self._layer_of = {id(module): layer for layer, module in modules.items()}

    def whole(
        self, prompts: Sequence[EncodedPrompt], features: Sequence[Sequence[ImageFeatures]], *, keeping: bool
    ) -> list[PassResult]:
        """Run whole prompts in one batch, padded on the left.

        Args:
            prompts: Prompts; just one where it carries the processor's own inputs.
            features: Image features of each prompt's images, in place of pixels; empty where it has none or carries
                the processor's own inputs.
            keeping: Keep each prompt's keys and values.
        """
        inputs, starts, shifts = self._whole_inputs(prompts, features)
        longest = int(inputs["input_ids"].shape[1])
        cache = None
        if keeping:
            from transformers import DynamicCache

            cache = inputs[self._traits.cache_keyword] = DynamicCache()
        read_outs = [
            ReadOut(
                {
                    "last": (longest - 1,),
                    "query": tuple(start + i for i in prompt.query),
                },
                [tuple(start + i for i in span) for span in prompt.spans],
            )
            for prompt, start in zip(prompts, starts, strict=True)
        ]
        logits, attention = self.run(inputs, read_outs, [longest - 1] * len(prompts), keeping)
        results = []
        for b, prompt in enumerate(prompts):
            kept = None
            if cache is not None:
                kept = keep(cache, b, starts[b], prompt.ids, shifts[b], prompt.candidates_end)
            results.append(PassResult(logits[b], attention[b], kept))
        return results

    def attentions(self, prompt: EncodedPrompt, features: Sequence[ImageFeatures]) -> tuple[torch.Tensor, ...] | None:
        """The model's own attention maps of one prompt, by layer: the reference that the tap is checked against.

        Only for short prompts, and only while the decoder runs eager attention.
        """
        inputs, _, _ = self._whole_inputs([prompt], [features])
        maps: tuple[torch.Tensor, ...] | None = self._model(**inputs, output_attentions=True).attentions
        return maps

    def _whole_inputs(
        self, prompts: Sequence[EncodedPrompt], features: Sequence[Sequence[ImageFeatures]] | None
    ) -> tuple[dict[str, Any], list[int], list[int]]:
        """What the model is given for whole prompts, how much padding stands before each, and their shifts."""
        import torch

        if len(prompts) > 1 and any(prompt.inputs is not None for prompt in prompts):
            raise BackboneError("Prompts with pixels run one at a time.")
        lengths = [prompt.length for prompt in prompts]
        longest = max(lengths)
        starts = [longest - length for length in lengths]
        located = [self.positions(p.ids, p.images, p.inputs) for p in prompts]
        inputs: dict[str, Any] = {"input_ids": self._padded([list(p.ids) for p in prompts], longest)}
        for name in self._traits.type_ids:
            inputs[name] = self.marked(inputs["input_ids"]).long()
            own = None if prompts[0].inputs is None else prompts[0].inputs.get(name)
            if own is not None:
                own = own.to(self._model.device)
                inputs[name] = torch.nn.functional.pad(own, (0, longest - own.shape[1]))
        if any(starts) or self._traits.wants_mask:
            real = (
                torch.arange(longest, device=self._model.device)
                >= torch.tensor(starts, device=self._model.device)[:, None]
            )
            inputs["attention_mask"] = real.long()
        if self._traits.rope_index:
            # Left to itself a model with M-RoPE keeps an offset on the module, and would use another thread's.
            rows = [torch.nn.functional.pad(ids, (start, 0)) for (ids, _), start in zip(located, starts, strict=True)]
            inputs["position_ids"] = torch.cat(rows, dim=1)
        elif any(starts):
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
            inputs["position_ids"] += self._family.first_position
        if features is not None and any(features):
            inputs["mm_encoder_outputs"] = {"image": merged([f for own in features for f in own])}
        elif prompts[0].inputs is not None:
            inputs |= self.pixels(prompts[0].inputs)
        return inputs, starts, [shift for _, shift in located]

    def behind(self, kept: KeptPrompt, prompts: Sequence[EncodedPrompt], *, reading: bool) -> list[PassResult]:
        """Run only what these prompts do not share with a kept one over the same candidates.

        The suffixes are padded on the right without a mask, and each is read at its own last token: later
        padding cannot be seen from there.

        Args:
            kept: Keys and values of a prompt over the same candidates in the same order.
            prompts: Prompts that begin like it.
            reading: Read attention as well.
        """
        import torch

        shared = min(kept.shared(prompt.ids) for prompt in prompts)
        if reading:
            # The rows that are read must be among what runs.
            shared = min(shared, *(prompt.query[0] for prompt in prompts))
        if shared == 0:
            raise BackboneError("The prompts do not share the kept prompt's candidates.")
        tails = [list(prompt.ids[shared:]) for prompt in prompts]
        longest = max(map(len, tails))
        device = self._model.device
        ids = torch.tensor([tail + tail[-1:] * (longest - len(tail)) for tail in tails], device=device)
        inputs: dict[str, Any] = {"input_ids": ids, self._traits.cache_keyword: kept.cache(shared, len(prompts))}
        for name in self._traits.type_ids:
            inputs[name] = torch.zeros_like(ids)
        if self._traits.wants_mask:
            inputs["attention_mask"] = torch.ones(len(prompts), shared + longest, dtype=torch.long, device=device)
        if self._traits.rope_index:
            positions = torch.arange(shared, shared + longest, device=device) + kept.shift
            inputs["position_ids"] = positions.expand(3, len(prompts), -1)
        read_outs = [
            ReadOut(
                {"last": (len(tail) - 1,), "query": tuple(i - shared for i in prompt.query)} if reading else {},
                prompt.spans,
            )
            for prompt, tail in zip(prompts, tails, strict=True)
        ]
        logits, attention = self.run(inputs, read_outs, [len(tail) - 1 for tail in tails], True)
        return [PassResult(row, mass) for row, mass in zip(logits, attention, strict=True)]

    def run(
        self, inputs: dict[str, Any], read_outs: Sequence[ReadOut], last: Sequence[int], caching: bool
    ) -> tuple[list[FloatArray], list[AttentionRows]]:
        """One forward pass; logits at each prompt's last token, and its read-out rows."""
        import torch

        if self._traits.keeps_logits:
            wanted = sorted(set(last))
            inputs["logits_to_keep"] = torch.tensor(wanted, device=self._model.device)
            at = [wanted.index(i) for i in last]
        else:
            at = list(last)
        sink = AttentionSink(self._layer_of, read_outs)
        with attention_tap.open_sink(sink):
            output = self._model(**inputs, use_cache=caching)
        rows = [output.logits[b, i].float().cpu().numpy().astype(np.float64) for b, i in enumerate(at)]
        if not all(np.isfinite(row).all() for row in rows):
            dtype = str(self._model.dtype).removeprefix("torch.")
            raise BackboneError(f"The model gave NaN or infinite logits in {dtype}; try dtype='float32'.")
        return rows, sink.results(self._layers)

    def marked(self, ids: torch.Tensor) -> torch.Tensor:
        """Which tokens belong to images."""
        import torch

        if not self._family.marks_images:
            return torch.zeros_like(ids)
        return torch.isin(ids, torch.tensor(self._traits.marked_ids, device=ids.device))

    def _padded(self, ids: list[list[int]], length: int) -> torch.Tensor:
        import torch

        # What padding holds does not matter behind the mask, but it must be no image token: an answer's never is.
        return torch.tensor([row[-1:] * (length - len(row)) + row for row in ids], device=self._model.device)

    def positions(
        self, token_ids: Sequence[int], images: Sequence[PreparedImage], inputs: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, int]:
        """Position ids (3, 1, T) of tokens, and how far positions behind their images lag their index.

        Nothing where a model counts its tokens.

        Args:
            token_ids: The T tokens.
            images: What stands among them.
            inputs: The processor's own tensors of them, where it was asked.
        """
        import torch

        if not self._traits.rope_index:
            return torch.empty(0), 0
        if inputs is None and not images:
            return torch.arange(len(token_ids), device=self._model.device).expand(3, 1, -1), 0
        grids = (
            inputs["image_grid_thw"]
            if inputs is not None
            else torch.cat([image.inputs["image_grid_thw"] for image in images])
        )
        ids = torch.tensor([token_ids])
        arguments = {"image_grid_thw": grids, "attention_mask": torch.ones_like(ids)}
        if "mm_token_type_ids" in self._traits.type_ids:
            arguments["mm_token_type_ids"] = self.marked(ids).int()
        positions, delta = self._model.model.get_rope_index(ids, **arguments)
        return positions.to(self._model.device), int(delta)

    def pixels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The processor's tensors that are not per token, where the model is."""
        return on_device(self._model, {n: v for n, v in inputs.items() if n not in TEXT_INPUTS})
