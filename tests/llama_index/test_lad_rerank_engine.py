"""End to end: bundled CLIP and FAISS, bundled multimodal LLM, a LlamaIndex query engine around them."""

from __future__ import annotations

import asyncio
import base64
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ImageBlock
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import MockLLM
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import BaseNode, ImageNode, MediaResource, Node, NodeWithScore, QueryBundle

from clip_faiss import ClipFaissIndex
from lad_rerank import LADReranker
from lad_rerank.bundled.shop import Item, caption, catalogue, random_attributes, satisfies, wanted
from lad_rerank.images import image_digest, open_image
from llama_index.postprocessor.lad_rerank import LADRerank
from llama_index.retrievers.clip_faiss import ClipFaissRetriever

K = 8


class SeeingLLM(MockLLM):
    """LlamaIndex's mock that answers, and keeps digests of the pictures it is shown."""

    seen: list[str] = Field(default_factory=list, exclude=True)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        for message in messages:
            for block in message.blocks:
                if isinstance(block, ImageBlock):
                    self.seen.append(image_digest(open_image(cast("IO[bytes]", block.resolve_image()))))
        response: ChatResponse = super().chat(messages, **kwargs)
        return response


@dataclass(frozen=True)
class Shop:
    items: Sequence[Item]
    folder: Path
    index: ClipFaissIndex

    def item(self, name: str) -> Item:
        return next(item for item in self.items if item.id == name)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    items = catalogue(80, 5, "held_out")
    for item in items:
        item.image().save(folder / f"{item.id}.png")
    index = ClipFaissIndex.build(
        [folder / f"{item.id}.png" for item in items],
        ids=[item.id for item in items],
        metadata=[{"title": item.title} for item in items],
        progress=False,
    )
    return Shop(items, folder, index)


@pytest.fixture(scope="module")
def rerank() -> LADRerank:
    return LADRerank(model="bundled", top_n=3, device="cpu")


def as_base64(node: ImageNode) -> BaseNode:
    data = Path(str(node.image_path)).read_bytes()
    return ImageNode(id_=node.node_id, image=base64.b64encode(data).decode(), text=node.text)


def as_path(node: ImageNode) -> BaseNode:
    return node


def as_resource(node: ImageNode) -> BaseNode:
    return Node(id_=node.node_id, image_resource=MediaResource(data=Path(str(node.image_path)).read_bytes()))


FORMS = (as_base64, as_path, as_resource)


class Converting(BaseRetriever):
    """The CLIP/FAISS retriever, with every picture carried in another form."""

    def __init__(self, inner: ClipFaissRetriever, form: Callable[[ImageNode], BaseNode]) -> None:
        self.inner = inner
        self.form = form
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = []
        for hit in self.inner.retrieve(query_bundle):
            assert isinstance(hit.node, ImageNode)
            hits.append(NodeWithScore(node=self.form(hit.node), score=hit.score))
        return hits


def summary(hits: Sequence[NodeWithScore]) -> list[tuple[str, float]]:
    return [(hit.node_id, hit.get_score()) for hit in hits]


def assert_same(hits: Sequence[NodeWithScore], others: Sequence[NodeWithScore]) -> None:
    assert [hit.node_id for hit in hits] == [hit.node_id for hit in others]
    # Sums in other threads may differ in the last bits.
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in others], abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_engine_retrieves_reranks_and_shows_the_pictures(
    form: Callable[[ImageNode], BaseNode], shop: Shop, rerank: LADRerank
) -> None:
    llm = SeeingLLM(is_chat_model=True, max_tokens=4)
    engine = RetrieverQueryEngine.from_args(
        Converting(ClipFaissRetriever(shop.index, similarity_top_k=K), form),
        llm=llm,
        node_postprocessors=[rerank],
        multimodal=True,
    )
    query = shop.items[3].title
    answer = engine.query(query)
    assert str(answer) == "text text text text"
    assert len(answer.source_nodes) == 3

    # The same as asking the reranker itself about the same pictures.
    found = shop.index.search(query, K)
    ranking = rerank.reranker.rerank(query, [shop.folder / f"{hit.id}.png" for hit in found], top_n=3)
    assert [hit.node_id for hit in answer.source_nodes] == [found[hit.index].id for hit in ranking]
    assert [hit.score for hit in answer.source_nodes] == pytest.approx([hit.score for hit in ranking], abs=1e-6)

    # The language model was shown exactly the picked pictures.
    assert llm.seen == [image_digest(shop.item(hit.node_id).image()) for hit in answer.source_nodes]

    later = asyncio.run(engine.aquery(query))
    assert_same(later.source_nodes, answer.source_nodes)


def test_every_form_gives_the_same_ranking(shop: Shop, rerank: LADRerank) -> None:
    query = QueryBundle(shop.items[7].title)
    retriever = ClipFaissRetriever(shop.index, similarity_top_k=K)
    found = [rerank.postprocess_nodes(Converting(retriever, form).retrieve(query), query) for form in FORMS]
    assert summary(found[0]) == summary(found[1]) == summary(found[2])


def test_retrieval_order_does_not_matter(shop: Shop, rerank: LADRerank) -> None:
    query = QueryBundle(shop.items[11].title)
    hits = ClipFaissRetriever(shop.index, similarity_top_k=K).retrieve(query)
    found = {tuple(summary(rerank.postprocess_nodes(hits[i:] + hits[:i], query))) for i in range(K)}
    assert len(found) == 1


def test_reranking_puts_more_right_pictures_first(shop: Shop, rerank: LADRerank) -> None:
    """Queries name two to four attributes; any picture that has them is right."""
    retriever = ClipFaissRetriever(shop.index, similarity_top_k=K)
    first_stage = reranked = 0
    for seed, item in enumerate(shop.items[:40]):
        attributes = random_attributes(seed)
        asked = wanted(item.product, attributes)
        query = QueryBundle(caption(item.product, seed, attributes))
        hits = retriever.retrieve(query)
        first_stage += satisfies(shop.item(hits[0].node_id).product, asked)
        best = rerank.postprocess_nodes(hits, query)[0]
        reranked += satisfies(shop.item(best.node_id).product, asked)
    assert reranked > first_stage


async def test_queries_at_once_get_what_they_get_one_by_one(shop: Shop, rerank: LADRerank) -> None:
    engine = RetrieverQueryEngine.from_args(
        ClipFaissRetriever(shop.index, similarity_top_k=K),
        llm=SeeingLLM(is_chat_model=True, max_tokens=1),
        node_postprocessors=[rerank],
        multimodal=True,
    )
    queries = [item.title for item in shop.items[:6]]
    alone = [engine.query(query) for query in queries]
    together = await asyncio.gather(*(engine.aquery(query) for query in queries))
    for one, other in zip(alone, together, strict=True):
        assert_same(one.source_nodes, other.source_nodes)


def test_a_local_folder_a_given_reranker_and_a_restored_one_agree(shop: Shop, rerank: LADRerank) -> None:
    from lad_rerank.bundled import mllm_folder

    query = QueryBundle(shop.items[2].title)
    hits = ClipFaissRetriever(shop.index, similarity_top_k=K).retrieve(query)
    expected = rerank.postprocess_nodes(hits, query)
    for other in (
        LADRerank(model=mllm_folder(), device="cpu", dtype=torch.float32),
        LADRerank(reranker=LADReranker.from_pretrained("bundled", device="cpu")),
        LADRerank.from_dict(rerank.to_dict()),
    ):
        assert_same(other.postprocess_nodes(hits, query), expected)


def test_unloading_lets_go_of_the_model(shop: Shop) -> None:
    rerank = LADRerank(device="cpu")
    hits = ClipFaissRetriever(shop.index, similarity_top_k=2).retrieve("a mug")
    before = rerank.postprocess_nodes(hits, query_str="a mug")
    model = weakref.ref(rerank.reranker.backbone)
    rerank.unload()
    gc.collect()
    assert model() is None
    assert_same(rerank.postprocess_nodes(hits, query_str="a mug"), before)
