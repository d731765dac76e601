"""The CLIP/FAISS first stage as a LlamaIndex retriever."""

from __future__ import annotations

from llama_index.retrievers.clip_faiss.base import ClipFaissRetriever

__all__ = ["ClipFaissRetriever"]
