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


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path relative to it."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_digests(models: Path, target: Path) -> None:
    """Record the digests of all shipped files of the models.

    Args:
        models: Folder that holds the models' folders.
        target: JSON file to write.
    """
    # Calibrations are made by the library and carry a digest of their own.
    found = {
        f"{folder.name}/{name}": digest
        for folder in sorted(models.iterdir())
        if folder.is_dir()
        for name, digest in file_digests(folder).items()
    }
    target.write_text(json.dumps(found, indent=2) + "\n")
