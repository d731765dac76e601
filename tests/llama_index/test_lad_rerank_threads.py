"""One postprocessor in many threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lad_rerank import LADReranker
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import QUERY, ColourBackbone, ids, nodes


async def test_async_gives_the_same_off_the_event_loops_thread(rerank: LADRerank, colours: ColourBackbone) -> None:
    same = rerank.postprocess_nodes(nodes(), QUERY)
    colours.threads.clear()
    hits = await rerank.apostprocess_nodes(nodes(), QUERY)
    assert [(hit.node_id, hit.score) for hit in hits] == [(hit.node_id, hit.score) for hit in same]
    assert threading.get_ident() not in colours.threads
    with pytest.raises(ValueError, match="Missing query bundle"):
        await rerank.apostprocess_nodes(nodes())
    assert await rerank.apostprocess_nodes([], QUERY) == []


def test_one_object_serves_several_event_loops(rerank: LADRerank) -> None:
    first = asyncio.run(rerank.apostprocess_nodes(nodes(), QUERY))
    second = asyncio.run(rerank.apostprocess_nodes(nodes(), QUERY))
    assert ids(first) == ids(second)


def test_threads_share_one(rerank: LADRerank) -> None:
    queries = ["red", "green", "blue", "pink"] * 8
    with ThreadPoolExecutor(4) as pool:
        tops = list(pool.map(lambda colour: rerank.postprocess_nodes(nodes(), query_str=colour)[0].node_id, queries))
    assert tops == queries


def test_the_model_is_loaded_once_on_first_use(monkeypatch: pytest.MonkeyPatch, colours: ColourBackbone) -> None:
    loads: list[dict[str, Any]] = []

    def from_pretrained(model: str, **options: Any) -> LADReranker:
        loads.append({"model": model, **options})
        return LADReranker(colours, method=options["method"])

    monkeypatch.setattr(LADReranker, "from_pretrained", from_pretrained)
    rerank = LADRerank(
        2, "some/model", method="vanilla", calibration=Path("c.json"), device="cpu", dtype=torch.bfloat16,
        max_pixels=99, max_text_tokens=64, labels="letters", revision="v1",
    )  # fmt: skip
    assert loads == []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: rerank.postprocess_nodes(nodes(), QUERY), range(8)))
    assert loads == [
        {
            "model": "some/model", "method": "vanilla", "calibration": "c.json", "device": "cpu", "dtype": "bfloat16",
            "device_map": None, "revision": "v1", "trust_remote_code": False, "labels": "letters", "max_pixels": 99,
            "max_text_tokens": 64, "allow_urls": False,
        }
    ]  # fmt: skip
    rerank.unload()
    assert rerank.reranker.backbone is colours
    assert len(loads) == 2
