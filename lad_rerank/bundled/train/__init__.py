"""How the bundled models were trained: ``python -m lad_rerank.bundled.train --out FOLDER``."""

from __future__ import annotations
