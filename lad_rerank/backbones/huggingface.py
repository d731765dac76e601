"""A multimodal model, or a plain language model, as a backbone."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

from lad_rerank.backbones import attention_tap
from lad_rerank.backbones.base import BackboneIdentity, Request
from lad_rerank.backbones.capacity import most_that_fit
from lad_rerank.backbones.decoder import full_attention_modules
from lad_rerank.backbones.encoding import EncodedPrompt, PromptEncoder
from lad_rerank.backbones.families import family_of
from lad_rerank.backbones.feature_store import FeatureStore
from lad_rerank.backbones.features import ImageFeatures
from lad_rerank.backbones.identity import identity_of
from lad_rerank.backbones.loading import load
from lad_rerank.backbones.passes import Passes
from lad_rerank.backbones.pictures import Pictures
from lad_rerank.backbones.preparing import ImagePreparer, PreparedImage
from lad_rerank.backbones.runs import Runs, beginning
from lad_rerank.backbones.traits import read_traits
from lad_rerank.contents import Arrangement, Content, Showable, as_contents
from lad_rerank.errors import InvalidRequestError, PromptTooLongError
from lad_rerank.prompt import (
    MAX_TEXT_TOKENS,
    LabelStyle,
    SpanStyle,
    Wording,
    candidate_labels,
    most_labels,
    prompt_version,
    question_parts,
    wording_of,
)
from lad_rerank.records import Observation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from lad_rerank.backbones.set_backbone import SetBackbone

logger = logging.getLogger(__name__)

MEBIBYTE = 2**20


class HuggingFaceBackbone:
    """A loaded model and its processor, read through SDPA in one pass.

    A multimodal model takes images, texts and both. A plain language model, whose processor is a tokenizer, takes
    texts. What is costly is kept within bounds: image features by pixels, and the keys and values of the last
    candidate lists. Neither changes what comes out, and threads may share a backbone.

    Args:
        model: A ``PreTrainedModel`` in evaluation mode. Its decoder is switched to the attention tap, and the
            check at load switches it back and forth: make a backbone before other threads use its model.
        processor: The processor that belongs to it, or the tokenizer of a plain language model.
        name: What to call it.
        revision: Hub revision, for the record.
        labels: How candidates are named.
        max_pixels: Pixel budget of one image; the paper's 336 x 336 by default.
        max_text_tokens: Tokens of one candidate's text at most; what is longer is cut at its end, and
            ``Observation.cut`` says by how much.
        spans: ``"visual"`` counts a candidate's visual tokens and its text, ``"delimited"`` the marks around an image
            too.
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
        processor: ProcessorMixin | PreTrainedTokenizerBase,
        *,
        name: str,
        revision: str | None = None,
        labels: LabelStyle = "digits",
        max_pixels: int | None = None,
        max_text_tokens: int = MAX_TEXT_TOKENS,
        spans: SpanStyle = "visual",
        verify: bool = True,
        max_feature_bytes: int = 256 * MEBIBYTE,
        feature_folder: str | Path | None = None,
        max_cache_bytes: int = 256 * MEBIBYTE,
        batch_size: int = 8,
    ) -> None:
        if spans not in get_args(SpanStyle):
            raise InvalidRequestError(f"Unknown spans {spans!r}; choose one of {', '.join(get_args(SpanStyle))}.")
        numbers = ("max_pixels", max_pixels), ("max_text_tokens", max_text_tokens), ("batch_size", batch_size)
        for setting, number in numbers:
            if number is not None and number < 1:
                raise InvalidRequestError(f"{setting} must be at least 1, got {number}.")
        candidate_labels(1, labels)
        self._model = model
        self._processor = processor
        self._name = name
        self._revision = revision
        self._batch_size = batch_size
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._traits = read_traits(model, processor)
        self._family = family_of(model.config.model_type)
        preparer, seeing = None, cast("Any", processor)
        if self._traits.image_token_id is not None:
            budget = self._family.pixel_budget(seeing, max_pixels)
            preparer = ImagePreparer(seeing, self._traits.image_token_id, self._family, budget)
        attention_tap.install(model)
        modules = full_attention_modules(model)
        self._encoder = PromptEncoder(
            processor, labels, preparer=preparer, delimited=spans == "delimited", max_text_tokens=max_text_tokens
        )
        self._passes = Passes(model, self._traits, modules, self._family)
        self._runs = Runs(
            self._passes,
            tuple(modules),
            self.features,
            keeps=self._traits.keeps_prefix,
            max_cache_bytes=max_cache_bytes,
            batch_size=batch_size,
        )
        self.uses_features = self._traits.encoder_outputs and preparer is not None
        pixels = None if preparer is None else preparer.budget.pixels
        self._identity = identity_of(model, processor, labels, spans, pixels, tuple(modules))
        logger.info(
            "Loaded %s (%s) on %s in %s; decoder attention: SDPA with %d of its layers read.",
            *(name, model.config.model_type, model.device, self._identity.dtype, len(modules)),
        )
        store = None
        if feature_folder is not None and preparer is not None:
            settings = f"{self._identity.weights} {preparer.budget} {self._identity.dtype}"
            store = FeatureStore(Path(feature_folder), model, settings)
        self._pictures = Pictures(model, preparer, max_feature_bytes, store)
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
        max_text_tokens: int = MAX_TEXT_TOKENS,
        spans: SpanStyle = "visual",
        verify: bool = True,
        keeping: Mapping[str, Any] | None = None,
        **loading: Any,
    ) -> HuggingFaceBackbone:
        """Load a model and make a backbone of it.

        Args:
            model: Local folder, hub id, or the path of a GGUF file.
            name: What to call it; the ``model`` argument by default.
            labels: See the class.
            max_pixels: See the class.
            max_text_tokens: See the class.
            spans: See the class.
            verify: See the class.
            keeping: ``max_feature_bytes``, ``feature_folder``, ``max_cache_bytes``, ``batch_size`` of the class.
            **loading: What :func:`lad_rerank.backbones.loading.load` takes: device, dtype, revision and so on.

        Raises:
            BackboneError: The model cannot be loaded or read.
        """
        loaded, processor = load(model, **loading)
        settings: dict[str, Any] = {"labels": labels, "max_pixels": max_pixels, "max_text_tokens": max_text_tokens}
        settings |= {"spans": spans, "verify": verify}
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
        """What its position bias depends on as it ranks images, or texts where it reads no images; see ``for_kind``."""
        return self._identity

    @property
    def uses_prefix(self) -> bool:
        """Whether prompts over the same candidates run behind the kept ones."""
        return self._runs.uses_prefix

    @uses_prefix.setter
    def uses_prefix(self, uses: bool) -> None:
        self._runs.uses_prefix = uses

    @property
    def reads_images(self) -> bool:
        """Whether it can be shown images; a plain language model reads texts only."""
        return self._encoder.preparer is not None

    def variant(self, *, labels: LabelStyle | None = None, wording: Wording | None = None) -> HuggingFaceBackbone:
        """The same model asked in another way.

        It shares model, image features and what is kept of prompts: over the same images only what comes behind them
        runs again. Nothing is verified again.

        Args:
            labels: How candidates are named; as before by default.
            wording: How the question is put; as before by default.

        Raises:
            InvalidRequestError: Unknown labels or wording.
        """
        labels = labels or self._identity.labels
        wording = wording or wording_of(self._identity.prompt)
        question_parts(1, labels, wording=wording)
        other = copy.copy(self)
        other._encoder = self._encoder.variant(labels, wording)
        prompt = prompt_version(self._identity.candidates, wording)
        other._identity = replace(self._identity, labels=labels, prompt=prompt)
        return other

    @overload
    def arranged(self, arrangement: Literal["sequence"]) -> HuggingFaceBackbone: ...
    @overload
    def arranged(self, arrangement: Literal["set"], **settings: Any) -> SetBackbone: ...
    def arranged(self, arrangement: Arrangement, **settings: Any) -> HuggingFaceBackbone | SetBackbone:
        """The same model and image features with candidates one after the other (this backbone), or side by side.

        Args:
            arrangement: ``"set"`` gives a backbone that the candidates' order does not matter to.
            **settings: See :class:`lad_rerank.backbones.set_backbone.SetBackbone`.

        Raises:
            InvalidRequestError: Unknown arrangement.
            BackboneError: Candidates cannot stand side by side in this model.
        """
        from lad_rerank.backbones.set_backbone import SetBackbone

        if arrangement not in get_args(Arrangement):
            raise InvalidRequestError(f"Unknown arrangement {arrangement!r}; choose 'sequence' or 'set'.")
        return SetBackbone(self, **settings) if arrangement == "set" else self

    def encode(self, query: str, candidates: Sequence[Showable]) -> EncodedPrompt:
        """Tokens of the prompt that shows the candidates in this order.

        Args:
            query: One line of text.
            candidates: Contents, or RGB pictures by themselves.

        Raises:
            PromptTooLongError: It does not fit the context window. But for texts over their budget, nothing is cut.
            InvalidRequestError: There is an image among them, and the model reads texts only.
            BackboneError: The processor did not do what it must.
        """
        contents = as_contents(candidates)
        self._encoder.check_readable(contents, self._name)
        if self.uses_features or all(content.image is None for content in contents):
            prompt = self._encoder.encode(query, contents, self._prepared(contents))
        else:
            prompt = self._encoder.encode_plain(query, contents)
        if self._context is not None and prompt.length > self._context:
            raise PromptTooLongError(
                f"The prompt of {len(contents)} candidates and this query has {prompt.length} tokens, the model takes "
                f"{self._context}. Lower max_pixels or max_text_tokens, rerank fewer candidates, or shorten the query."
            )
        return prompt

    def capacity(self, query: str, candidates: Sequence[Showable]) -> int:
        """How many of these candidates one prompt holds, all of them at most: what context and labels allow.

        Where images are not prepared apart from prompts (transformers before 5.18) only the labels count here,
        and a prompt that does not fit says so when it is encoded.

        Raises:
            InvalidRequestError: There is an image among them, and the model reads texts only.
        """
        contents = as_contents(candidates)
        self._encoder.check_readable(contents, self._name)
        most = min(most_labels(self._identity.labels), len(contents))
        pictured = any(content.image is not None for content in contents)
        if self._context is None or (pictured and not self.uses_features) or len(contents) < 2:
            return most
        bounds = [self._encoder.most_tokens(c, self._prepared([c])) for c in contents]
        return most_that_fit(contents, bounds, most, self._context, lambda some: self._length(query, some))

    def observe(self, query: str, candidates: Sequence[Showable]) -> Observation:
        """Show the candidates in this order and ask for the query, in one forward pass.

        Args:
            query: One line of text.
            candidates: At least two: contents, or RGB pictures by themselves.

        Raises:
            AttentionNotSeenError: The read-out rows did not arrive. See :meth:`encode` for other errors.
        """
        return self.observe_many([(query, candidates)])[0]

    def observe_many(self, requests: Sequence[Request]) -> list[Observation]:
        """:meth:`observe` for several requests, in batches.

        Requests over the same candidates in the same order share one run over them; the others run
        side by side. A batch that does not fit the memory is halved, and that is logged.

        Args:
            requests: (query, candidates) pairs; numbers and kinds of candidates may differ.
        """
        # Windows and shifts show the same pictures again and again: each is hashed once.
        contents = as_contents(candidate for _, candidates in requests for candidate in candidates)
        prompts, start = [], 0
        for query, candidates in requests:
            own = contents[start : start + len(candidates)]
            start += len(own)
            prompts.append((beginning(own, self._identity.labels), self.encode(query, own)))
        return self._runs.observe(prompts)

    def features(self, prompt: EncodedPrompt) -> list[ImageFeatures]:
        """Features of a prompt's images; none where it carries pixels."""
        return [self._pictures.features(image) for image in prompt.images]

    def forget(self) -> None:
        """Let go of all features, keys and values that are in memory."""
        self._pictures.clear()
        self._runs.kept.clear()

    def _length(self, query: str, contents: Sequence[Content]) -> int:
        return self._encoder.encode(query, contents, self._prepared(contents)).length

    def _prepared(self, contents: Sequence[Content]) -> list[PreparedImage]:
        return [self._pictures.prepared(c.image, c.pixels) for c in contents if c.image is not None]
