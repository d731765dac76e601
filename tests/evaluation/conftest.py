"""Held-out products as a folder of titled pictures, and an index of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clip_faiss import ClipFaissIndex
from lad_rerank.bundled import shop
from lad_rerank.evaluation.titled import TitledImage, titled_folder


@pytest.fixture(scope="session")
def products() -> list[shop.Item]:
    return shop.catalogue(36, 7, "held_out")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, products: list[shop.Item]) -> Path:
    """36 pictures named after what they show."""
    folder = tmp_path_factory.mktemp("titled")
    for i, item in enumerate(products):
        item.image().save(folder / f"{i:03d}_{item.title.replace(' ', '-')}.png")
    return folder


@pytest.fixture(scope="session")
def titled(pictures: Path) -> list[TitledImage]:
    return titled_folder(pictures)


@pytest.fixture(scope="session")
def index(pictures: Path) -> ClipFaissIndex:
    return ClipFaissIndex.build(pictures, progress=False)
