"""``python -m lad_rerank`` is the program ``lad-rerank``."""

from __future__ import annotations

from lad_rerank.cli import main

if __name__ == "__main__":
    main()
