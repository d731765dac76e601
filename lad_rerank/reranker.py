"""LADReranker: the one object a user holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.in_use import CalibrationsInUse
from lad_rerank.calibration.making import Progress, make_calibration
from lad_rerank.calibration.record import Calibration
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.candidates import OpenedCandidate, canonical_order, open_candidates
from lad_rerank.contents import CandidateKind, kind_of
from lad_rerank.debias.scoring import ScoringSettings, get_scorer
from lad_rerank.errors import InvalidRequestError
from lad_rerank.images import ImageLimits
from lad_rerank.passes import Passes, PassPlan
from lad_rerank.prompt import MAX_TEXT_TOKENS, LabelStyle, SpanStyle, clean_query
from lad_rerank.records import Candidate, ImageSource, Ranking
from lad_rerank.tasks import Looker, RankingTask, play

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

BUNDLED = "bundled"


class LADReranker:
    """Ranks images, texts or both for a query in one forward pass of a (multimodal) LLM, whatever their order.

    Threads may share one.

    Args:
        backbone: The model, see :class:`lad_rerank.backbones.huggingface.HuggingFaceBackbone`.
        method: ``"auto"``: the evidence and weights that calibration chose; ``"lad"``: the paper's recipe; or one of
            the other scorers, such as ``"vanilla"``, ``"pride"``, ``"raw_attention"``, ``"attention"``.
        calibration: A calibration, or the path of one; found in the store by default.
        store: Where calibrations are looked for and kept.
        settings: How evidence is turned into scores; the paper's by default.
        canonical: Show a set of candidates always in the same order, so that the ranking cannot depend
            on the caller's. Off only to study position bias.
        allow_urls: Whether images given as http(s) URLs are fetched.
        limits: What an image may be at most.

    Raises:
        InvalidRequestError: Unknown method.
        CalibrationFileError: ``calibration`` is a path and cannot be read.
        CalibrationMismatchError: ``calibration`` was made for another model or other settings.

    Example:
        >>> from lad_rerank import LADReranker
        >>> reranker = LADReranker.from_pretrained("bundled")
        >>> ranking = reranker.rerank("a red striped mug", images, top_n=3)  # doctest: +SKIP
        >>> for hit in ranking: print(hit.rank, hit.index, hit.id, hit.score)  # doctest: +SKIP
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        method: str = "auto",
        calibration: Calibration | str | PathLike[str] | None = None,
        store: CalibrationStore | None = None,
        settings: ScoringSettings | None = None,
        canonical: bool = True,
        allow_urls: bool = False,
        limits: ImageLimits | None = None,
    ) -> None:
        get_scorer(method)
        self.backbone = backbone
        self.method = method
        self.settings = settings or ScoringSettings()
        self.canonical = canonical
        self.allow_urls = allow_urls
        self.limits = limits or ImageLimits()
        self.store = store or CalibrationStore()
        self._calibrations = CalibrationsInUse(backbone, self.store, calibration)

    @classmethod
    def from_pretrained(
        cls,
        model: str | PathLike[str] = BUNDLED,
        *,
        method: str = "auto",
        calibration: Calibration | str | PathLike[str] | None = None,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        labels: LabelStyle = "digits",
        max_pixels: int | None = None,
        max_text_tokens: int = MAX_TEXT_TOKENS,
        spans: SpanStyle = "visual",
        verify: bool = True,
        keeping: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **reranker_kwargs: Any,
    ) -> LADReranker:
        """Load a model and make a reranker of it.

        Args:
            model: ``"bundled"``, a local folder, or a hub id such as ``Qwen/Qwen2.5-VL-3B-Instruct``.
            method: See the class.
            calibration: See the class.
            device: Such as ``"cpu"`` or ``"cuda"``; a GPU where there is one.
            dtype: bfloat16 on a GPU and float32 on a CPU by default; the bundled model is float32.
            device_map: Passed to transformers in place of ``device``.
            revision: Hub revision.
            trust_remote_code: Run code that comes with the model; off unless you say so.
            labels: How candidates are named: ``"digits"``, ``"letters"`` (one token each up to 26),
                ``"lower"``, ``"roman"``, ``"words"``, or ``"auto"``: whichever of digits and letters is one
                token each.
            max_pixels: Pixel budget of one image; 336 x 336 by default, as in the paper.
            max_text_tokens: Tokens of one candidate's text at most; longer ones are cut at their end, and
                ``RankedCandidate.cut`` says by how much.
            spans: ``"visual"``, or ``"delimited"`` to count the marks around an image to its candidate.
            verify: Check at load, on a tiny prompt, that this model is read correctly.
            keeping: Bounds of what is kept between calls: ``max_feature_bytes``, ``feature_folder``,
                ``max_cache_bytes``, ``batch_size`` of ``HuggingFaceBackbone``.
            model_kwargs: Passed to the model's ``from_pretrained``, such as ``quantization_config``.
            **reranker_kwargs: ``store``, ``settings``, ``canonical``, ``allow_urls``, ``limits`` of the class.

        Raises:
            BackboneError: The model cannot be loaded or read.
            InvalidRequestError: Unknown method, labels or spans, or a number below one.
        """
        from lad_rerank.backbones.huggingface import HuggingFaceBackbone

        get_scorer(method)
        source, name = str(model), str(model)
        if model == BUNDLED:
            from lad_rerank import bundled

            source = str(bundled.mllm_folder())
            # Its calibrations are made in float32, and it is too small to gain from less.
            dtype = dtype or "float32"
        backbone = HuggingFaceBackbone.from_pretrained(
            source,
            device=device,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            trust_remote_code=trust_remote_code,
            labels=labels,
            max_pixels=max_pixels,
            max_text_tokens=max_text_tokens,
            spans=spans,
            verify=verify,
            keeping=keeping,
            name=name,
            **(model_kwargs or {}),
        )
        return cls(backbone, method=method, calibration=calibration, **reranker_kwargs)

    @property
    def model(self) -> str:
        """Name of the backbone."""
        return self.backbone.name

    @property
    def calibration(self) -> Calibration | None:
        """The calibration in use for what this model is made for: images, or texts where it sees no images."""
        return self.calibration_for(self.backbone.identity.candidates)

    def calibration_for(self, kind: CandidateKind) -> Calibration | None:
        """The calibration in use for a kind of candidates: the one given, or the one the store holds.

        Args:
            kind: ``"image"``, ``"text"`` or ``"mixed"``; each has a prompt and a bias of its own.
        """
        return self._calibrations.of_kind(kind)

    def calibrate(
        self,
        samples: Sequence[CalibrationSample | Mapping[str, Any]],
        *,
        candidate_counts: Sequence[int] | None = None,
        null_query: bool = False,
        save: bool = True,
        progress: Progress | None = None,
    ) -> Calibration:
        """Learn this model's position bias from a handful of samples, and use it from now on.

        Args:
            samples: ``{query, candidates, target}`` each, all of one kind; five are enough. See
                :func:`lad_rerank.calibration.samples.samples_from_titles` to make them of titled images.
            candidate_counts: Numbers of candidates N to cover; by default from 2 to the largest sample.
                Each N costs S x N forward passes, and 2 x S short ones.
            null_query: Also try evidence against a query that says nothing; see :func:`make_calibration`.
            save: Keep it on disk, where it is found again by the model's identity.
            progress: Called with (passes done, passes in all).

        Returns:
            The calibration, with what was known for other N before.

        Raises:
            CalibrationSampleError: A sample is unusable; the message says which and why.
        """
        made = make_calibration(
            self.backbone,
            samples,
            candidate_counts=candidate_counts,
            null_query=null_query,
            allow_urls=self.allow_urls,
            limits=self.limits,
            progress=progress,
        )
        merged = self._calibrations.add(made)
        if save:
            self.store.save(made)
        return merged

    def rerank(
        self,
        query: str,
        candidates: Sequence[Candidate | ImageSource],
        top_n: int | None = None,
        *,
        method: str | None = None,
        window: int | None = None,
        passes: Passes = 1,
        mean_passes: float | None = None,
    ) -> Ranking:
        """Rank candidates for a query, in one forward pass.

        Args:
            query: What is looked for, in words.
            candidates: Images in any form that ``lad_rerank.images.open_image`` takes, or ``Candidate``
                records with an image, a text or both. Their order does not matter.
            top_n: How many of the best to return; all by default.
            method: Overrides the reranker's for this call.
            window: Most candidates in one pass; by default what the calibration covers and the context
                holds. More candidates than that go through balanced windows and a final pass over their
                best: see :mod:`lad_rerank.windows` for what such a ranking guarantees.
            passes: How often the candidates are looked at: once, k times in different orders, or ``"auto"``: once,
                and again in the opposite order where the first look was unsure (with ``method="auto"``; a calibration
                of fewer than three samples cannot tell, and leaves it at one).
            mean_passes: What ``passes="auto"`` may cost on average, from 1 to 2, on queries like those of the
                calibration; 1.25 by default. Harder queries are looked at again more often.

        Returns:
            The best first. Candidates whose picture cannot be opened are in ``failed``, the others are
            ranked all the same. Candidates with the very same pixels and text share a score.
            ``Ranking.confident`` says whether the right answer seems to be among them at all.

        Raises:
            InvalidRequestError: Empty query, ``top_n`` below one, unknown method.
            CalibrationMissingError: The method needs a calibration and there is none for this number of
                candidates; the message names the command that makes one.
            DegenerateScoresError: Scores are NaN, infinite or all equal.
            PromptTooLongError: The prompt does not fit the model.
            BackboneError: The model did not behave as it must.
        """
        many = self.rerank_many(
            [query], [candidates], top_n, method=method, window=window, passes=passes, mean_passes=mean_passes
        )
        return many[0]

    def rerank_many(
        self,
        queries: Sequence[str],
        candidates: Sequence[Sequence[Candidate | ImageSource]],
        top_n: int | None = None,
        *,
        method: str | None = None,
        window: int | None = None,
        passes: Passes = 1,
        mean_passes: float | None = None,
    ) -> list[Ranking]:
        """:meth:`rerank` for many queries, in batches of passes.

        Queries over the same candidates share one run over the images.

        Args:
            queries: Q queries.
            candidates: Q lists of candidates, of any lengths.
            top_n: See :meth:`rerank`.
            method: See :meth:`rerank`.
            window: See :meth:`rerank`.
            passes: See :meth:`rerank`.
            mean_passes: See :meth:`rerank`.

        Returns:
            Q rankings, equal to those of one query at a time up to rounding.

        Raises:
            InvalidRequestError: Not as many lists as queries; or see :meth:`rerank`, which also tells of
                the other errors. One bad query fails the call before any pass is made.
        """
        if isinstance(queries, str) or not all(isinstance(x, Sequence) for x in (queries, candidates)):
            raise InvalidRequestError("rerank_many takes a list of queries and a list of lists of candidates.")
        if len(queries) != len(candidates):
            raise InvalidRequestError(
                f"rerank_many takes one list of candidates for each query; got {len(queries)} and {len(candidates)}."
            )
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 2):
            raise InvalidRequestError(f"window must be a whole number of at least 2, or None; got {window!r}.")
        if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1):
            raise InvalidRequestError(f"top_n must be a whole number of at least 1, or None for all; got {top_n!r}.")
        method = method or self.method
        scorer = get_scorer(method)
        plan = PassPlan.of(passes, mean_passes)
        if plan.unsure and method != "auto":
            raise InvalidRequestError(
                f"passes='auto' needs method='auto', whose margins calibration has measured; method={method!r} takes a "
                "number of passes."
            )
        lines = [clean_query(query) for query in queries]
        tasks = [self._task(line, own, top_n, method, window) for line, own in zip(lines, candidates, strict=True)]
        bias_for = self._calibrations.position_bias if scorer.needs_calibration else lambda n, kind, of_list: None
        play(tasks, Looker(self.backbone, method, self.settings, bias_for), plan)
        return [task.ranking(query, method, self.model) for task, query in zip(tasks, queries, strict=True)]

    def _task(
        self,
        line: str,
        candidates: Sequence[Candidate | ImageSource],
        top_n: int | None,
        method: str,
        window: int | None,
    ) -> RankingTask:
        opened, failed = open_candidates(candidates, allow_urls=self.allow_urls, limits=self.limits)
        if self.canonical:
            opened = canonical_order(opened)
        return RankingTask(line, opened, failed, self._window(line, opened, method, window), top_n)

    def _window(self, line: str, opened: Sequence[OpenedCandidate], method: str, window: int | None) -> int:
        """How many candidates one pass may show: what the calibration covers and the context holds."""
        if window is not None:
            return window
        fitting = len(opened)
        contents = [candidate.content for candidate in opened]
        if get_scorer(method).needs_calibration and contents:
            calibration = self.calibration_for(kind_of(contents))
            if calibration is not None:
                fitting = min(fitting, max(calibration.counts, default=fitting))
        return max(2, min(fitting, self.backbone.capacity(line, contents)))
