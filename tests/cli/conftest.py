"""A shop in a folder, an index of it, and the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lad_rerank.bundled import shop
from lad_rerank.cli.app import app


@pytest.fixture
def run() -> Callable[..., Result]:
    """The program in this process: stdout and stderr apart."""
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="session")
def products() -> list[shop.Item]:
    return shop.catalogue(30, 5, "held_out")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, products: list[shop.Item]) -> Path:
    """A folder of products, named after what they show; one file in it is no picture."""
    folder = tmp_path_factory.mktemp("pictures")
    for i, item in enumerate(products):
        item.image().save(folder / f"{i:03d}_{item.title.replace(' ', '-')}.png")
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """An index of that folder, made by the program."""
    folder = tmp_path_factory.mktemp("indexes") / "shop"
    result = CliRunner().invoke(app, ["index", str(pictures), "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["index"] == str(folder)
    assert document["encoder"] == "bundled"
    assert document["indexed"] == 30
    assert [failed["id"] for failed in document["failed"]] == ["broken.jpg"]
    return folder
