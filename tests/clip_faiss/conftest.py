from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from clip_faiss import ClipEncoder
from lad_rerank.bundled.shop import Item, catalogue
from lad_rerank.bundled.train.clip_model import clip_config, new_clip, save_clip


def untrained(folder: Path, seed: int = 0) -> Path:
    """A model folder as the bundled one, with random weights: enough wherever ranking quality is no matter."""
    torch.manual_seed(seed)
    save_clip(new_clip(), folder)
    return folder


def untrained_bpe(folder: Path) -> Path:
    """A model with open_clip's own tokenizer, a context of 16 tokens and vectors of 24 numbers."""
    from open_clip import CLIP
    from safetensors.torch import save_file

    config = clip_config()
    config["model_cfg"]["embed_dim"] = 24
    config["model_cfg"]["vision_cfg"].update(layers=1, width=32)
    config["model_cfg"]["text_cfg"] = {
        "context_length": 16,
        "vocab_size": 49408,
        "width": 16,
        "heads": 2,
        "layers": 1,
    }
    torch.manual_seed(0)
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(CLIP(**config["model_cfg"]).state_dict(), folder / "open_clip_model.safetensors")
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_bpe(tmp_path_factory.mktemp("models") / "bpe")


@pytest.fixture(scope="session")
def encoder(model_folder: Path) -> ClipEncoder:
    return ClipEncoder.load(str(model_folder), device="cpu")


@pytest.fixture(scope="session")
def bpe_encoder(bpe_folder: Path) -> ClipEncoder:
    return ClipEncoder.load(str(bpe_folder), device="cpu")


@pytest.fixture(scope="session")
def items() -> list[Item]:
    return catalogue(12, 5)


@pytest.fixture(scope="session")
def pictures(items: list[Item]) -> list[Image.Image]:
    return [item.image() for item in items]


@pytest.fixture
def photos(tmp_path: Path, pictures: list[Image.Image]) -> Path:
    """A folder of three pictures, one of them deeper, among files that are none."""
    folder = tmp_path / "photos"
    (folder / "mugs" / "ünï").mkdir(parents=True)
    pictures[0].save(folder / "b.png")
    pictures[1].save(folder / "a.JPG", quality=95)
    pictures[2].save(folder / "mugs" / "ünï" / "c d.webp", lossless=True)
    (folder / "notes.txt").write_text("no picture")
    (folder / "._b.png").write_bytes(b"another program's notes")
    (folder / ".hidden").mkdir()
    pictures[3].save(folder / ".hidden" / "d.png")
    return folder
