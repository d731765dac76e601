"""Which families work and how well, measured on the tiny models: the table of ``docs/support.md``.

``python -m tests.backbones.support`` writes the file, ``--check`` says whether it is what would be written.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import transformers

from lad_rerank.backbones.answers import answer_tokens
from lad_rerank.backbones.attention_tap import TAP_NAME
from lad_rerank.backbones.families.base import Family, FixedSize
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.contents import Showable
from lad_rerank.errors import BackboneError
from lad_rerank.prompt import LabelStyle, resolved_style
from lad_rerank.records import Observation
from tests.backbones import test_remote_code as remote_code
from tests.backbones import test_texts
from tests.backbones.remote_code.configuration_own_way import OwnWayConfig, OwnWayTextConfig
from tests.backbones.remote_code.modeling_own_way import OwnWayForConditionalGeneration
from tests.backbones.set_oracle import in_one_forward
from tests.backbones.test_families import QUERIES, assert_same, pictures, plain
from tests.backbones.test_set import assert_same as assert_same_set
from tests.backbones.tiny import FAMILIES, REFUSED, build
from tests.backbones.tiny.language import LANGUAGE, build_language
from tests.backbones.tiny.peaked import peak

DOCUMENT = Path(__file__).parents[2] / "docs" / "support.md"
OWN_WAY = "own_way"
MADE_WITH = "Made with "
"""How the line begins that may differ between two runs."""

COUNTS = (3, 11)
"""Candidates of a prompt: labels of one token each, and digits of one and two."""

STYLES: tuple[LabelStyle, ...] = get_args(LabelStyle)
MOST_LABELS = 26
ONE_TOKEN_COUNT = 9
LABEL_COUNTS = (2, ONE_TOKEN_COUNT, MOST_LABELS)
"""Where labels are compared. Fewer candidates have the first of a style's labels, so what is told apart among 26 is
told apart among fewer; ``"auto"`` is another style up to 9 than beyond, and is asked in both."""

HEADER = f"""# Supported families

This file is written by `python -m tests.backbones.support`, from the repository root, and a test compares it with what
that command makes. Do not edit it.

{{made_with}}

Every row is a **tiny model of random weights, of the true transformers class with its true processor class**, not a
checkpoint: the row says that the family is read correctly, not how well any model of it ranks. The tokenizer is a
small one made for the tests, with the family's special tokens; a checkpoint's own may need fewer tokens for a label.

- **family**: `model_type` of the model's configuration, or what the tests call it.
- **works**: for {COUNTS[0]} and {COUNTS[1]} candidates, label log-probabilities and the attention to each candidate
  equal those of plain eager forwards, pixels and all, within 1e-5; else why the model is refused.
- **texts**, **mixed**: the same for lists of texts, and for lists in which some candidates have an image, some a text
  and some both. The last two rows are plain language models, which read texts only: **works** is said of texts there.
- **fast path**: image features are computed once per image and given to the model in place of pixels.
- **prefix reuse**: a second query over the same candidates runs behind the kept keys and values of their images.
- **side by side**: candidates of each of these kinds can be shown with no order among them (`arrangement="set"`), and
  what is read equals one eager forward with an explicit mask within 1e-5; else why the model is refused.
- **labels**: the label styles ({", ".join(STYLES)}) whose labels are told apart for 2 to
  {MOST_LABELS} candidates, and which of them are one token each for {ONE_TOKEN_COUNT} candidates.

| family | works | texts | mixed | fast path | prefix reuse | side by side | labels | notes |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One family's line of the table, as text."""

    family: str
    works: str
    texts: str = "–"
    mixed: str = "–"
    fast_path: str = "–"
    prefix_reuse: str = "–"
    side_by_side: str = "–"
    labels: str = "–"
    notes: str = ""

    def __str__(self) -> str:
        cells = (
            f"`{self.family}`", self.works, self.texts, self.mixed,
            self.fast_path, self.prefix_reuse, self.side_by_side, self.labels, self.notes,
        )  # fmt: skip
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def measure() -> list[Row]:
    """One row for each family that the tests build."""
    return [*map(measured, (*FAMILIES, *REFUSED)), measured_own_way(), *map(measured_language, LANGUAGE)]


def measured(family: str) -> Row:
    """Build a family's tiny model, and see what the backbone makes of it."""
    model, processor = build(family)
    try:
        backbone = HuggingFaceBackbone(model, processor, name=family)
    except BackboneError as error:
        return Row(family, f"refused: {_first_sentence(error)}")
    return _row(backbone, pictures, plain)


def measured_own_way() -> Row:
    """The same for the stand-in for models that come with code of their own."""
    _, processor = build("qwen2_5_vl")
    tokenizer: Any = processor.tokenizer
    config = OwnWayConfig(
        OwnWayTextConfig(vocab_size=len(tokenizer)), image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>")
    )
    model_class: Any = OwnWayForConditionalGeneration
    # Construction draws random numbers; the caller's generator is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, eager = (
            peak(model_class._from_config(config, attn_implementation=how), seed=3) for how in ("sdpa", "eager")
        )
    eager.load_state_dict(model.state_dict())
    backbone = HuggingFaceBackbone(model, processor, name=OWN_WAY)
    return _row(backbone, remote_code.pictures, lambda b, *request: remote_code.plain(b, eager, *request))


def measured_language(name: str) -> Row:
    """The same for a plain language model."""
    backbone = HuggingFaceBackbone(*build_language(name), name=name)
    return _row(backbone, test_texts.texts, test_texts.plain)


def _row(
    backbone: HuggingFaceBackbone,
    shown: Callable[[int], Sequence[Showable]],
    oracle: Callable[[HuggingFaceBackbone, str, Any], Observation],
) -> Row:
    # Code of its own has an oracle of its own.
    others = oracle if backbone.name == OWN_WAY else test_texts.plain
    return Row(
        backbone.name,
        works=_works(backbone, shown, oracle),
        texts=_works(backbone, test_texts.texts, others),
        mixed=_works(backbone, test_texts.cards, others) if backbone.reads_images else "–",
        fast_path=_yes(backbone.uses_features),
        prefix_reuse=_yes(backbone.uses_prefix),
        side_by_side=_side_by_side(backbone, shown),
        labels=_labels(backbone._processor),
        notes="; ".join(_notes(backbone)),
    )


def _works(
    backbone: HuggingFaceBackbone,
    shown: Callable[[int], Sequence[Showable]],
    oracle: Callable[[HuggingFaceBackbone, str, Any], Observation],
) -> str:
    try:
        for n in COUNTS:
            candidates = shown(n)
            backbone.forget()
            # The second query runs behind the first one's candidates, where prefixes are kept.
            for query in QUERIES[:2]:
                assert_same(backbone.observe(query, candidates), oracle(backbone, query, candidates))
    except AssertionError:
        return "no: not what an eager forward says"
    return "yes"


def _side_by_side(backbone: HuggingFaceBackbone, shown: Callable[[int], Sequence[Showable]]) -> str:
    try:
        side_by_side = backbone.arranged("set")
    except BackboneError as error:
        return f"refused: {_first_sentence(error).partition(': ')[2]}"
    if backbone.name == OWN_WAY:
        # Its attention takes no mask: one candidate alone was compared as it was made, and a test compares its maps.
        return "yes"
    lists = [shown, *([test_texts.texts, test_texts.cards] if backbone.reads_images else [])]
    try:
        for candidates in (some(n) for some in lists for n in COUNTS):
            for query in QUERIES[:2]:
                seen = side_by_side.observe(query, candidates)
                assert_same_set(seen, in_one_forward(side_by_side, query, candidates))
    except AssertionError:
        return "no: not what an eager forward says"
    return "yes"


def _labels(processor: Any) -> str:
    lengths = {(style, n): _label_lengths(processor, n, style) for style in STYLES for n in LABEL_COUNTS}
    apart = [style for style in STYLES if all(lengths[style, n] for n in LABEL_COUNTS)]
    short = [style for style in apart if lengths[style, ONE_TOKEN_COUNT] == {1}]
    return f"{'all' if len(apart) == len(STYLES) else ', '.join(apart)}; one token each: {', '.join(short) or 'none'}"


def _label_lengths(processor: Any, n: int, style: LabelStyle) -> set[int]:
    """In tokens; empty where the labels are not told apart."""
    try:
        return {len(label) for label in answer_tokens(processor, n, resolved_style(n, style)).labels}
    except BackboneError:
        return set()


def _notes(backbone: HuggingFaceBackbone) -> list[str]:
    """What is special about a family, read off the objects that were built for it."""
    model: Any = backbone._model
    text = model.config.get_text_config()
    notes = []
    if not type(model).__module__.startswith("transformers."):
        notes.append("code of its own, as LLaVA-OneVision-1.5: only with `trust_remote_code=True`")
    if text._attn_implementation != TAP_NAME:
        notes.append("calls SDPA itself and is read there")
    if (read := len(backbone.identity.layers)) < text.num_hidden_layers:
        notes.append(f"full-attention layers only: {read} of this model's {text.num_hidden_layers} are read")
    if forced := backbone._encoder.answer(ONE_TOKEN_COUNT).forced:
        notes.append(f"every answer begins with `{backbone._encoder.tokenizer.decode(forced)!r}`")
    if backbone._traits.encoder_outputs and not backbone.uses_features:
        notes.append("the check at load switches image features off")
    if backbone._traits.keeps_prefix and not backbone.uses_prefix:
        notes.append("the check at load switches prefix reuse off")
    if (preparer := backbone._encoder.preparer) is None:
        return [*notes, "a plain language model"]
    return [
        *notes,
        _pixels(backbone._family, preparer.budget.images_kwargs, backbone.identity.max_pixels),
    ]


def _pixels(family: Family, told: Any, budget: int) -> str:
    if isinstance(family, FixedSize):
        tiling = ", ".join(f"`{name}={value}`" for name, value in told.items())
        return "one fixed image size" + (f", {tiling}" if tiling else "")
    bound = f"aspect ratio kept within `max_pixels`, here {budget:,}"
    return bound if told else f"{bound}, by shrinking before the processor"


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".") + "."


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def document(rows: list[Row]) -> str:
    """The whole file."""
    made_with = f"{MADE_WITH}transformers {transformers.__version__} and torch {torch.__version__.partition('+')[0]}."
    return HEADER.format(made_with=made_with) + "".join(f"{row}\n" for row in rows)


def comparable(text: str) -> list[str]:
    """Its lines without the one that names versions."""
    return [line for line in text.splitlines() if not line.startswith(MADE_WITH)]


def main() -> int:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(prog="python -m tests.backbones.support", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say what would change")
    check = parser.parse_args().check
    made = document(measure())
    if not check:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(made, encoding="utf-8")
        return 0
    there = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    changes = list(difflib.unified_diff(comparable(there), comparable(made), "committed", "made now", lineterm=""))
    sys.stdout.writelines(f"{line}\n" for line in changes)
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
