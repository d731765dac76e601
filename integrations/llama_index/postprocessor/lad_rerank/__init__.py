"""LAD image reranking as a LlamaIndex node postprocessor."""

from __future__ import annotations

try:
    import llama_index.core  # noqa: F401 - the namespace is ours too, so its absence shows only here
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("llama_index"):
        raise
    raise ImportError('LADRerank needs LlamaIndex: pip install "lad-rerank[llama-index]"') from error

from llama_index.postprocessor.lad_rerank.base import LADRerank

__all__ = ["LADRerank"]
