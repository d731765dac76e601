"""Running many prompts: in batches, sharing what they have in common, and keeping it for the next ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from lad_rerank.backbones.batching import batches, each, halving
from lad_rerank.backbones.encoding import EncodedPrompt
from lad_rerank.backbones.features import ImageFeatures
from lad_rerank.backbones.kept import KeptPrompt
from lad_rerank.backbones.label_scoring import Tokens, label_log_probs, label_mass, needs_cache
from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.backbones.passes import Passes, PassResult
from lad_rerank.contents import Content, kind_of
from lad_rerank.prompt import LabelStyle, resolved_style
from lad_rerank.records import FloatArray, Observation

Key: TypeAlias = tuple[str, ...]
"""Names all that a prompt shows before its question."""


def beginning(contents: Sequence[Content], labels: LabelStyle) -> Key:
    """Names what the prompts of these contents begin with: labels stand among them unless all are images."""
    digests = tuple(content.digest for content in contents)
    return digests if kind_of(contents) == "image" else (*digests, resolved_style(len(contents), labels))


class Runs:
    """Makes observations of prompts.

    Args:
        passes: Runs the model.
        layers: Decoder layers that are read.
        features: Image features of a prompt's prepared images.
        keeps: Whether the model's keys and values can be kept at all.
        max_cache_bytes: Keys and values kept at most.
        batch_size: Prompts in one forward pass at most.

    Attributes:
        kept: Keys and values of the last candidate lists.
        uses_prefix: Whether prompts over the same candidates run behind the kept ones.
    """

    def __init__(
        self,
        passes: Passes,
        layers: tuple[int, ...],
        features: Callable[[EncodedPrompt], list[ImageFeatures]],
        *,
        keeps: bool,
        max_cache_bytes: int,
        batch_size: int,
    ) -> None:
        self._passes = passes
        self._layers = layers
        self._features = features
        self._keeps = keeps
        self._batch_size = batch_size
        self.kept: BoundedMemory[Key, KeptPrompt] = BoundedMemory(max_cache_bytes, lambda k: k.nbytes)
        self.uses_prefix = keeps

    def observe(self, prompts: Sequence[tuple[Key, EncodedPrompt]]) -> list[Observation]:
        """Observe prompts; those with equal keys share one run over their candidates, the others run side by side.

        A batch that does not fit the memory is halved, and that is logged.
        """
        import torch

        observations: list[Observation | None] = [None] * len(prompts)
        groups: dict[Key, list[tuple[int, EncodedPrompt]]] = {}
        for i, (key, prompt) in enumerate(prompts):
            groups.setdefault(key, []).append((i, prompt))
        with torch.inference_mode():
            kept = self._found(groups)
            fresh = [(key, *group.pop(0)) for key, group in groups.items() if key not in kept]
            # A prompt with pixels of its own runs by itself.
            alone = [[one] for one in fresh if one[2].inputs is not None]
            together = [one for one in fresh if one[2].inputs is None]
            for batch in [*batches(together, self._batch_size), *alone]:
                results = self.whole([prompt for _, _, prompt in batch])
                for (key, i, prompt), result in zip(batch, results, strict=True):
                    observations[i] = self.observation(prompt, result, result.kept)
                    if result.kept is not None and self.uses_prefix:
                        kept[key] = result.kept
                        self.kept.put(key, result.kept)
            for key, group in groups.items():
                for others in batches(group, self._batch_size):
                    same = [prompt for _, prompt in others]
                    results = self._behind(kept[key], same) if key in kept else each(same, self.whole)
                    for (i, prompt), result in zip(others, results, strict=True):
                        observations[i] = self.observation(prompt, result, kept.get(key) or result.kept)
        return [observation for observation in observations if observation is not None]

    def whole(self, prompts: Sequence[EncodedPrompt]) -> list[PassResult]:
        """Run whole prompts, and keep what is worth keeping of them."""
        keeping = self._keeps and (
            (self.uses_prefix and self.kept.max_bytes > 0)
            or any(needs_cache(p.answer.labels, p.answer.end) for p in prompts)
        )
        return halving(
            prompts, lambda some: self._passes.whole(some, [self._features(p) for p in some], keeping=keeping)
        )

    def observation(self, prompt: EncodedPrompt, result: PassResult, kept: KeptPrompt | None) -> Observation:
        """Make the record; labels of several tokens ask for a step on the kept keys and values."""

        def next_logits(prefixes: Sequence[Tokens]) -> FloatArray:
            longer = [prompt.with_answer(prefix) for prefix in prefixes]
            if kept is not None:
                return np.stack([r.logits for r in self._passes.behind(kept, longer, reading=False)])
            return np.stack([self.whole([one])[0].logits for one in longer])

        answer = prompt.answer
        return Observation(
            log_probs=label_log_probs(answer.labels, answer.end, result.logits, next_logits),
            attention=result.attention.mass,
            layers=self._layers,
            label_mass=label_mass(answer.labels, result.logits),
            prompt_tokens=prompt.length,
            peaks=result.attention.peaks,
            lengths=tuple(map(len, prompt.spans)),
            cut=prompt.cut,
        )

    def _found(self, groups: dict[Key, list[tuple[int, EncodedPrompt]]]) -> dict[Key, KeptPrompt]:
        """Kept prompts that all of a group may run behind: a template may write the date before everything."""
        if not self.uses_prefix:
            return {}
        known = {key: found for key in groups if (found := self.kept.get(key)) is not None}
        return {key: found for key, found in known.items() if all(found.shared(p.ids) for _, p in groups[key])}

    def _behind(self, kept: KeptPrompt, prompts: Sequence[EncodedPrompt]) -> list[PassResult]:
        """Run what these prompts do not share with a kept one."""
        return halving(prompts, lambda some: self._passes.behind(kept, some, reading=True))
