"""What tests share: the bundled model, sets of shop pictures, and a home of their own for calibrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lad_rerank import LADReranker
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.bundled.shop import candidate_set


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing a test does may touch, or depend on, the calibrations of whoever runs it; nothing goes online."""
    # The models are so small that a second thread costs more than it brings, above all on a busy machine.
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAD_RERANK_HOME", str(home))
        patch.setenv("XDG_DATA_HOME", str(home / "data"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="session")
def reranker(_own_home: None) -> LADReranker:
    """The bundled model with the calibration that comes with it."""
    return LADReranker.from_pretrained("bundled", device="cpu")


@pytest.fixture(scope="session")
def backbone(reranker: LADReranker) -> HuggingFaceBackbone:
    """The bundled model as a backbone."""
    assert isinstance(reranker.backbone, HuggingFaceBackbone)
    return reranker.backbone


@pytest.fixture
def shop_folder(tmp_path: Path) -> Path:
    """A folder of eight held-out products as PNG files; the query is in ``query.txt``, its image ``target.png``."""
    chosen = candidate_set(8, seed=11, difficulty="random", side="held_out")
    for i, item in enumerate(chosen.candidates):
        item.image().save(tmp_path / ("target.png" if i == chosen.target else f"other-{i}.png"))
    (tmp_path / "query.txt").write_text(chosen.caption)
    return tmp_path
