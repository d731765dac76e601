"""A LlamaIndex postprocessor over :class:`lad_rerank.LADReranker`: nodes in, ranked nodes out."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from lad_rerank.debias.scoring import get_scorer
from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.prompt import LabelStyle
from lad_rerank.records import Candidate
from llama_index.postprocessor.lad_rerank.images import open_node_image, without_payload

if TYPE_CHECKING:
    import torch

    from lad_rerank import LADReranker

logger = logging.getLogger(__name__)
dispatcher = get_dispatcher(__name__)

# Shared by all instances: a lock on the instance could neither be pickled nor copied.
_LOADING = threading.Lock()


class LADRerank(BaseNodePostprocessor):
    """Reranks the pictures of nodes with a multimodal LLM, in one forward pass, whatever their order.

    The model is loaded on first use, once, and threads share it. Nodes keep their class and id; a node
    that occurs twice is returned once. A node's picture is looked for where
    :func:`llama_index.postprocessor.lad_rerank.images.open_node_image` says.

    Scores are listwise probabilities in [0, 1]: how the model divides its belief among the nodes of this
    query. They sum to 1 over the ranked nodes before ``top_n`` cuts. They do not say that a node is
    relevant (one node alone scores 1.0), so a threshold cannot mean "none of these".

    Args:
        model: ``"bundled"`` (the default), a local folder, or a hub id such as ``Qwen/Qwen2.5-VL-3B-Instruct``.
        top_n: How many nodes to return at most.
        method: ``"lad"`` (the default), or a baseline such as ``"vanilla"``.
        calibration: Path of a calibration file; found by the model's identity by default.
        device: Such as ``"cpu"`` or ``"cuda:1"``; a GPU where there is one.
        dtype: Such as ``"bfloat16"``; by default bfloat16 on a GPU and float32 on a CPU.
        device_map: Passed to transformers in place of ``device``.
        max_pixels: Pixel budget of one picture.
        labels: How candidates are named in the prompt: ``"digits"`` (the default), ``"letters"``, ... as for
            ``LADReranker.from_pretrained``.
        revision: Hub revision.
        trust_remote_code: Run code that comes with the model; off unless you say so.
        allow_urls: Whether pictures given by http(s) URL are fetched; off unless you say so.
        keep_retrieval_score: Keep the retriever's score in ``metadata["retrieval_score"]``, on a copy of
            the node: the retriever's own nodes are never changed.
        on_failed: What happens to nodes whose picture cannot be opened, text nodes among them. ``"keep"``:
            they follow the ranked ones in retrieval order with score 0.0. ``"drop"``: they are left out.
            ``"raise"``: ``ImageError``. A warning names them and says why in every case.
        reranker: A ready ``LADReranker``, for settings that are not fields here or a model that is loaded
            already. ``model``, ``method``, ``labels``, ``revision`` and ``allow_urls`` are then taken from it,
            and nothing that belongs to a reranker may be given beside it. Only these five are serialised:
            ``from_dict`` loads the model by its name, and pickling is refused.
        callback_manager: LlamaIndex's.

    Raises:
        InvalidRequestError: Unknown method, ``reranker`` is no ``LADReranker``, or comes with settings
            that it already has.
        ValueError: A field has the wrong type or value; pydantic's message names it.

    Example:
        >>> engine = RetrieverQueryEngine.from_args(
        ...     retriever, llm=llm, node_postprocessors=[LADRerank(top_n=3)], multimodal=True
        ... )  # doctest: +SKIP
    """

    model: str = Field(default="bundled", description="Model: 'bundled', a local folder or a hub id.")
    top_n: int = Field(default=3, ge=1, strict=True, description="Number of nodes to return at most.")
    method: str = Field(default="lad", description="How the pass is turned into scores.")
    calibration: str | None = Field(default=None, description="Path of a calibration file.")
    device: str | None = Field(default=None, description="Device the model runs on.")
    dtype: str | None = Field(default=None, description="Floating point type of the model.")
    device_map: str | dict[str, int | str] | None = Field(
        default=None, description="Passed to transformers in place of device."
    )
    max_pixels: int | None = Field(default=None, ge=1, description="Pixel budget of one picture.")
    labels: LabelStyle = Field(default="digits", description="How candidates are named in the prompt.")
    revision: str | None = Field(default=None, description="Hub revision of the model.")
    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
    allow_urls: bool = Field(default=False, description="Fetch pictures given by http(s) URL.")
    keep_retrieval_score: bool = Field(
        default=False, description="Keep the retriever's score in metadata['retrieval_score']."
    )
    on_failed: Literal["keep", "drop", "raise"] = Field(
        default="keep", description="What happens to nodes whose picture cannot be opened."
    )
    _reranker: LADReranker | None = PrivateAttr(default=None)
    _given: bool = PrivateAttr(default=False)

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
        labels: LabelStyle | None = None,
        revision: str | None = None,
        trust_remote_code: bool | None = None,
        allow_urls: bool | None = None,
        keep_retrieval_score: bool = False,
        on_failed: Literal["keep", "drop", "raise"] = "keep",
        reranker: LADReranker | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        # None means "not given", so that what a reranker has already can be told from what is asked for.
        given: dict[str, Any] = {
            "model": fspath(model) if isinstance(model, PathLike) else model,
            "method": method,
            "calibration": fspath(calibration) if isinstance(calibration, PathLike) else calibration,
            "device": device,
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "device_map": device_map,
            "max_pixels": max_pixels,
            "labels": labels,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "allow_urls": allow_urls,
        }
        loading = {name: value for name, value in given.items() if value is not None}
        if reranker is not None:
            loading = _settings_of(reranker, loading)
        elif method is not None:
            get_scorer(method)
        fields: dict[str, Any] = {
            **loading,
            "top_n": top_n,
            "keep_retrieval_score": keep_retrieval_score,
            "on_failed": on_failed,
            "callback_manager": callback_manager or CallbackManager([]),
        }
        super().__init__(**fields)
        self._reranker = reranker
        self._given = reranker is not None

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises it."""
        return "LADRerank"

    @property
    def reranker(self) -> LADReranker:
        """The reranker; loads the model on first use.

        Raises:
            BackboneError: The model cannot be loaded.
            CalibrationError: ``calibration`` cannot be read or was made for another model.
        """
        reranker = self._reranker
        if reranker is None:
            with _LOADING:
                reranker = self._reranker = self._reranker or self._load()
        return reranker

    def unload(self) -> None:
        """Let go of the model; the next use loads it again. A given ``reranker`` stays."""
        if not self._given:
            self._reranker = None

    def __getstate__(self) -> dict[str, Any]:
        """Fields only: the model is loaded again where the pickle is opened.

        Raises:
            TypeError: Made from ``reranker=``, which has settings that no field knows.
        """
        if self._given:
            raise TypeError("A LADRerank made from reranker=... cannot be pickled; name the model in its place.")
        fields = {key: value for key, value in self.__dict__.items() if key != "callback_manager"}
        return {
            "__dict__": fields,
            "__pydantic_extra__": None,
            "__pydantic_fields_set__": set(self.model_fields_set) - {"callback_manager"},
            "__pydantic_private__": None,
        }

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
            InvalidRequestError: The query has no text.
            ImageError: A picture cannot be opened and ``on_failed`` is ``"raise"``.
            CalibrationMissingError: The method needs a calibration and there is none for this many nodes.
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
        candidates: list[Candidate] = []
        positions: list[int] = []  # of each candidate, in hits
        failed: dict[int, str] = {}
        limits = self._reranker.limits if self._reranker is not None else None
        for position, hit in enumerate(hits):
            try:
                image = open_node_image(hit.node, allow_urls=self.allow_urls, limits=limits)
            except ImageError as error:
                failed[position] = str(error)
            else:
                candidates.append(Candidate(image=image, id=hit.node_id))
                positions.append(position)
        self._report(hits, failed)
        ranked: list[NodeWithScore] = []
        if candidates:
            ranking = self.reranker.rerank(query, candidates, top_n=self.top_n, method=self.method)
            ranked = [self._scored(hits[positions[item.index]], item.score) for item in ranking]
        logger.info(
            "LADRerank (%s, %s): %d of %d nodes ranked, best %d kept.",
            self.model, self.method, len(candidates), len(hits), len(ranked),
        )  # fmt: skip
        if self.on_failed == "keep":
            ranked += [self._scored(hits[position], 0.0) for position in sorted(failed)]
        return ranked[: self.top_n]

    def _report(self, hits: list[NodeWithScore], failed: dict[int, str]) -> None:
        if not failed:
            return
        message = f"{len(failed)} of {len(hits)} nodes cannot be ranked: {' '.join(failed.values())}"
        logger.warning("LADRerank: %s", message)
        if self.on_failed == "raise":
            raise ImageError(message)

    def _scored(self, hit: NodeWithScore, score: float) -> NodeWithScore:
        node = hit.node
        if self.keep_retrieval_score:
            key = "retrieval_score"
            node = node.model_copy(
                update={
                    "metadata": {**node.metadata, key: None if hit.score is None else float(hit.score)},
                    # A score is no content: it must reach neither embeddings nor the language model.
                    "excluded_embed_metadata_keys": _with(node.excluded_embed_metadata_keys, key),
                    "excluded_llm_metadata_keys": _with(node.excluded_llm_metadata_keys, key),
                }
            )
        return NodeWithScore(node=node, score=float(score))

    def _load(self) -> LADReranker:
        from lad_rerank import LADReranker

        return LADReranker.from_pretrained(
            self.model,
            method=self.method,
            calibration=self.calibration,
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            labels=self.labels,
            max_pixels=self.max_pixels,
            allow_urls=self.allow_urls,
        )


def _settings_of(reranker: Any, set_too: Iterable[str]) -> dict[str, Any]:
    """The fields that a given reranker answers for.

    Raises:
        InvalidRequestError: It is none, or ``set_too`` names settings that were given beside it.
    """
    from lad_rerank import LADReranker

    if not isinstance(reranker, LADReranker):
        raise InvalidRequestError(f"reranker must be a LADReranker, got {type(reranker).__name__}.")
    if names := ", ".join(set_too):
        raise InvalidRequestError(f"{names} cannot be set beside reranker=...: the reranker has its own.")
    return {
        "model": reranker.model,
        "method": reranker.method,
        "labels": reranker.backbone.identity.labels,
        "revision": reranker.backbone.revision,
        "allow_urls": reranker.allow_urls,
    }


def _check_query(query: QueryBundle) -> None:
    if query.query_str.strip():
        return
    if query.image_path is not None:
        raise InvalidRequestError(
            "LADRerank ranks by words, and this query is only a picture (image_path, no query_str). "
            "Give query_str too, or leave the postprocessor out for queries by picture."
        )
    raise InvalidRequestError("The query is empty; give query_str what is looked for.")


def _with(keys: list[str], key: str) -> list[str]:
    return keys if key in keys else [*keys, key]
