"""What can be set about a LADRerank: checked, serialised, and loaded from."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from lad_rerank.debias.scoring import get_scorer
from lad_rerank.errors import InvalidRequestError
from lad_rerank.passes import PassPlan
from lad_rerank.prompt import MAX_TEXT_TOKENS, LabelStyle
from llama_index.postprocessor.lad_rerank.candidates import Texts

if TYPE_CHECKING:
    from lad_rerank import LADReranker

RETRIEVAL_SCORE = "retrieval_score"

# Shared by all instances: a lock on the instance could neither be pickled nor copied.
_LOADING = threading.Lock()


class RerankSettings(BaseNodePostprocessor):
    """The fields of ``LADRerank``, which documents them, and the model they name.

    ``LADRerank`` has the constructor: type checkers would not see an inherited one.
    """

    model: str = Field(default="bundled", description="Model: 'bundled', a local folder or a hub id.")
    top_n: int = Field(default=3, ge=1, strict=True, description="Number of nodes to return at most.")
    method: str = Field(default="auto", description="How the pass is turned into scores.")
    calibration: str | None = Field(default=None, description="Path of a calibration file.")
    device: str | None = Field(default=None, description="Device the model runs on.")
    dtype: str | None = Field(default=None, description="Floating point type of the model.")
    device_map: str | dict[str, int | str] | None = Field(
        default=None, description="Passed to transformers in place of device."
    )
    max_pixels: int | None = Field(default=None, ge=1, description="Pixel budget of one picture.")
    max_text_tokens: int | None = Field(default=None, ge=1, description="Tokens of one node's text at most.")
    labels: LabelStyle = Field(default="digits", description="How candidates are named in the prompt.")
    revision: str | None = Field(default=None, description="Hub revision of the model.")
    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
    allow_urls: bool = Field(default=False, description="Fetch pictures given by http(s) URL.")
    texts: Texts = Field(default="never", description="Whose text is shown to the model.")
    passes: int | Literal["auto"] = Field(default=1, description="How often the nodes are looked at.")
    mean_passes: float | None = Field(default=None, description="What passes='auto' may cost on average.")
    keep_retrieval_score: bool = Field(
        default=False, description="Keep the retriever's score in metadata['retrieval_score']."
    )
    confidence_key: str | None = Field(
        default=None, min_length=1, description="Where in the metadata to keep whether a right node seems to be there."
    )
    drop_unconfident: bool = Field(default=False, description="Return no node where none of them seems right.")
    on_failed: Literal["keep", "drop", "raise"] = Field(
        default="keep", description="What happens to nodes that cannot be ranked."
    )
    _reranker: LADReranker | None = PrivateAttr(default=None)
    _given: bool = PrivateAttr(default=False)

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
            max_text_tokens=self.max_text_tokens or MAX_TEXT_TOKENS,
            allow_urls=self.allow_urls,
        )


def checked_fields(of_reranker: Mapping[str, Any], of_calls: Mapping[str, Any], reranker: Any) -> dict[str, Any]:
    """Fields from what was given, as far as pydantic does not check it.

    Args:
        of_reranker: Settings of the reranker; ``None`` means not given.
        of_calls: Settings of this postprocessor's own.
        reranker: One that has its settings already, or ``None``.

    Raises:
        InvalidRequestError: Unknown method, unusable passes, two values for one metadata key, or a reranker that
            is none or has its own of what was given.
    """
    fields = {name: value for name, value in of_reranker.items() if value is not None}
    if reranker is not None:
        fields = _settings_of(reranker, fields)
    method = fields.get("method", "auto")
    get_scorer(method)
    if PassPlan.of(of_calls["passes"], of_calls["mean_passes"]).unsure and method != "auto":
        raise InvalidRequestError(f"passes='auto' needs method='auto'; method={method!r} takes a number of passes.")
    if of_calls["keep_retrieval_score"] and of_calls["confidence_key"] == RETRIEVAL_SCORE:
        raise InvalidRequestError(f"confidence_key={RETRIEVAL_SCORE!r} is where the retriever's score is kept.")
    return {**fields, **of_calls}


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
