"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from lad_rerank.cli.calibrate import calibrate
from lad_rerank.cli.demo import demo
from lad_rerank.cli.evaluate import evaluate
from lad_rerank.cli.index import index
from lad_rerank.cli.rerank import rerank
from lad_rerank.cli.search import search

app = typer.Typer(
    no_args_is_help=True,
    # Errors are told in one sentence by `output.command`; what slips through is a bug and may look like one.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (demo, index, search, rerank, calibrate, evaluate):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from lad_rerank import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Rank images for a query with a multimodal LLM: one forward pass, whatever the order of the images.

    Results go to stdout, with --json as one JSON document; everything else goes to stderr. Exit codes: 0 it worked,
    1 it did not, 2 wrong usage.
    """
