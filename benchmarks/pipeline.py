"""The whole pipeline on held-out products: CLIP's first 8, then one pass; captions that name some attributes.

    python benchmarks/pipeline.py [--products 2000] [--queries 400] [--seed 7]

Right is a product that has every stated attribute; one that was not retrieved is a miss for every method.
Vanilla and LAD are scored from the same passes, in LADReranker's canonical order.
"""

from __future__ import annotations

import argparse
from random import Random

import numpy as np
from rich.console import Console
from rich.table import Table

from clip_faiss import ClipFaissIndex
from lad_rerank import LADReranker
from lad_rerank.bundled.shop import caption, catalogue, random_attributes, satisfies, wanted
from lad_rerank.evaluation.ranking_metrics import reciprocal_rank

METHODS = ("vanilla", "pride", "attention", "lad")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    items = catalogue(args.products, args.seed, "held_out")
    index = ClipFaissIndex.build([item.image() for item in items], progress=False)
    reranker = LADReranker.from_pretrained("bundled")
    rng = Random(args.seed)
    found: dict[str, list[list[int]]] = {name: [] for name in ("first stage", *METHODS)}
    relevant: list[set[int]] = []
    for number in range(args.queries):
        product = rng.choice(items).product
        named = random_attributes(args.seed * 100_000 + number)
        asked = wanted(product, named)
        relevant.append({row for row, item in enumerate(items) if satisfies(item.product, asked)})
        query = caption(product, args.seed * 100_000 + number, named)
        rows = [hit.row for hit in index.search(query, args.k)]
        found["first stage"].append(rows)
        images = [items[row].image() for row in rows]
        for method in METHODS:
            # The second method's pass is the first one's, kept.
            found[method].append([rows[hit.index] for hit in reranker.rerank(query, images, method=method)])
    table = Table(title=f"{args.queries} partial captions, {args.products} products, CLIP's first {args.k}, in %")
    for column in ("method", "top-1", "MRR", "over the first stage"):
        table.add_column(column, justify="left" if column == "method" else "right")
    base = np.mean([rows[0] in right for rows, right in zip(found["first stage"], relevant, strict=True)])
    for method, ranked in found.items():
        top = np.mean([rows[0] in right for rows, right in zip(ranked, relevant, strict=True)])
        mrr = np.mean([reciprocal_rank(rows, right) for rows, right in zip(ranked, relevant, strict=True)])
        table.add_row(method, f"{100 * top:.1f}", f"{100 * mrr:.1f}", f"{100 * (top - base):+.1f}")
    Console(width=100).print(table)
    retrieved = np.mean([bool(right & set(rows)) for rows, right in zip(found["first stage"], relevant, strict=True)])
    Console().print(f"A right product was among the first {args.k} for {100 * retrieved:.1f} % of the queries.")


if __name__ == "__main__":
    main()
