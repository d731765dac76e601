"""Any AutoModelForImageTextToText as a backbone: what is asked of it, and what is kept between questions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.backbones.batching import batches, each, halving
from lad_rerank.backbones.encoding import EncodedPrompt, PreparedImage, PromptEncoder
from lad_rerank.backbones.families import family_of
from lad_rerank.backbones.feature_store import FeatureStore
from lad_rerank.backbones.features import ImageFeatures
from lad_rerank.backbones.identity import text_digest, weights_digest
from lad_rerank.backbones.kept import KeptPrompt
from lad_rerank.backbones.label_scoring import Tokens, label_log_probs, label_mass, needs_cache
from lad_rerank.backbones.loading import load
from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.backbones.passes import Passes, PassResult
from lad_rerank.backbones.pictures import Pictures
from lad_rerank.backbones.traits import read_traits
from lad_rerank.errors import InvalidRequestError, PromptTooLongError
from lad_rerank.images import image_digest
from lad_rerank.prompt import PROMPT_VERSION, LabelStyle, SpanStyle, candidate_labels, most_labels
from lad_rerank.records import FloatArray, Observation

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, ProcessorMixin

logger = logging.getLogger(__name__)

MEBIBYTE = 2**20


class HuggingFaceBackbone:
    """A loaded model and its processor, read through SDPA in one pass.

    What is costly is kept within bounds: image features by pixels, and the keys and values of the last
    candidate lists. Neither changes what comes out, and threads may share a backbone.

    Args:
        model: A ``PreTrainedModel`` in evaluation mode. Its decoder is switched to the attention tap, and the
            check at load switches it back and forth: make a backbone before other threads use its model.
        processor: The processor that belongs to it.
        name: What to call it.
        revision: Hub revision, for the record.
        labels: How candidates are named.
        max_pixels: Pixel budget of one image; the paper's 336 x 336 by default.
        spans: ``"visual"`` counts a candidate's visual tokens, ``"delimited"`` the marks around them too.
        verify: Check at load, on a tiny prompt, that the model is read right; see ``verify.py``.
        max_feature_bytes: Image features kept at most.
        feature_folder: Keep image features on disk too, as safetensors, for a catalogue that is asked again.
        max_cache_bytes: Keys and values kept at most.
        batch_size: Prompts in one forward pass at most.

    Raises:
        InvalidRequestError: Unknown labels or spans, or a number below one.
        BackboneError: A model that cannot be read, or settings it cannot obey.
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
        spans: SpanStyle = "visual",
        verify: bool = True,
        max_feature_bytes: int = 256 * MEBIBYTE,
        feature_folder: str | Path | None = None,
        max_cache_bytes: int = 256 * MEBIBYTE,
        batch_size: int = 8,
    ) -> None:
        if spans not in get_args(SpanStyle):
            raise InvalidRequestError(f"Unknown spans {spans!r}; choose one of {', '.join(get_args(SpanStyle))}.")
        if max_pixels is not None and max_pixels < 1:
            raise InvalidRequestError(f"max_pixels must be at least 1, got {max_pixels}.")
        if batch_size < 1:
            raise InvalidRequestError(f"batch_size must be at least 1, got {batch_size}.")
        candidate_labels(1, labels)
        self._model = model
        self._processor = processor
        self._name = name
        self._revision = revision
        self._batch_size = batch_size
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._traits = read_traits(model, processor)
        self._family = family_of(model.config.model_type)
        budget = self._family.pixel_budget(processor, max_pixels)
        attention_tap.install(model)
        modules = attention_tap.full_attention_modules(model)
        self._encoder = PromptEncoder(
            processor, self._traits.image_token_id, labels, self._family, budget, spans == "delimited"
        )
        self._passes = Passes(model, self._traits, modules, self._family)
        self._kept: BoundedMemory[tuple[str, ...], KeptPrompt] = BoundedMemory(max_cache_bytes, lambda k: k.nbytes)
        self.uses_features = self._traits.encoder_outputs
        self.uses_prefix = self._traits.keeps_prefix
        self._identity = BackboneIdentity(
            model_type=model.config.model_type,
            weights=weights_digest(model),
            prompt=PROMPT_VERSION,
            chat_template=text_digest(str(processor.chat_template)),
            labels=labels,
            max_pixels=budget.pixels,
            spans=spans,
            dtype=str(model.dtype).removeprefix("torch."),
            layers=tuple(modules),
        )
        logger.info(
            "Loaded %s (%s) on %s in %s; decoder attention: SDPA with %d of its layers read.",
            name,
            model.config.model_type,
            model.device,
            self._identity.dtype,
            len(modules),
        )
        store = None
        if feature_folder is not None:
            settings = f"{self._identity.weights} {budget} {self._identity.dtype}"
            store = FeatureStore(Path(feature_folder), model, settings)
        self._pictures = Pictures(model, self._prepare, max_feature_bytes, store)
        if verify:
            from lad_rerank.backbones.verify import verify_backbone

            verify_backbone(self)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        name: str | None = None,
        labels: LabelStyle = "digits",
        max_pixels: int | None = None,
        spans: SpanStyle = "visual",
        verify: bool = True,
        keeping: Mapping[str, Any] | None = None,
        **loading: Any,
    ) -> HuggingFaceBackbone:
        """Load a model and make a backbone of it.

        Args:
            model: Local folder or hub id.
            name: What to call it; the ``model`` argument by default.
            labels: See the class.
            max_pixels: See the class.
            spans: See the class.
            verify: See the class.
            keeping: ``max_feature_bytes``, ``feature_folder``, ``max_cache_bytes``, ``batch_size`` of the class.
            **loading: What :func:`lad_rerank.backbones.loading.load` takes: device, dtype, revision and so on.

        Raises:
            BackboneError: The model cannot be loaded or read.
        """
        loaded, processor = load(model, **loading)
        settings: dict[str, Any] = {"labels": labels, "max_pixels": max_pixels, "spans": spans, "verify": verify}
        settings |= {"name": name or str(model), "revision": loading.get("revision")} | dict(keeping or {})
        try:
            return cls(loaded, processor, **settings)
        except RuntimeError as error:
            # Nobody asked for Apple's GPU by name, and some models do not run on it: the CPU does.
            if loaded.device.type != "mps" or loading.get("device") is not None:
                raise
            logger.warning("%s does not work on MPS and runs on the CPU instead: %s", name or model, error)
            return cls(loaded.to("cpu"), processor, **settings)  # type: ignore[arg-type]  # torch types `to` loosely

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

    def encode(self, query: str, images: Sequence[Image], digests: Sequence[str] = ()) -> EncodedPrompt:
        """Tokens of the prompt that shows the images in this order.

        Args:
            query: One line of text.
            images: RGB pictures.
            digests: Digests of their pixels, where they are known.

        Raises:
            PromptTooLongError: It does not fit the context window. Nothing is truncated.
            BackboneError: The processor did not do what it must.
        """
        if self.uses_features:
            prompt = self._encoder.encode(query, self._prepared(images, digests))
        else:
            prompt = self._encoder.encode_plain(query, images)
            assert prompt.inputs is not None
            self._family.check_pixels(self._processor, prompt.inputs, self._identity.max_pixels, len(images))
        if self._context is not None and prompt.length > self._context:
            raise PromptTooLongError(
                f"The prompt of {len(images)} images and this query has {prompt.length} tokens, the model takes "
                f"{self._context}. Lower max_pixels, rerank fewer candidates, or shorten the query."
            )
        return prompt

    def capacity(self, query: str, images: Sequence[Image]) -> int:
        """How many of these images one prompt holds, all of them at most: what context and labels allow.

        Where images are not prepared apart from prompts (transformers before 5.18) only the labels count here,
        and a prompt that does not fit says so when it is encoded.
        """
        most = most_labels(self._identity.labels)
        if self._context is None or not self.uses_features or len(images) < 2:
            return min(most, len(images))
        prepared = self._prepared(images)
        # A character is at most four tokens, and no question takes a thousand: mostly there is room to spare.
        if sum(image.length + 8 for image in prepared) + 4 * len(query) + 1024 <= self._context:
            return min(most, len(images))
        longest = max(prepared, key=lambda image: image.length)
        two, three = (self._encoder.encode(query, [longest] * n).length for n in (2, 3))
        fitting: int = 2 + max(0, self._context - two) // (three - two)
        return min(most, fitting, len(images))

    def observe(self, query: str, images: Sequence[Image]) -> Observation:
        """Show the images in this order and ask for the query, in one forward pass.

        Args:
            query: One line of text.
            images: At least two RGB pictures.

        Raises:
            PromptTooLongError: The prompt does not fit the context window.
            AttentionNotSeenError: The read-out rows did not arrive.
            BackboneError: The model or processor did not behave as it must.
        """
        return self.observe_many([(query, images)])[0]

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        """:meth:`observe` for several requests, in batches.

        Requests over the same images in the same order share one run over the images; the others run
        side by side. A batch that does not fit the memory is halved, and that is logged.

        Args:
            requests: (query, images) pairs; the numbers of images may differ.
        """
        import torch

        observations: list[Observation | None] = [None] * len(requests)
        groups: dict[tuple[str, ...], list[tuple[int, EncodedPrompt]]] = {}
        # Windows and shifts show the same picture objects again and again: each is hashed once.
        distinct = {id(image): image for _, images in requests for image in images}
        digest_of = {name: image_digest(image) for name, image in distinct.items()}
        for i, (query, images) in enumerate(requests):
            key = tuple(digest_of[id(image)] for image in images)
            groups.setdefault(key, []).append((i, self.encode(query, images, key)))
        with torch.inference_mode():
            kept = (
                {key: found for key in groups if (found := self._kept.get(key)) is not None} if self.uses_prefix else {}
            )
            fresh = [(key, *group.pop(0)) for key, group in groups.items() if key not in kept]
            size = self._batch_size if self.uses_features else 1
            for batch in batches(fresh, size):
                prompts = [prompt for _, _, prompt in batch]
                for (key, i, prompt), result in zip(batch, self._whole(prompts), strict=True):
                    observations[i] = self._observation(prompt, result, result.kept)
                    if result.kept is not None and self.uses_prefix:
                        kept[key] = result.kept
                        self._kept.put(key, result.kept)
            for key, group in groups.items():
                for others in batches(group, self._batch_size):
                    prompts = [prompt for _, prompt in others]
                    results = self._behind(kept[key], prompts) if key in kept else each(prompts, self._whole)
                    for (i, prompt), result in zip(others, results, strict=True):
                        observations[i] = self._observation(prompt, result, kept.get(key) or result.kept)
        return [observation for observation in observations if observation is not None]

    def top_tokens(self, query: str, images: Sequence[Image], count: int = 5) -> list[str]:
        """What the model would most like to say, as text, for a message."""
        import torch

        with torch.inference_mode():
            (result,) = self._whole([self.encode(query, images)])
        best = np.argsort(-result.logits)[:count]
        return [str(self._encoder.tokenizer.decode([int(token)])) for token in best]

    def features(self, prompt: EncodedPrompt) -> list[ImageFeatures]:
        """Features of a prompt's images."""
        return [self._pictures.features(image) for image in prompt.images]

    def forget(self) -> None:
        """Let go of all features, keys and values that are in memory."""
        self._pictures.clear()
        self._kept.clear()

    def _prepared(self, images: Sequence[Image], digests: Sequence[str] = ()) -> list[PreparedImage]:
        names = digests or [image_digest(image) for image in images]
        return [self._pictures.prepared(image, name) for image, name in zip(images, names, strict=True)]

    def _prepare(self, image: Image, digest: str) -> PreparedImage:
        prepared = self._encoder.prepare(image, digest)
        self._family.check_pixels(self._processor, prepared.inputs, self._identity.max_pixels, 1)
        return prepared

    def _whole(self, prompts: Sequence[EncodedPrompt]) -> list[PassResult]:
        """Run whole prompts, and keep what is worth keeping of them."""

        def run(some: Sequence[EncodedPrompt]) -> list[PassResult]:
            features = [self.features(prompt) for prompt in some] if self.uses_features else None
            return self._passes.whole(some, features, keeping=keeping)

        keeping = self._traits.keeps_prefix and (
            (self.uses_prefix and self._kept.max_bytes > 0)
            or any(needs_cache(p.answer.labels, p.answer.end) for p in prompts)
        )
        return halving(prompts, run)

    def _behind(self, kept: KeptPrompt, prompts: Sequence[EncodedPrompt]) -> list[PassResult]:
        """Run what these prompts do not share with a kept one."""
        return halving(prompts, lambda some: self._passes.behind(kept, some, reading=True))

    def _observation(self, prompt: EncodedPrompt, result: PassResult, kept: KeptPrompt | None) -> Observation:
        """Make the record; labels of several tokens ask for a step on the kept keys and values."""

        def next_logits(prefixes: Sequence[Tokens]) -> FloatArray:
            longer = [prompt.with_answer(prefix) for prefix in prefixes]
            if kept is not None:
                return np.stack([r.logits for r in self._passes.behind(kept, longer, reading=False)])
            return np.stack([self._whole([one])[0].logits for one in longer])

        answer = prompt.answer
        return Observation(
            log_probs=label_log_probs(answer.labels, answer.end, result.logits, next_logits),
            attention=result.attention,
            layers=self._identity.layers,
            label_mass=label_mass(answer.labels, result.logits),
            prompt_tokens=prompt.length,
        )
