"""The benchmark of one pass runs, on small shapes. Its figures are for people and for quiet machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = (
    ("pass / bare SDPA prefill", 8),
    ("largest difference to eager rows and bare log-probs", 1),
    ("eager with hooks / pass", 2),
    ("calibration, S=3 N=3, features kept / not", 2),
    ("first query / second query, same 8 candidates", 1),
)


def test_quick_prints_every_row() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_pass", "--quick", "--threads", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for what, count in ROWS:
        found = [line for line in lines if what in line]
        assert len(found) == count, done.stdout
        assert all(re.search(r"\b(ok|missed)\b", line) for line in found), done.stdout
    # What does not depend on the clock holds on any shape.
    (counted,) = (line for line in lines if "images through vision" in line)
    assert re.search(r"\b9\b.*\b27\b.*9 / 27.*\bok\b", counted)
    (same,) = (line for line in lines if "largest difference" in line)
    assert re.search(r"\bok\b", same)
    assert all(re.search(r"\bok\b", line) for line in lines if "bare SDPA" in line and "peak memory" in line)
