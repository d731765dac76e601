"""Loading a reranker for a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lad_rerank.cli.options import Loading
from lad_rerank.cli.progress import note

if TYPE_CHECKING:
    from lad_rerank.prompt import LabelStyle, SpanStyle
    from lad_rerank.reranker import LADReranker


def load_reranker(
    model: str,
    loading: Loading | None = None,
    *,
    method: str | None = None,
    calibration: Path | None = None,
    allow_urls: bool = False,
) -> LADReranker:
    """Load a model, quietly.

    Args:
        model: ``"bundled"``, a local folder or a hub id.
        loading: How it is loaded and asked; checked already.
        method: Name of a scorer; the reranker's own default by default.
        calibration: A file, in place of the store's.
        allow_urls: Whether images may be fetched.
    """
    note(f"Loading {model} ...")
    from transformers.utils import logging

    from lad_rerank.reranker import BUNDLED, LADReranker

    # Bars are for people who wait: not for logs, nor for weights that are loaded in an instant.
    if model == BUNDLED or not sys.stderr.isatty():
        logging.disable_progress_bar()
    loading = loading or Loading()
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    if loading.max_text_tokens is not None:
        chosen["max_text_tokens"] = loading.max_text_tokens
    return LADReranker.from_pretrained(
        model,
        **chosen,
        calibration=calibration,
        labels=cast("LabelStyle", loading.labels),
        spans=cast("SpanStyle", loading.spans),
        revision=loading.revision,
        trust_remote_code=loading.trust_remote_code,
        device=loading.device,
        dtype=loading.dtype,
        max_pixels=loading.max_pixels,
        allow_urls=allow_urls,
    )


@contextmanager
def threads_for(model: str) -> Iterator[None]:
    """Run torch in one thread for the bundled model: one so small loses more by sharing the work than it gains.

    Args:
        model: See :func:`load_reranker`.
    """
    import torch

    from lad_rerank.reranker import BUNDLED

    before = torch.get_num_threads()
    torch.set_num_threads(1 if model == BUNDLED else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
