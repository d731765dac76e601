"""Loading a reranker for a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lad_rerank.cli.progress import note

if TYPE_CHECKING:
    from lad_rerank.prompt import LabelStyle, SpanStyle
    from lad_rerank.reranker import LADReranker


def load_reranker(
    model: str,
    *,
    method: str = "lad",
    calibration: Path | None = None,
    labels: str = "digits",
    spans: str = "visual",
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    max_pixels: int | None = None,
    allow_urls: bool = False,
) -> LADReranker:
    """Load a model, quietly.

    Args:
        model: ``"bundled"``, a local folder or a hub id.
        method: Name of a scorer.
        calibration: A file, in place of the store's.
        labels: A style of labels, checked already.
        spans: ``"visual"`` or ``"delimited"``, checked already.
        revision: See ``LADReranker.from_pretrained``, like all that follow.
        trust_remote_code: Whether code that comes with the model is run.
        device: Where to run.
        dtype: Name of a floating point type.
        max_pixels: Pixel budget of one image.
        allow_urls: Whether images may be fetched.
    """
    note(f"Loading {model} ...")
    from transformers.utils import logging

    from lad_rerank.reranker import BUNDLED, LADReranker

    # Bars are for people who wait: not for logs, nor for weights that are loaded in an instant.
    if model == BUNDLED or not sys.stderr.isatty():
        logging.disable_progress_bar()
    return LADReranker.from_pretrained(
        model,
        method=method,
        calibration=calibration,
        labels=cast("LabelStyle", labels),
        spans=cast("SpanStyle", spans),
        revision=revision,
        trust_remote_code=trust_remote_code,
        device=device,
        dtype=dtype,
        max_pixels=max_pixels,
        allow_urls=allow_urls,
    )
