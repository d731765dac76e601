"""Train the bundled models: ``python -m lad_rerank.bundled.train [--out FOLDER]``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from lad_rerank.bundled.train.config import LanguagePlan, VisionPlan
from lad_rerank.bundled.train.run import Stage, language_stage, vision_stage
from lad_rerank.bundled.train.save import write_digests

STAGES = ("vision", "language", "clip")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lad_rerank.bundled.train", description=__doc__)
    parser.add_argument("--only", default=",".join(STAGES), help="stages, comma-separated (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("trained"), help="where mllm/ and clip/ go (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, help="where the vision stage leaves its results (default: OUT/work)")
    # Sums in another order give other weights: the number of threads is part of the recipe.
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    return arguments


def _clip_stage(out: Path) -> Stage:
    from lad_rerank.bundled.train.clip import train_clip

    return lambda progress: train_clip(out, progress=progress)


def main() -> None:
    """Run the chosen stages and show steps, losses and CPU minutes."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    work = arguments.work or arguments.out / "work"
    console = Console()
    stages: dict[str, Stage] = {
        "vision": lambda progress: vision_stage(work, VisionPlan(), progress),
        "language": lambda progress: language_stage(work, arguments.out / "mllm", LanguagePlan(), progress),
    }
    if "clip" in arguments.only:
        stages["clip"] = _clip_stage(arguments.out / "clip")
    for name in STAGES:
        if name not in arguments.only:
            continue
        started = time.process_time()
        columns = (
            TextColumn(name),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[line]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(name, total=None, line="")
            figures: dict[str, Any] = stages[name](
                lambda done, total, line, bar=bar, task=task: bar.update(  # type: ignore[misc]
                    task, completed=done, total=total, line=line
                )
            )
        minutes = (time.process_time() - started) / 60
        console.print(f"{name}: {minutes:.1f} CPU minutes", figures)
    write_digests(arguments.out, arguments.out / "digests.json")


if __name__ == "__main__":
    main()
