"""What one pass costs: our read-out beside SDPA, against the bare prefill and against eager attention.

    python benchmarks/one_pass.py [--threads 1] [--repeats 15] [--quick]

A Qwen2.5-VL of random weights and middling size is built in memory; nothing is downloaded. All sides
of a comparison run in turn in one process, on equal weights and inputs. A time is the CPU time of the
process, the median over the repetitions; a time ratio is the median over the repetitions' own ratios,
since what else the machine does changes from one to the next, and the middle half of them stands
beside it. Memory is the highest sum of tensors allocated during a pass, from the profiler's memory
events: weights and inputs, which were there before, do not count.

"Ours" is the whole of ``HuggingFaceBackbone.observe`` on images seen before: digests, tokens, pass,
rows, labels. The others get finished token ids and image features, and so only run their pass.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from PIL.Image import Image
from rich.console import Console
from rich.table import Table

from benchmarks.shapes import MID, QUERIES, SMALL, Shape, build, pictures
from lad_rerank.backbones.huggingface import HuggingFaceBackbone
from lad_rerank.calibration.making import make_calibration
from lad_rerank.calibration.samples import CalibrationSample

PASS_TIME, PASS_MEMORY = 1.03, 1.05
EAGER_TIME, EAGER_MEMORY = 1.4, 5.0
SECOND_QUERY = 15.0
DIFFERENCE = 1e-5
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Row:
    """One line of the table: two sides, what one is to the other, how far that spreads, and what it should be."""

    what: str
    ours: str
    other: str
    ratio: str
    spread: str
    target: str
    ok: bool


def cpu_times(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each side in each repetition; the sides take turns, and turns at being first."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(repeats):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            gc.collect()
            start = time.process_time()
            sides[name]()
            times[name].append(time.process_time() - start)
    return times


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Quotients, repetition by repetition."""
    return [a / b for a, b in zip(over, under, strict=True)]


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes of tensors alive at once of those that a call makes."""
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        result = call()
    del result
    live = highest = 0
    events: Any = profile.profiler
    for event in sorted(events.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            highest = max(highest, live)
    return highest


class Sides:
    """The same prompt for everybody: our backbone, the bare model with SDPA, the model with eager attention.

    Args:
        shape: Sizes of the model.
        cache_bytes: Keys and values that our backbone keeps; with 0 no side keeps any.
    """

    def __init__(self, shape: Shape, cache_bytes: int) -> None:
        model, processor = build(shape)
        self.bare: Any = copy.deepcopy(model)
        self.eager: Any = copy.deepcopy(model)
        self.eager.set_attn_implementation({"text_config": "eager"})
        self._caching = cache_bytes > 0
        # Letters name 26 candidates with one token each: one pass, whatever N is.
        self.ours = HuggingFaceBackbone(
            model, processor, name="random", labels="letters", verify=False, max_cache_bytes=cache_bytes
        )
        self._images: list[Image] = []
        self._inputs: dict[str, Any] = {}

    def show(self, images: list[Image]) -> int:
        """Choose the candidates, and give the bare models what the processor makes of them.

        Returns:
            Tokens of the prompt.
        """
        self._images = images
        prompt = self.ours._encoder.encode_plain(QUERIES[0], images)
        inputs = dict(prompt.inputs or {})
        with torch.inference_mode():
            features = self.bare.get_image_features(
                inputs.pop("pixel_values"), inputs["image_grid_thw"], return_dict=True
            )
        # Nothing is padded, and our pass sends no mask either.
        inputs.pop("attention_mask", None)
        self._inputs = inputs | {"mm_encoder_outputs": {"image": features}, "logits_to_keep": 1}
        self.observe()
        return prompt.length

    def observe(self) -> Any:
        """Our pass. The images are known, the keys and values of their prompt are not."""
        self.ours._runs.kept.clear()
        return self.ours.observe(QUERIES[0], self._images)

    @torch.inference_mode()
    def prefill(self) -> Any:
        """The bare model with SDPA."""
        return self.bare(**self._inputs, use_cache=self._caching)

    @torch.inference_mode()
    def eager_pass(self) -> tuple[Any, list[torch.Tensor]]:
        """The authors' way: every layer makes its full map, and a hook keeps the last row of it."""
        rows: list[torch.Tensor] = []
        layers = self.eager.get_decoder().layers
        hooks = [
            layer.self_attn.register_forward_hook(lambda module, args, output: rows.append(output[1][0, :, -1].clone()))
            for layer in layers
        ]
        try:
            return self.eager(**self._inputs, use_cache=self._caching), rows
        finally:
            for hook in hooks:
                hook.remove()

    def difference(self) -> float:
        """Largest difference of what we read to eager attention, and of our label log-probs to the bare logits'."""
        seen = self.observe()
        prompt = self.ours.encode(QUERIES[0], self._images)
        _, rows = self.eager_pass()
        mass = torch.stack([torch.stack([row[:, list(s)].sum(-1) for s in prompt.spans], -1) for row in rows])
        logits = self.prefill().logits[0, -1].double()
        expected = torch.log_softmax(logits[[label[0] for label in prompt.answer.labels]], dim=0)
        return max(
            float(np.abs(seen.attention["last"] - mass.double().numpy()).max()),
            float(np.abs(seen.log_probs - expected.numpy()).max()),
        )


def bare_rows(sides: Sides, what: str, repeats: int) -> Iterator[Row]:
    """Our pass against the bare prefill."""
    calls = {"ours": sides.observe, "bare": sides.prefill}
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    times = cpu_times(calls, repeats)
    what = f"pass / bare SDPA prefill, {what}"
    yield time_row(what, times["ours"], times["bare"], ratios(times["ours"], times["bare"]), at_most=PASS_TIME)
    yield memory_row(what, peaks["ours"], peaks["bare"], peaks["ours"] / peaks["bare"], at_most=PASS_MEMORY)


def eager_rows(sides: Sides, what: str, repeats: int) -> Iterator[Row]:
    """The authors' way against our pass, and whether all sides say the same."""
    worst = sides.difference()
    yield Row(
        f"largest difference to eager rows and bare log-probs, {what}",
        *("", "", f"{worst:.0e}", "", f"<= {DIFFERENCE:.0e}"),
        worst <= DIFFERENCE,
    )
    calls = {"ours": sides.observe, "eager": sides.eager_pass}
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    times = cpu_times(calls, repeats)
    what = f"eager with hooks / pass, {what}"
    yield time_row(what, times["ours"], times["eager"], ratios(times["eager"], times["ours"]), at_least=EAGER_TIME)
    yield memory_row(what, peaks["ours"], peaks["eager"], peaks["eager"] / peaks["ours"], at_least=EAGER_MEMORY)


def pass_rows(shape: Shape, counts: Sequence[int], repeats: int) -> Iterator[Row]:
    """Our pass against the bare prefill at each number of images, and against eager at the last of them."""
    for cache_bytes, suffix in ((0, ""), (2**30, ", keys and values kept")):
        sides = Sides(shape, cache_bytes)
        for n in counts:
            tokens = sides.show(pictures(n, shape.side))
            yield from bare_rows(sides, f"{tokens} tokens{suffix}", repeats)
            if n == counts[-1] and not cache_bytes:
                yield from eager_rows(sides, f"{tokens} tokens", max(1, repeats // 4))


def calibration_rows(shape: Shape, samples: int, n: int) -> Iterator[Row]:
    """Calibrate with image features kept and without, and count the images that reach the vision tower."""
    made = [CalibrationSample(QUERIES[s % len(QUERIES)], pictures(n, shape.side, s), s % n) for s in range(samples)]
    counted, times = {}, {}
    for name, room in {"kept": 256 * MEBIBYTE, "not kept": 0}.items():
        model, processor = build(shape)
        backbone = HuggingFaceBackbone(model, processor, name="random", verify=False, max_feature_bytes=room)
        seen: list[int] = []
        tower: Any = model.model.visual
        tower.register_forward_pre_hook(
            lambda module, args, kwargs, seen=seen: seen.append(len(kwargs.get("grid_thw", args[-1]))),
            with_kwargs=True,
        )
        start = time.process_time()
        make_calibration(backbone, made, candidate_counts=[n])
        times[name] = [time.process_time() - start]
        counted[name] = sum(seen)
    what = f"calibration, S={samples} N={n}, features kept / not"
    yield Row(
        f"{what}: images through vision",
        *(str(counted["kept"]), str(counted["not kept"]), f"{counted['kept'] / counted['not kept']:.3f}"),
        *("", f"{samples * n} / {samples * n * n}"),
        counted == {"kept": samples * n, "not kept": samples * n * n},
    )
    yield time_row(what, times["kept"], times["not kept"], ratios(times["kept"], times["not kept"]), at_most=1)


def second_query_row(shape: Shape, n: int, repeats: int) -> Row:
    """A query over candidates never seen, then another one over the same."""
    model, processor = build(shape)
    backbone = HuggingFaceBackbone(model, processor, name="random", verify=False)
    images = pictures(n, shape.side)

    def first() -> None:
        backbone.forget()
        backbone.observe(QUERIES[0], images)

    def second() -> None:
        backbone.observe(QUERIES[1], images)

    # In this order every time: the second has to find what the first has kept.
    rounds = [cpu_times({"first": first, "second": second}, 1) for _ in range(repeats + 1)][1:]
    firsts, seconds = ([one[name][0] for one in rounds] for name in ("first", "second"))
    what = f"first query / second query, same {n} candidates"
    return time_row(what, seconds, firsts, ratios(firsts, seconds), at_least=SECOND_QUERY)


def time_row(
    what: str,
    ours: Sequence[float],
    other: Sequence[float],
    values: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """Medians of CPU times, and of their ratios."""
    low, high = np.quantile(values, [0.25, 0.75])
    spread = f"{low:.3f}..{high:.3f}" if len(values) > 1 else ""
    sides = f"{statistics.median(ours):.3f} s", f"{statistics.median(other):.3f} s"
    return _bounded(f"{what}: CPU time", sides, statistics.median(values), spread, at_most, at_least)


def memory_row(
    what: str, ours: int, other: int, value: float, *, at_most: float | None = None, at_least: float | None = None
) -> Row:
    """Peak memory and its ratio."""
    sides = f"{ours / MEBIBYTE:.1f} MiB", f"{other / MEBIBYTE:.1f} MiB"
    return _bounded(f"{what}: peak memory", sides, value, "", at_most, at_least)


def _bounded(
    what: str, sides: tuple[str, str], value: float, spread: str, at_most: float | None, at_least: float | None
) -> Row:
    ok = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    target = f"<= {at_most}" if at_most is not None else f">= {at_least}"
    return Row(what, *sides, f"{value:.3f}", spread, target, ok)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; 1 by default, the steadiest")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--quick", action="store_true", help="small shapes: shows that it runs, the figures mean nothing"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape, counts, repeats = (SMALL, (4, 8), 1) if args.quick else (MID, (13, 26), args.repeats)
    rows = [
        *pass_rows(shape, counts, repeats),
        *calibration_rows(shape, *((3, 3) if args.quick else (5, 4))),
        second_query_row(shape, 8, repeats),
    ]
    table = Table(
        title=f"Qwen2.5-VL, random weights, {shape.layers} layers, hidden {shape.hidden}, "
        f"{shape.side} x {shape.side} images; float32, {args.threads} thread(s), {repeats} repetition(s); "
        f"torch {torch.__version__}, transformers {transformers.__version__}",
        caption="Quick: the figures mean nothing." if args.quick else None,
    )
    table.add_column("what", ratio=1)
    for column in ("ours", "other", "ratio", "middle half", "target", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        verdict = "[green]ok[/]" if row.ok else "[red]missed[/]"
        table.add_row(row.what, row.ours, row.other, row.ratio, row.spread, row.target, verdict)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
