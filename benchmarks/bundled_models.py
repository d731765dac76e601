"""Position bias of the bundled model on held-out products: the figures of its model card.

    python benchmarks/bundled_models.py [--instances 500] [--orders 5] [--candidates 4 8 12]

Every method is scored from the same passes. The canonical order is off: candidates are shown in random
orders, the target equally often at every position. The calibration is the shipped one (5 samples of training products).
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lad_rerank import LADReranker
from lad_rerank.bundled.shop import candidate_set
from lad_rerank.evaluation.measuring import row_report
from lad_rerank.evaluation.orders import Instance, observe_orders
from lad_rerank.evaluation.rows import stored_rows


def instances(count: int, n: int, difficulty: str, seed: int) -> list[Instance]:
    sets = [candidate_set(n, seed=seed + i, difficulty=difficulty, side="held_out") for i in range(count)]
    return [Instance.of(s.caption, [item.image() for item in s.candidates], {s.target}) for s in sets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--candidates", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--difficulty", nargs="+", default=["random", "adversarial"])
    parser.add_argument("--labels", default="digits")
    parser.add_argument("--seed", type=int, default=1_000_000)
    args = parser.parse_args()
    reranker = LADReranker.from_pretrained("bundled", labels=args.labels)
    table = Table(title=f"{args.instances} instances x {args.orders} orders, labels {args.labels}, in %")
    for column in ("N", "distractors", "method", "accuracy", "+-", "RStd", "Consistency", "MRR", "ms a pass"):
        table.add_column(column, justify="left" if column in ("distractors", "method") else "right")
    with Progress(console=Console(stderr=True)) as bar:
        for n in args.candidates:
            for difficulty in args.difficulty:
                chosen = instances(args.instances, n, difficulty, args.seed)
                task = bar.add_task(f"N={n} {difficulty}", total=args.instances * args.orders)
                observed = observe_orders(
                    reranker.backbone,
                    chosen,
                    orders=args.orders,
                    progress=lambda d, _, t=task: bar.update(t, completed=d),
                )
                ms = 1000 * (observed.seconds_per_pass or 0.0)
                for row in stored_rows(observed, chosen, reranker.calibration).rows:
                    report = row_report(row, chosen, observed.shown)
                    figures = (
                        report.accuracy,
                        report.accuracy_std,
                        None if report.recall_std is None else report.recall_std / 100,
                        report.consistency,
                        report.mrr,
                    )
                    shown = ("-" if value is None else f"{100 * value:.1f}" for value in figures)
                    table.add_row(str(n), difficulty, row.name, *shown, f"{ms if row.passes else 0:.0f}")
                table.add_section()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
