"""What the reranker is shown of a LlamaIndex node: its picture, its text, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from lad_rerank.errors import ImageError
from lad_rerank.prompt import clean_text
from lad_rerank.records import Candidate
from llama_index.postprocessor.lad_rerank.images import means_picture, open_node_image, other_file

if TYPE_CHECKING:
    from lad_rerank.images import ImageLimits

Texts: TypeAlias = Literal["never", "without_picture", "always"]
"""Whose text is shown: nobody's, that of nodes without a picture, or everybody's."""


def candidate_of(
    hit: NodeWithScore, texts: Texts = "never", *, allow_urls: bool = False, limits: ImageLimits | None = None
) -> Candidate:
    """Make a candidate of a node.

    Args:
        hit: Not changed.
        texts: Whether its text is shown.
        allow_urls: Whether a picture may be fetched from an http(s) URL.
        limits: What a picture may be at most.

    Returns:
        The opened picture, the text, or both, with the node's id and the retriever's score.

    Raises:
        ImageError: The node's picture does not open, even if there is a text; or it has nothing that may be shown.
            Names the node and says why.
    """
    node = hit.node
    text = None if texts == "never" else text_of(node)
    image = None
    # The files that texts were read from may be large: they are not read again to see that they are no pictures.
    if text is None or not other_file(node):
        try:
            image = open_node_image(node, allow_urls=allow_urls, limits=limits)
        except ImageError as error:
            if texts == "never":
                raise
            if text is None:
                raise ImageError(f"{error} It has no text either.") from error
            if means_picture(node):
                raise ImageError(f"{error} Its text is not ranked in the place of its picture.") from error
        else:
            text = text if texts == "always" else None
    return Candidate(image=image, id=hit.node_id, text=text, first_stage_score=retrieval_score(hit))


def text_of(node: BaseNode) -> str | None:
    """A node's own text without its metadata, which would give away file names; ``None`` where it is blank."""
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return text if clean_text(text) else None


def retrieval_score(hit: NodeWithScore) -> float | None:
    """The retriever's score, where it is a finite number."""
    return float(hit.score) if hit.score is not None and math.isfinite(hit.score) else None


def is_text_only(node: BaseNode) -> bool:
    """Whether ``texts="without_picture"`` would rank a node whose picture does not open."""
    return not means_picture(node) and text_of(node) is not None


def with_notes(node: BaseNode, notes: Mapping[str, Any]) -> BaseNode:
    """A copy of a node with more metadata; the node itself without any.

    Notes are no content: they reach neither embeddings nor the language model.
    """
    if not notes:
        return node
    return node.model_copy(
        update={
            "metadata": {**node.metadata, **notes},
            "excluded_embed_metadata_keys": [*dict.fromkeys([*node.excluded_embed_metadata_keys, *notes])],
            "excluded_llm_metadata_keys": [*dict.fromkeys([*node.excluded_llm_metadata_keys, *notes])],
        }
    )
