"""The program ``lad-rerank``: one file per command, nothing heavy imported before a command runs."""

from __future__ import annotations


def main() -> None:
    """Run the program with the arguments of this process."""
    from lad_rerank.cli.app import app

    app(prog_name="lad-rerank")
