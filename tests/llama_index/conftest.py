"""What tests of the postprocessor share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent

from lad_rerank import LADReranker
from llama_index.postprocessor.lad_rerank import LADRerank
from tests.llama_index.colours import ColourBackbone


class Recorder(BaseEventHandler):
    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def colours() -> ColourBackbone:
    """A backbone that looks for plain colours."""
    return ColourBackbone()


@pytest.fixture
def rerank(colours: ColourBackbone) -> LADRerank:
    """A postprocessor over it."""
    return LADRerank(reranker=LADReranker(colours, method="vanilla"))


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """LlamaIndex's events during a test."""
    dispatcher = get_dispatcher()
    recorder = Recorder()
    dispatcher.add_event_handler(recorder)
    yield recorder.seen
    dispatcher.event_handlers.remove(recorder)
