"""A LlamaIndex retriever over :class:`clip_faiss.ClipFaissIndex`."""

from __future__ import annotations

import asyncio
from os import PathLike, fspath
from typing import TYPE_CHECKING

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle
except ImportError as error:
    raise ImportError(
        'ClipFaissRetriever needs LlamaIndex: pip install "lad-rerank[llama-index,index]". '
        f"Importing it failed with: {error}"
    ) from error

from clip_faiss import ClipFaissIndex

if TYPE_CHECKING:
    from clip_faiss import Hit


class ClipFaissRetriever(BaseRetriever):
    """Retrieves pictures as ``ImageNode``, best first.

    A node's ``id_`` is the picture's id in the index, ``image_path`` its file (whether or not the file is
    still there), ``metadata`` what the index keeps of it, and ``text`` the metadata's ``"title"``, empty
    where there is none. Scores are cosine similarities. File paths stay out of what is embedded or shown
    to a language model: names of files give answers away.

    Args:
        index: The index, or the folder it was saved in.
        similarity_top_k: How many pictures to retrieve.
        callback_manager: LlamaIndex's.

    Raises:
        InvalidRequestError: ``similarity_top_k`` below 1, when retrieving.
        FirstStageError: The folder holds no usable index.

    Example:
        >>> retriever = ClipFaissRetriever("photos.index", similarity_top_k=8)
        >>> [node.node_id for node in retriever.retrieve("a red mug")][:2]
        ['mugs/17.jpg', 'mugs/3.jpg']
    """

    def __init__(
        self,
        index: ClipFaissIndex | str | PathLike[str],
        similarity_top_k: int = 8,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self.index = index if isinstance(index, ClipFaissIndex) else ClipFaissIndex.load(fspath(index))
        self.similarity_top_k = similarity_top_k
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Search by the query's text, or where it has none by its picture."""
        if not query_bundle.query_str.strip() and query_bundle.image_path:
            hits = self.index.search_image(query_bundle.image_path, self.similarity_top_k)
        else:
            hits = self.index.search(query_bundle.query_str, self.similarity_top_k)
        return [NodeWithScore(node=self._node(hit), score=hit.score) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """The same in a thread: the model would hold up the event loop."""
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _node(self, hit: Hit) -> ImageNode:
        path = self.index.file(hit)
        title = hit.metadata.get("title")
        return ImageNode(
            id_=hit.id,
            text=title if isinstance(title, str) else "",
            image_path=None if path is None else str(path),
            metadata=hit.metadata,
            excluded_embed_metadata_keys=["path", "title"],
            excluded_llm_metadata_keys=["path", "title"],
        )
