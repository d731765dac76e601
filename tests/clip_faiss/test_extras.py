from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clip_faiss import ClipEncoder, ClipFaissIndex
from clip_faiss.progress import reporting

_HINT = r'lad-rerank\[index\]".*index-gpu.*never both'


def test_without_faiss_the_extra_is_named(encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # what Python itself does for a module it must not find
    with pytest.raises(ImportError, match=_HINT):
        ClipFaissIndex.build([], encoder=encoder)


def test_without_open_clip_the_extra_is_named(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=_HINT):
        ClipEncoder.load(str(model_folder))


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, clip_faiss; "
        "print([m for m in ('torch', 'open_clip', 'faiss', 'transformers', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_bar_is_drawn_on_stderr_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True, 3, "Indexing") as report:
        report(3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Indexing" in err
    assert "3/3" in err


@pytest.mark.parametrize("progress", [False, None])
def test_no_bar_where_nobody_looks(progress: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(progress, 3, "Indexing") as report:
        report(3)
    assert capsys.readouterr() == ("", "")
