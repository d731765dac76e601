from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from lad_rerank.cli import options
from lad_rerank.cli.unfolding import unfolded


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option(min=1, help="How wide.")]
    deep: Annotated[bool, typer.Option("--deep")] = False


@unfolded
def draw(
    name: Annotated[str, typer.Argument()], *, colour: str = "red", size: Size, loading: options.Loading, times: int = 1
) -> None:
    """Draw something."""
    typer.echo(f"{name} {colour} {size} {loading.labels} {loading.device} {times}")


def test_records_become_options() -> None:
    app = typer.Typer()
    app.command()(draw)
    result = CliRunner().invoke(app, ["mug", "--width", "3", "--deep", "--labels", "letters", "--times", "2"])
    assert result.stdout == "mug red Size(width=3, deep=True) letters None 2\n"
    assert CliRunner().invoke(app, ["mug"]).exit_code == 2
    assert CliRunner().invoke(app, ["mug", "--width", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["mug", "--width", "3", "--labels", "runes"]).exit_code == 2


def test_the_order_of_options_is_that_of_the_function() -> None:
    names = list(inspect.signature(draw).parameters)
    assert names[:4] == ["name", "colour", "width", "deep"]
    assert names[-1] == "times"
    assert draw.__doc__ == "Draw something."


def test_a_wrong_call_is_an_error() -> None:
    with pytest.raises(KeyError):
        draw(name="mug", colour="red", times=1)
