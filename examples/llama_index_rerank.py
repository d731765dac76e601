"""Retrieve with CLIP/FAISS, rerank with LAD, answer with a multimodal query engine: all in LlamaIndex.

Run it with ``python examples/llama_index_rerank.py "a red striped mug"``. It needs
``pip install "lad-rerank[index,llama-index]"`` and nothing from the network: models, pictures and the mock
LLM that stands for yours are all installed. Set ``llm`` to a real multimodal LLM to get real answers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from clip_faiss import ClipFaissIndex
from lad_rerank.bundled.shop import catalogue
from llama_index.postprocessor.lad_rerank import LADRerank
from llama_index.retrievers.clip_faiss import ClipFaissRetriever


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query", nargs="?", default="a yellow striped mug with a star logo")
    parser.add_argument("--products", type=int, default=300, help="size of the shop")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        index = shop(Path(folder), arguments.products)

        # The five lines.
        retriever = ClipFaissRetriever(index, similarity_top_k=8)
        rerank = LADRerank(model="bundled", top_n=3, keep_retrieval_score=True, confidence_key="confidence")
        llm = MockLLM(is_chat_model=True, max_tokens=1)
        engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[rerank], multimodal=True)
        answer = engine.query(arguments.query)

        print(f"Query: {arguments.query}")
        print("First stage: " + " | ".join(hit.text for hit in retriever.retrieve(arguments.query)))
        for rank, hit in enumerate(answer.source_nodes, start=1):
            print(f"{rank}. {hit.score:.3f} (first stage {hit.metadata['retrieval_score']:.3f}) {hit.text}")
        print(f"Confidence that the right one is among them: {answer.source_nodes[0].metadata['confidence']:.2f}")
        print(f"The answer was written from these {len(answer.source_nodes)} pictures.")


def shop(folder: Path, size: int) -> ClipFaissIndex:
    """Render a shop of held-out products into a folder and index it."""
    items = catalogue(size, seed=1, side="held_out")
    for item in items:
        item.image().save(folder / f"{item.id}.png")
    return ClipFaissIndex.build(
        [folder / f"{item.id}.png" for item in items],
        ids=[item.id for item in items],
        metadata=[{"title": item.title} for item in items],
    )


if __name__ == "__main__":
    main()
