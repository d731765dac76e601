"""Arguments and options that several commands share, checked before anything is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_args

import typer

from lad_rerank.errors import InvalidRequestError
from lad_rerank.prompt import LabelStyle, SpanStyle, clean_query

if TYPE_CHECKING:
    from lad_rerank.evaluation.builders import Difficulty
    from lad_rerank.passes import Passes as WantedPasses

METHODS = (
    *("auto", "lad", "lad_probability", "attention", "raw_attention", "profile"),
    *("lad_profile", "attention_profile", "product", "pride", "vanilla"),
)
"""The names of ``debias.scoring.SCORERS``, which is not imported here: --help must not wait for numpy."""
LABELS: tuple[str, ...] = get_args(LabelStyle)
SPANS: tuple[str, ...] = get_args(SpanStyle)
DTYPES = ("float32", "bfloat16", "float16")
LOADING = "How the model is loaded and shown candidates"
MOST_CANDIDATES = 256
"""Far beyond what any model is good at; keeps a slip of the finger from asking for millions."""


def check_query(value: str) -> str:
    """Refuse a query without words; it is passed on as it is."""
    try:
        clean_query(value)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from error
    return value


def check_method(value: str) -> str:
    """Refuse an unknown method."""
    from lad_rerank.debias.scoring import get_scorer

    try:
        get_scorer(value)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from error
    return value


def check_passes(value: str) -> str:
    """Refuse what is no number of passes and not ``"auto"``."""
    parse_passes(value)
    return value


def parse_passes(value: str) -> WantedPasses:
    """A number of passes, or ``"auto"``.

    Raises:
        typer.BadParameter: It is neither.
    """
    if value == "auto":
        return "auto"
    if re.fullmatch(r"[0-9]{1,4}", value) is None or int(value) < 1:
        raise typer.BadParameter(f"{value!r} is no number of passes; write 1, 2 and so on, or auto.")
    return int(value)


def check_labels(value: str) -> str:
    """Refuse an unknown style of labels."""
    if value not in LABELS:
        raise typer.BadParameter(f"{value!r} is no style of labels; choose one of {', '.join(LABELS)}.")
    return value


def check_spans(value: str) -> str:
    """Refuse an unknown choice of a candidate's own tokens."""
    if value not in SPANS:
        raise typer.BadParameter(f"{value!r} is no choice of tokens; choose one of {', '.join(SPANS)}.")
    return value


def check_dtype(value: str | None) -> str | None:
    """Refuse an unknown floating point type."""
    if value is not None and value not in DTYPES:
        raise typer.BadParameter(f"{value!r} is no floating point type to run in; choose one of {', '.join(DTYPES)}.")
    return value


def parse_counts(value: str | None) -> list[int] | None:
    """Numbers of candidates from ``"8"``, ``"2-12"`` or ``"2,4,8"``, ascending, each once.

    Raises:
        typer.BadParameter: It is nothing of the kind, or a number is below 2 or above 256.
    """
    if value is None:
        return None
    counts: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", part)
        if match is None:
            raise typer.BadParameter(f"{value!r} is no number of candidates; write 8, 2-12 or 2,4,8.")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 2 <= first <= last <= MOST_CANDIDATES:
            raise typer.BadParameter(f"{part.strip()!r} must be within 2-{MOST_CANDIDATES}, the smaller number first.")
        counts.update(range(first, last + 1))
    return sorted(counts)


def parse_difficulties(value: str) -> list[Difficulty]:
    """Difficulties of sets from ``"random"``, ``"adversarial"`` or both, each once.

    Raises:
        typer.BadParameter: It is nothing of the kind.
    """
    chosen: list[Difficulty] = []
    for part in value.split(","):
        name = part.strip()
        if name not in ("random", "adversarial"):
            raise typer.BadParameter(f"{name!r} is no difficulty; choose random, adversarial or random,adversarial.")
        chosen.append(cast("Difficulty", name))
    return list(dict.fromkeys(chosen))


Query: TypeAlias = Annotated[
    str, typer.Argument(help="What is looked for, in words.", metavar="QUERY", callback=check_query)
]
Model: TypeAlias = Annotated[
    str,
    typer.Option(
        help="'bundled', a local folder, a Hugging Face id or a .gguf file; a plain language model ranks texts.",
        show_default=True,
    ),
]
Method: TypeAlias = Annotated[
    str,
    typer.Option(
        help="auto: what calibration chose; lad: the paper's; vanilla: the model's answer as it is. "
        f"All: {', '.join(METHODS)}.",
        callback=check_method,
    ),
]
Labels: TypeAlias = Annotated[
    str,
    typer.Option(
        help=f"How candidates are named to the model: {', '.join(LABELS)}.",
        callback=check_labels,
        rich_help_panel=LOADING,
    ),
]
Spans: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Tokens that count as an image's own: visual, or delimited for the marks around it too.",
        callback=check_spans,
        rich_help_panel=LOADING,
    ),
]
Revision: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit of the model on the Hugging Face hub.", rich_help_panel=LOADING),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python files that come with the model; they can do anything, read them first.",
        rich_help_panel=LOADING,
    ),
]
TopN: TypeAlias = Annotated[int | None, typer.Option("--top-n", min=1, help="Print only the best N.")]
Passes: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Looks at the candidates: N in different orders, or auto: one, and a second where the first was unsure.",
        callback=check_passes,
    ),
]
MeanPasses: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--mean-passes", min=1, max=2, help="What --passes auto may cost on average, from 1 to 2; 1.25 by default."
    ),
]
Window: TypeAlias = Annotated[
    int | None,
    typer.Option(min=2, help="Most candidates in one pass; by default what calibration covers and the context holds."),
]
CalibrationFile: TypeAlias = Annotated[
    Path | None, typer.Option("--calibration", help="Calibration file to use in place of the one kept for the model.")
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="Such as cpu or cuda:1; a GPU where there is one.", rich_help_panel=LOADING)
]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(DTYPES)}; by default what suits the device.", callback=check_dtype, rich_help_panel=LOADING
    ),
]
MaxPixels: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-pixels", min=1, help="Pixel budget of one image; 336 x 336 by default.", rich_help_panel=LOADING
    ),
]
MaxTextTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-text-tokens",
        min=1,
        help="Tokens of one candidate's text at most; the rest is cut off. 256 by default.",
        rich_help_panel=LOADING,
    ),
]
AllowUrls: TypeAlias = Annotated[bool, typer.Option("--allow-urls", help="Fetch images given as http(s) URLs.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else to stdout.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks and what the library logs.")]


@dataclass(frozen=True)
class Loading:
    """How a model is loaded and asked; see ``LADReranker.from_pretrained``."""

    device: Device = None
    dtype: Dtype = None
    max_pixels: MaxPixels = None
    max_text_tokens: MaxTextTokens = None
    labels: Labels = "digits"
    spans: Spans = "visual"
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False


@dataclass(frozen=True)
class Looking:
    """How often candidates are looked at, and how many at once; see ``LADReranker.rerank``."""

    passes: Passes = "1"
    mean_passes: MeanPasses = None
    window: Window = None

    def arguments(self, method: str) -> dict[str, Any]:
        """The same as arguments of ``LADReranker.rerank``.

        Args:
            method: The method they go with.

        Raises:
            typer.BadParameter: They do not go with it, or with one another.
        """
        if self.passes == "auto" and method != "auto":
            raise typer.BadParameter(f"--passes auto needs --method auto; {method} takes a number of passes.")
        if self.mean_passes is not None and self.passes != "auto":
            raise typer.BadParameter("--mean-passes goes with --passes auto.")
        return {"passes": parse_passes(self.passes), "mean_passes": self.mean_passes, "window": self.window}
