"""The program as a whole: light, quiet, and clear about what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import Result

from lad_rerank import __version__
from lad_rerank.cli import main
from lad_rerank.cli.app import app

HEAVY = ("torch", "transformers", "numpy", "PIL", "faiss", "open_clip", "llama_index", "pydantic")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    done = python(f"""
        import sys
        from lad_rerank.cli import main
        sys.argv = ["lad-rerank", "--help"]
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, None)
        print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
    """)
    assert done.stderr.strip() == "[]"
    for name in ("demo", "index", "search", "rerank", "calibrate", "evaluate"):
        assert name in done.stdout


def test_module_and_entry_point_are_the_same_program() -> None:
    (entry,) = entry_points(group="console_scripts", name="lad-rerank")
    assert entry.load() is main
    done = subprocess.run([sys.executable, "-m", "lad_rerank", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__}\n"


@pytest.mark.parametrize("name", ["demo", "index", "search", "rerank", "calibrate", "evaluate"])
def test_every_command_speaks_json(run: Callable[..., Result], name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--debug" in result.stdout


def test_help_names_every_method(run: Callable[..., Result]) -> None:
    from lad_rerank.debias.scoring import SCORERS

    text = " ".join(run("rerank", "--help").stdout.replace("│", " ").split())
    for method in SCORERS:
        assert method in text


def test_nothing_but_the_result_reaches_stdout() -> None:
    done = python("""
        import os, subprocess, sys
        from lad_rerank.cli.output import command
        with command(as_json=True, debug=False) as output:
            print("from Python")
            os.write(1, b"from below Python\\n")
            subprocess.run([sys.executable, "-c", "print('from a child')"])
            output.emit({"name": "mug \\udcff ☕"}, lambda console: None)
        print("afterwards")
    """)
    document, _, rest = done.stdout.rpartition("}\n")
    assert json.loads(document + "}") == {"name": "mug \udcff ☕"}
    assert rest == "afterwards\n"
    for noise in ("from Python", "from below Python", "from a child"):
        assert noise in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        ("InvalidRequestError('The query is empty.')", 2, "Error: The query is empty.\n"),
        ("BackboneError('No such\\n  model.')", 1, "Error: No such model.\n"),
        ("ImportError('pip install \"lad-rerank[index]\"')", 1, 'Error: pip install "lad-rerank[index]"\n'),
        ("FileNotFoundError(2, 'No such file', 'a.json')", 1, "Error: a.json: No such file.\n"),
        ("KeyError('x')", 1, "Error: Unexpected KeyError: 'x'. Run again with --debug to see where.\n"),
    ],
)
def test_errors_are_one_sentence_on_stderr(error: str, code: int, told: str) -> None:
    done = python(f"""
        import typer
        from lad_rerank.cli.output import command
        from lad_rerank.errors import *
        def fail() -> None:
            with command(as_json=True, debug=False):
                raise {error}
        app = typer.Typer()
        app.command()(fail)
        app()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


@pytest.mark.parametrize("args", [("rerank", "a mug", "a.png"), ("rerank", "a mug", "a.png", "--json")])
def test_a_closed_stdout_is_1_before_any_work(args: tuple[str, ...]) -> None:
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "lad_rerank", *args]
    done = subprocess.run(closing, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: There is no stdout to print the result to; it is closed.\n"


@pytest.mark.parametrize("name", ["rerank", "search", "calibrate", "evaluate"])
def test_every_way_to_load_a_model_is_an_option(name: str) -> None:
    told = {option for parameter in get_group(app).commands[name].params for option in parameter.opts}
    assert told >= {"--labels", "--spans", "--revision", "--trust-remote-code", "--device", "--dtype"}
    assert told >= {"--max-pixels", "--max-text-tokens"}


def test_debug_shows_the_traceback(run: Callable[..., Result], tmp_path: Path) -> None:
    plain = run("search", tmp_path / "none", "a mug")
    told = run("search", tmp_path / "none", "a mug", "--debug")
    assert plain.exit_code == told.exit_code == 1
    assert "Traceback" not in plain.stderr
    assert "Traceback" in told.stderr
    assert told.stderr.endswith(plain.stderr)


@pytest.mark.parametrize(
    "args",
    [
        ("rerank",),
        ("rerank", "a mug"),
        ("rerank", " \n", "a.png"),
        ("rerank", "a mug", "a.png", "--top-n", "0"),
        ("rerank", "a mug", "a.png", "--method", "magic"),
        ("rerank", "a mug", "a.png", "--labels", "runes"),
        ("rerank", "a mug", "a.png", "--spans", "all"),
        ("rerank", "a mug", "a.png", "--dtype", "int8"),
        ("rerank", "a mug", "a.png", "--max-pixels", "0"),
        ("rerank", "a mug", "a.png", "--max-text-tokens", "0"),
        ("rerank", "a mug", "a.png", "--passes", "0"),
        ("rerank", "a mug", "a.png", "--passes", "auto", "--method", "lad"),
        ("rerank", "a mug", "a.png", "--passes", "auto", "--mean-passes", "3"),
        ("rerank", "a mug", "a.png", "--mean-passes", "1.5"),
        ("rerank", "a mug", "a.png", "--window", "1"),
        ("rerank", "a mug", "--text", " "),
        ("search", "index", ""),
        ("search", "index", "a mug", "-k", "0"),
        ("search", "index", "a mug", "--method", "magic"),
        ("search", "index", "a mug", "--passes", "many"),
        ("index", "no such folder", "--out", "index"),
        ("calibrate", "--model", "bundled"),
        ("calibrate", "--model", "bundled", "--samples", "a.jsonl", "--from-index", "index"),
        ("calibrate", "--model", "bundled", "--samples", "a.jsonl", "--candidates", "12-2"),
        ("demo", "--queries", "0"),
        ("evaluate",),
        ("evaluate", "--shop", "--index", "index"),
        ("evaluate", "--shop", "--end-to-end"),
        ("evaluate", "--annotations", "a.json"),
        ("evaluate", "--shop", "--image-folder", "images"),
        ("evaluate", "--shop", "--candidates", "27"),
        ("evaluate", "--shop", "--candidates", "many"),
        ("evaluate", "--shop", "--difficulty", "easy"),
        ("evaluate", "--shop", "--rows", "magic"),
        ("evaluate", "--shop", "--orders", "0"),
        ("evaluate", "--observations", "a.safetensors", "--save", "b.safetensors"),
        ("no such command",),
    ],
)
def test_wrong_usage_is_2(run: Callable[..., Result], args: tuple[str, ...]) -> None:
    result = run(*args, *(["--json"] if len(args) > 1 else []))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.stderr
