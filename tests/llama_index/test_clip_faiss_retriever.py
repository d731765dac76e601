from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, MetadataMode, QueryBundle

from clip_faiss import ClipEncoder, ClipFaissIndex, FirstStageError
from lad_rerank.bundled.shop import catalogue
from lad_rerank.bundled.train.clip_model import new_clip, save_clip
from lad_rerank.errors import InvalidRequestError
from llama_index.retrievers.clip_faiss import ClipFaissRetriever


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ClipFaissIndex:
    """Six pictures on disk with titles, one without, one from memory; a model with random weights."""
    folder = tmp_path_factory.mktemp("shop")
    torch.manual_seed(0)
    save_clip(new_clip(), folder / "model")
    items = catalogue(8, 3)
    paths = [folder / f"{item.id}.png" for item in items[:7]]
    for path, item in zip(paths, items, strict=False):
        item.image().save(path)
    index = ClipFaissIndex.build(
        [*paths, items[7].image()],
        encoder=ClipEncoder.load(str(folder / "model"), device="cpu"),
        ids=[item.id for item in items],
        metadata=[{"title": item.title, "price": i} if i != 6 else {} for i, item in enumerate(items)],
    )
    index.save(folder / "index")
    return index


def _saved(index: ClipFaissIndex) -> Path:
    return Path(index.encoder.name.removeprefix("local-dir:")).parent / "index"


def test_nodes_carry_id_picture_title_and_metadata(index: ClipFaissIndex) -> None:
    retriever = ClipFaissRetriever(index, similarity_top_k=20)
    assert isinstance(retriever, BaseRetriever)
    hits = index.search("a red mug", k=20)
    nodes = retriever.retrieve("a red mug")
    assert [node.node_id for node in nodes] == [hit.id for hit in hits]
    assert [node.score for node in nodes] == [hit.score for hit in hits]
    for node, hit in zip(nodes, hits, strict=True):
        assert isinstance(node.node, ImageNode)
        assert type(node.score) is float
        assert node.node.text == hit.metadata.get("title", "")
        assert node.node.metadata == hit.metadata
        path = index.file(hit)
        assert node.node.image_path == (None if path is None else str(path))
        json.loads(node.to_json())


def test_top_k_and_a_folder_in_place_of_an_index(index: ClipFaissIndex) -> None:
    folder = _saved(index)
    for given in (folder, str(folder)):
        retriever = ClipFaissRetriever(given, similarity_top_k=3)
        assert [n.node_id for n in retriever.retrieve("a kite")] == [h.id for h in index.search("a kite", k=3)]
    assert len(ClipFaissRetriever(index).retrieve("a kite")) == 8
    with pytest.raises(FirstStageError, match="no index"):
        ClipFaissRetriever(folder.parent)


async def test_async_gives_the_same(index: ClipFaissIndex) -> None:
    retriever = ClipFaissRetriever(index, similarity_top_k=5)
    sync, later = retriever.retrieve("a blue kite"), await retriever.aretrieve("a blue kite")
    assert [(n.node_id, n.score) for n in sync] == [(n.node_id, n.score) for n in later]


def test_paths_are_not_shown_to_models(index: ClipFaissIndex, tmp_path: Path) -> None:
    catalogue(1, 3)[0].image().save(tmp_path / "answer-red-mug.png")
    built = ClipFaissIndex.build(tmp_path, encoder=index.encoder)
    node = ClipFaissRetriever(built).retrieve("mug")[0].node
    assert node.metadata == {"path": "answer-red-mug.png"}
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert "answer" not in node.get_content(metadata_mode=mode)


def test_a_picture_can_be_the_query(index: ClipFaissIndex) -> None:
    path = next(index.image_path(hit) for hit in index.search("mug") if index.file(hit) is not None)
    nodes = ClipFaissRetriever(index, similarity_top_k=1).retrieve(QueryBundle("", image_path=str(path)))
    assert nodes[0].node_id == path.stem
    assert nodes[0].score == pytest.approx(1, abs=1e-5)


def test_a_blank_query_without_a_picture_is_refused(index: ClipFaissIndex) -> None:
    with pytest.raises(InvalidRequestError, match="blank"):
        ClipFaissRetriever(index).retrieve(" ")


def test_retrievals_do_not_share_nodes(index: ClipFaissIndex) -> None:
    retriever = ClipFaissRetriever(index, similarity_top_k=1)
    retriever.retrieve("a mug")[0].node.metadata["retrieval_score"] = 1.0
    assert "retrieval_score" not in retriever.retrieve("a mug")[0].node.metadata


async def test_in_a_query_engine(index: ClipFaissIndex) -> None:
    files = [index.image_path(hit) for hit in index.search("mug") if index.file(hit) is not None]
    built = ClipFaissIndex.build(files, encoder=index.encoder, metadata=[{"title": path.stem} for path in files])
    retriever = ClipFaissRetriever(built, similarity_top_k=2)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(is_chat_model=True), multimodal=True)
    for response in (engine.query("a red mug"), await engine.aquery("a red mug")):
        assert [n.node_id for n in response.source_nodes] == [h.id for h in built.search("a red mug", k=2)]
        assert all(isinstance(n.node, ImageNode) and n.node.image_path for n in response.source_nodes)
