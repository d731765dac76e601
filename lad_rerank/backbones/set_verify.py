"""Is a model read right whose candidates stand side by side? One candidate alone tells, since nothing is beside it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from lad_rerank.backbones.attention_tap import AttentionRows
from lad_rerank.backbones.block_runs import BlockRuns
from lad_rerank.backbones.block_store import BlockStore
from lad_rerank.backbones.decoder import FULL, SLIDING, full_attention_modules, sliding_windows
from lad_rerank.backbones.encoding import EncodedPrompt
from lad_rerank.backbones.sdpa_patch import calls_sdpa_itself
from lad_rerank.backbones.verify import QUERIES, TOLERANCE, examples
from lad_rerank.contents import Content, kind_of
from lad_rerank.errors import AttentionNotSeenError, BackboneError

if TYPE_CHECKING:
    from lad_rerank.backbones.huggingface import HuggingFaceBackbone
    from lad_rerank.backbones.set_backbone import SetBackbone

logger = logging.getLogger(__name__)


def checked_windows(backbone: HuggingFaceBackbone) -> dict[int, int]:
    """Width of each sliding-window layer, by ``id`` of its attention module.

    Raises:
        BackboneError: Candidates cannot stand side by side in this model.
    """
    model: Any = backbone._model
    text = model.config.get_text_config()
    kinds, width = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
    windows = sliding_windows(model)
    why = None
    if not backbone._family.causal:
        why = "all tokens of its prompt see each other, so a candidate is not the same beside another question"
    elif not set(kinds or ()) <= {FULL, SLIDING}:
        why = f"its layers are {', '.join(sorted(set(kinds or ())))}, and not all keep keys and values of every token"
    elif kinds is None and width is not None and width < (backbone._context or width):
        why = f"all of its layers see {width} tokens back only"
    elif windows and backbone._traits.rope_index:
        why = "its sliding windows count tokens, and its positions do not"
    elif windows and all(map(calls_sdpa_itself, full_attention_modules(model).values())):
        why = "its sliding windows cannot be set from outside"
    if why is not None:
        raise BackboneError(
            f"{backbone.name} cannot be shown its candidates side by side: {why}. Use arrangement='sequence'."
        )
    return windows


def verify_set(backbone: SetBackbone) -> bool:
    """Compare prefix, one block and a question, run one behind the other, with one forward pass over all of them.

    Nothing is kept of what is run.

    Returns:
        Whether images may run behind the prefix's kept keys and values; else the prefix runs before each of them, see
        :class:`lad_rerank.backbones.block_runs.BlockRuns`.

    Raises:
        BackboneError: Neither gives what one pass gives.
    """
    import torch

    contents = [examples(backbone.arranged("sequence"))[0], Content.of(text="a red square")]
    tolerance = TOLERANCE.get(backbone.identity.dtype, 0.25)
    runs = backbone.block_runs(BlockStore("check", "model", 0))
    found: float | str = ""
    with torch.inference_mode():
        whole = [_in_one_pass(backbone, runs, content) for content in contents]
        for behind in (True, False):
            runs.images_behind_prefix = behind
            found = _difference(backbone, runs, contents, whole)
            if isinstance(found, float) and found <= tolerance:
                logger.info("%s: candidates side by side agree with one pass to %.2g.", backbone.name, found)
                return behind
    raise BackboneError(
        f"{backbone.name} cannot be shown its candidates side by side: what it sees of one of them is not what one "
        f"pass over the same tokens sees ({found}). Use arrangement='sequence'."
    )


def _difference(
    backbone: SetBackbone, runs: BlockRuns, contents: list[Content], whole: list[AttentionRows]
) -> float | str:
    """Largest difference of any read-out row; what went wrong, where something did."""
    off = []
    try:
        for content, expected in zip(contents, whole, strict=True):
            suffix = backbone.encoder.suffix(QUERIES[0], 1, kind_of([content]))
            blocks = list(runs.found([content])[0].values())
            (seen,) = backbone.passes.suffixes(runs.prefix(), blocks, [suffix])
            off += [float(np.abs(seen.mass[row] - expected.mass[row]).max()) for row in seen.mass]
    except (RuntimeError, ValueError, TypeError, IndexError, AttentionNotSeenError) as error:
        return f"{type(error).__name__}: {error}"
    return max(off)


def _in_one_pass(backbone: SetBackbone, runs: BlockRuns, content: Content) -> AttentionRows:
    """What one forward pass over prefix, block and question sees."""
    inner, encoder = backbone.arranged("sequence"), backbone.encoder
    block = runs.encoded(content)
    suffix = encoder.suffix(QUERIES[0], 1, kind_of([content]))
    start = len(encoder.prefix)
    prompt = EncodedPrompt(
        ids=(*encoder.prefix, *block.ids, *suffix.ids),
        spans=(tuple(start + i for i in block.span),),
        query=tuple(start + len(block.ids) + i for i in suffix.query),
        answer=inner._encoder.answer(2),
        images=() if block.image is None or not inner.uses_features else (block.image,),
        inputs=None if block.image is None or inner.uses_features else block.image.inputs,
    )
    return inner._passes.whole([prompt], [inner.features(prompt)], keeping=False)[0].attention
