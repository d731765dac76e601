"""A LlamaIndex postprocessor over :class:`lad_rerank.LADReranker`: nodes in, ranked nodes out."""

from __future__ import annotations

import asyncio
import logging
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle

from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.prompt import LabelStyle
from lad_rerank.records import Candidate, Ranking
from llama_index.postprocessor.lad_rerank.candidates import Texts, candidate_of, is_text_only, with_notes
from llama_index.postprocessor.lad_rerank.images import without_payload
from llama_index.postprocessor.lad_rerank.settings import RETRIEVAL_SCORE, RerankSettings, checked_fields

if TYPE_CHECKING:
    import torch

    from lad_rerank import LADReranker

logger = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)


class LADRerank(RerankSettings):
    """Reranks the pictures of nodes, or their texts, with a multimodal LLM, whatever their order.

    The model is loaded on first use, once, and threads share it. Nodes keep their class and id; a node
    that occurs twice is returned once. A node's picture is looked for where
    :func:`llama_index.postprocessor.lad_rerank.images.open_node_image` says.

    Scores are listwise probabilities in [0, 1]: how the model divides its belief among the nodes of this
    query. They sum to 1 over the ranked nodes before ``top_n`` cuts. They do not say that a node is
    relevant (one node alone scores 1.0), so a threshold on them cannot mean "none of these";
    ``drop_unconfident`` and ``confidence_key`` can.

    A calibration is made for one kind of candidates, and the nodes of a query decide which is needed: pictures alone,
    texts alone, or anything else ("mixed"). Where it is missing, the error names the command that makes it.

    The retriever's scores are used where the calibration has learned their weight, which takes samples with
    ``first_stage_score`` from the same retriever. Any scale does, but only that one: the "scores" of LlamaIndex's
    ``FaissVectorStore`` over an L2 index, say, are distances, smaller for better nodes.

    Args:
        top_n: How many nodes to return at most.
        model: ``"bundled"`` (the default), a local folder, or a hub id such as ``Qwen/Qwen2.5-VL-3B-Instruct``.
        method: ``"auto"`` (the default): what calibration chose; ``"lad"``: the paper's recipe; or a baseline
            such as ``"vanilla"``.
        calibration: Path of a calibration file; found by the model's identity by default.
        device: Such as ``"cpu"`` or ``"cuda:1"``; a GPU where there is one.
        dtype: Such as ``"bfloat16"``; by default bfloat16 on a GPU and float32 on a CPU.
        device_map: Passed to transformers in place of ``device``.
        max_pixels: Pixel budget of one picture.
        max_text_tokens: Tokens of one node's text at most, 256 by default; the rest is not shown. LlamaIndex's
            splitters make chunks of up to 1024 tokens.
        labels: How candidates are named in the prompt: ``"digits"`` (the default), ``"letters"``, ... as for
            ``LADReranker.from_pretrained``.
        revision: Hub revision.
        trust_remote_code: Run code that comes with the model; off unless you say so.
        allow_urls: Whether pictures given by http(s) URL are fetched; off unless you say so.
        texts: Whose text is shown, without its metadata. ``"never"`` (the default): nodes are ranked by their
            pictures. ``"without_picture"``: by their texts where no picture belongs to them. ``"always"``: by picture
            and text together, or by the one there is. A node whose picture is lost or broken is not ranked by
            its text in any case: the picture was meant, and the text alone may say little. Nor is one whose
            picture is behind a URL while ``allow_urls`` is off.
        passes: How often the nodes are looked at: once (the default), k times in different orders, or
            ``"auto"``: again only where the first look was unsure, which needs ``method="auto"``.
        mean_passes: What ``passes="auto"`` may cost on average, from 1 to 2; 1.25 by default.
        keep_retrieval_score: Keep the retriever's score in ``metadata["retrieval_score"]``, on a copy of
            the node: the retriever's own nodes are never changed.
        confidence_key: Keep in ``metadata[confidence_key]``, on a copy, whether a right node seems to be among
            the ranked ones at all: a number in [0, 1], the same for all of them, 0.5 and more for yes. ``None``
            where calibration could not tell the two apart, with one ranked node, with a method without
            calibration, and on nodes that were not ranked.
        drop_unconfident: Return no node at all where that number is below 0.5; a warning names the query. Where
            there is no such number nodes are returned as usual, and a warning says that too.
        on_failed: What happens to nodes that cannot be ranked: their picture does not open, or they are texts and
            ``texts`` is ``"never"``. ``"keep"``: they follow the ranked ones in retrieval order with score 0.0.
            ``"drop"``: they are left out. ``"raise"``: ``ImageError``. A warning names them and says why in
            every case.
        reranker: A ready ``LADReranker``, for settings that are not fields here or a model that is loaded
            already. ``model``, ``method``, ``labels``, ``revision`` and ``allow_urls`` are then taken from it,
            and nothing that belongs to a reranker may be given beside it. Of what belongs to it only these five
            are serialised: ``from_dict`` loads the model by its name, and pickling is refused.
        callback_manager: LlamaIndex's.

    Raises:
        InvalidRequestError: Unknown method, unusable passes, ``reranker`` is no ``LADReranker``, or comes with
            settings that it already has.
        ValueError: A field has the wrong type or value; pydantic's message names it.

    Example:
        >>> engine = RetrieverQueryEngine.from_args(
        ...     retriever, llm=llm, node_postprocessors=[LADRerank(top_n=3)], multimodal=True
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        top_n: int = 3,
        model: str | PathLike[str] | None = None,
        *,
        method: str | None = None,
        calibration: str | PathLike[str] | None = None,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: str | dict[str, int | str] | None = None,
        max_pixels: int | None = None,
        max_text_tokens: int | None = None,
        labels: LabelStyle | None = None,
        revision: str | None = None,
        trust_remote_code: bool | None = None,
        allow_urls: bool | None = None,
        texts: Texts = "never",
        passes: int | Literal["auto"] = 1,
        mean_passes: float | None = None,
        keep_retrieval_score: bool = False,
        confidence_key: str | None = None,
        drop_unconfident: bool = False,
        on_failed: Literal["keep", "drop", "raise"] = "keep",
        reranker: LADReranker | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        # None means "not given", so that what a reranker has already can be told from what is asked for.
        of_reranker: dict[str, Any] = {
            "model": fspath(model) if isinstance(model, PathLike) else model,
            "method": method,
            "calibration": fspath(calibration) if isinstance(calibration, PathLike) else calibration,
            "device": device,
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "device_map": device_map,
            "max_pixels": max_pixels,
            "max_text_tokens": max_text_tokens,
            "labels": labels,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "allow_urls": allow_urls,
        }
        of_calls: dict[str, Any] = {
            "top_n": top_n,
            "texts": texts,
            "passes": passes,
            "mean_passes": mean_passes,
            "keep_retrieval_score": keep_retrieval_score,
            "confidence_key": confidence_key,
            "drop_unconfident": drop_unconfident,
            "on_failed": on_failed,
            "callback_manager": callback_manager or CallbackManager([]),
        }
        super().__init__(**checked_fields(of_reranker, of_calls, reranker))
        self._reranker = reranker
        self._given = reranker is not None

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises it."""
        return "LADRerank"

    @dispatcher.span
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """Rank the nodes.

        Args:
            nodes: In retrieval order; not changed.
            query_bundle: What is looked for, in words.

        Returns:
            New ``NodeWithScore`` objects, best first, at most ``top_n``.

        Raises:
            ValueError: No query bundle.
            InvalidRequestError: The query has no text, or a node has a picture and the model reads texts only.
            ImageError: A node cannot be ranked and ``on_failed`` is ``"raise"``.
            CalibrationMissingError: The method needs a calibration and there is none for this many nodes of this kind.
            LADRerankError: The model did not behave as it must.
        """
        if query_bundle is None:
            raise ValueError("Missing query bundle in extra info.")
        first: dict[str, NodeWithScore] = {}
        for hit in nodes:  # a copy would take a place of top_n from another node
            first.setdefault(hit.node_id, hit)
        unique = list(first.values())
        if unique:
            _check_query(query_bundle)
        name = self._reranker.model if self._reranker is not None else self.model
        shown = [without_payload(hit) for hit in unique]
        dispatcher.event(ReRankStartEvent(query=query_bundle, nodes=shown, top_n=self.top_n, model_name=name))
        payload: dict[str, Any] = {
            EventPayload.NODES: shown,
            EventPayload.MODEL_NAME: name,
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: self.top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            ranked = self._rank(query_bundle.query_str, unique) if unique else []
            returned = [without_payload(hit) for hit in ranked]
            event.on_end(payload={EventPayload.NODES: returned})
        dispatcher.event(ReRankEndEvent(nodes=returned))
        return ranked

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """The same in a thread: a local model would hold up the event loop."""
        return await asyncio.to_thread(self._postprocess_nodes, nodes, query_bundle)

    def _rank(self, query: str, hits: list[NodeWithScore]) -> list[NodeWithScore]:
        candidates, failed = self._candidates(hits)
        self._report(hits, failed)
        ranked: list[NodeWithScore] = []
        if candidates:
            ranking = self.reranker.rerank(
                query,
                list(candidates.values()),
                top_n=self.top_n,
                method=self.method,
                passes=self.passes,
                mean_passes=self.mean_passes,
            )
            if self.drop_unconfident and not _seems_answered(ranking):
                return []
            positions = list(candidates)
            ranked = [self._scored(hits[positions[item.index]], item.score, ranking.confidence) for item in ranking]
        logger.info(
            "LADRerank (%s, %s): %d of %d nodes ranked, best %d kept.",
            self.model, self.method, len(candidates), len(hits), len(ranked),
        )  # fmt: skip
        if self.on_failed == "keep":
            ranked += [self._scored(hits[position], 0.0, None) for position in sorted(failed)]
        return ranked[: self.top_n]

    def _candidates(self, hits: list[NodeWithScore]) -> tuple[dict[int, Candidate], dict[int, str]]:
        """What can be ranked and why the rest cannot, by position in hits."""
        candidates: dict[int, Candidate] = {}
        failed: dict[int, str] = {}
        limits = self._reranker.limits if self._reranker is not None else None
        for position, hit in enumerate(hits):
            try:
                candidates[position] = candidate_of(hit, self.texts, allow_urls=self.allow_urls, limits=limits)
            except ImageError as error:
                failed[position] = str(error)
        return candidates, failed

    def _report(self, hits: list[NodeWithScore], failed: dict[int, str]) -> None:
        if not failed:
            return
        message = f"{len(failed)} of {len(hits)} nodes cannot be ranked: {' '.join(failed.values())}"
        texts = sum(is_text_only(hits[position].node) for position in failed) if self.texts == "never" else 0
        if texts:
            message += f" texts='without_picture' would rank the texts of {texts} of them."
        logger.warning("LADRerank: %s", message)
        if self.on_failed == "raise":
            raise ImageError(message)

    def _scored(self, hit: NodeWithScore, score: float, confidence: float | None) -> NodeWithScore:
        notes: dict[str, float | None] = {}
        if self.keep_retrieval_score:
            notes[RETRIEVAL_SCORE] = None if hit.score is None else float(hit.score)
        if self.confidence_key is not None:
            notes[self.confidence_key] = confidence
        return NodeWithScore(node=with_notes(hit.node, notes), score=float(score))


def _seems_answered(ranking: Ranking) -> bool:
    """Whether a ranking's nodes may be returned; says so where not, or where nobody knows."""
    if ranking.confidence is None:
        logger.warning("LADRerank: whether any node answers %r is not known; they are returned.", ranking.query)
    elif not ranking.confident:
        logger.warning(
            "LADRerank: none of the nodes seems to answer %r (confidence %.2f); none is returned.",
            ranking.query, ranking.confidence,
        )  # fmt: skip
    return ranking.confident is not False


def _check_query(query: QueryBundle) -> None:
    if query.query_str.strip():
        return
    if query.image_path is not None:
        raise InvalidRequestError(
            "LADRerank ranks by words, and this query is only a picture (image_path, no query_str). "
            "Give query_str too, or leave the postprocessor out for queries by picture."
        )
    raise InvalidRequestError("The query is empty; give query_str what is looked for.")
