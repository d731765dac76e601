"""Where an encoder's weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from clip_faiss import _extras
from clip_faiss.errors import FirstStageError

_LOCAL = "local-dir:"


@dataclass(frozen=True)
class ModelSource:
    """A model's two names.

    Attributes:
        name: What an index remembers, and finds the model by again.
        open_clip_name: What ``open_clip.create_model`` takes.
    """

    name: str
    open_clip_name: str


def find_model(name_or_path: str, pretrained: str | None) -> ModelSource:
    """Say what a caller's name means to open_clip.

    Args:
        name_or_path: See :meth:`clip_faiss.ClipEncoder.load`.
        pretrained: Weights tag or checkpoint file.

    Raises:
        FirstStageError: There is no such model or folder, or open_clip would start it without weights.
    """
    if pretrained is not None and (name_or_path == "bundled" or ":" in name_or_path):
        raise FirstStageError(f"{name_or_path!r} brings its own weights; leave `pretrained` out.")
    if name_or_path == "bundled":
        from lad_rerank.bundled import clip_folder

        return ModelSource("bundled", f"{_LOCAL}{_checked_folder(clip_folder())}")
    if name_or_path.startswith(_LOCAL) or (pretrained is None and Path(name_or_path).is_dir()):
        folder = _checked_folder(Path(name_or_path.removeprefix(_LOCAL)))
        return ModelSource(f"{_LOCAL}{folder}", f"{_LOCAL}{folder}")
    if name_or_path.startswith("hf-hub:"):
        return ModelSource(name_or_path, name_or_path)
    # open_clip takes OpenAI's "ViT-B/32" for "ViT-B-32", but only where it loads the weights.
    plain = name_or_path.replace("/", "-")
    _check_known(plain, pretrained)
    return ModelSource(plain, plain)


def _checked_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise FirstStageError(f"There is no encoder folder {folder}; name a folder, or a model open_clip knows.")
    if not (folder / "open_clip_config.json").is_file():
        raise FirstStageError(
            f"{folder} is no open_clip model: it holds no open_clip_config.json. For a bare checkpoint file "
            "give the architecture as the name and the file as `pretrained`."
        )
    return folder.resolve()


def _check_known(name: str, pretrained: str | None) -> None:
    open_clip = _extras.open_clip()
    known = open_clip.list_models()
    if name not in known:
        near = get_close_matches(name, known, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise FirstStageError(
            f"There is neither a folder {name!r} nor an open_clip model of that name.{hint} "
            '"bundled" is the model that comes with the package.'
        )
    if pretrained is None:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)[:8])
        raise FirstStageError(
            f"{name!r} names an architecture only, and random weights find nothing: choose `pretrained`, "
            f"a checkpoint file{f' or one of {tags}' if tags else ''}."
        )


def no_remote_code(open_clip_name: str) -> dict[str, Any]:
    """Arguments for ``open_clip.get_tokenizer`` that keep a model's own Python code from running.

    A model's configuration may ask transformers for ``trust_remote_code``; arguments win over it. Only
    Hugging Face tokenizers know the argument.
    """
    config = _extras.open_clip().get_model_config(open_clip_name) or {}
    return {"trust_remote_code": False} if config.get("text_cfg", {}).get("hf_tokenizer_name") else {}
