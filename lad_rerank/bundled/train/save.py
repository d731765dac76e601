"""Write a trained model to disk, small and loadable by the Auto classes, and keep the digests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLProcessor


def save_mllm(model: Any, processor: Qwen2_5_VLProcessor, out: Path) -> None:
    """Save weights in float16 with config, generation config and processor.

    Args:
        model: ``Qwen2_5_VLForConditionalGeneration``; it is left as it was.
        processor: Its processor.
        out: Folder, made if missing.
    """
    from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration

    out.mkdir(parents=True, exist_ok=True)
    half = Qwen2_5_VLForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.half()
    half.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=4,
        eos_token_id=processor.tokenizer.eos_token_id,
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    half.save_pretrained(out)
    processor.save_pretrained(out)
    spell_for_transformers_4(out)
    for path in out.iterdir():
        path.chmod(0o644)  # weights are written for their owner only, who need not be who installs them


def spell_for_transformers_4(folder: Path) -> None:
    """Write beside transformers 5's spelling of a saved folder what transformers 4.57 looks for.

    Both read the same model from it: rotary parameters, special tokens and the image processor have other
    names or another file there.

    Args:
        folder: As ``save_pretrained`` of transformers 5 wrote it.
    """
    config = _read(folder / "config.json")
    text = config["text_config"]
    rotary = dict(text["rope_parameters"])
    text["rope_theta"] = rotary.pop("rope_theta")
    text["rope_scaling"] = rotary | {"type": rotary["rope_type"]}
    _write(folder / "config.json", config)
    tokenizer = _read(folder / "tokenizer_config.json")
    if "extra_special_tokens" in tokenizer:
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    _write(folder / "tokenizer_config.json", tokenizer)
    _write(folder / "preprocessor_config.json", _read(folder / "processor_config.json")["image_processor"])


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path relative to it."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_digests(models: Path, target: Path) -> None:
    """Record the digests of all files in the folders ``clip`` and ``mllm``.

    Args:
        models: Folder that holds the models' folders.
        target: JSON file to write.
    """
    # Calibrations are made by the library and carry digests of their own.
    found = {
        f"{folder.name}/{name}": digest
        for folder in (models / "clip", models / "mllm")
        for name, digest in file_digests(folder).items()
    }
    target.write_text(json.dumps(found, indent=2) + "\n")
