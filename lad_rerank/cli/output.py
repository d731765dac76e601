"""What every command shares: results on stdout and nothing else there, errors in one sentence, exit codes."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import typer

from lad_rerank.errors import InvalidRequestError, LADRerankError

if TYPE_CHECKING:
    from rich.console import Console

FAILED = 1
WRONG_USAGE = 2

_LOGGERS = ("lad_rerank", "clip_faiss")


class NothingRankedError(LADRerankError):
    """No candidate could be ranked, so there is no result to print."""


class StdoutClosedError(LADRerankError):
    """The process was started without a stdout, so there is nowhere to print a result."""


@dataclass(frozen=True)
class Output:
    """Where a command's result goes.

    Attributes:
        as_json: As one JSON document, or as text for people.
        stream: The process's stdout.
    """

    as_json: bool
    stream: IO[str]

    def emit(self, document: Mapping[str, Any], show: Callable[[Console], None]) -> None:
        """Print a result.

        Args:
            document: What ``--json`` prints.
            show: Prints the same for people.
        """
        if self.as_json:
            # ASCII only: any terminal's encoding can carry it, and file names that are no UTF-8 too.
            self.stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        else:
            from rich.console import Console

            # Paths and queries are text: no markup, emoji codes or highlighting in them.
            show(Console(file=self.stream, markup=False, emoji=False, highlight=False))
        self.stream.flush()


@contextmanager
def command(*, as_json: bool, debug: bool) -> Iterator[Output]:
    """Run the body of a command.

    Args:
        as_json: Print the result as JSON.
        debug: Show tracebacks and what the library logs.

    Yields:
        Where the result goes. Whatever else is written to stdout meanwhile goes to stderr.

    Raises:
        typer.Exit: With code 2 for requests that make no sense and 1 for anything else that went wrong,
            after one sentence on stderr.
    """
    try:
        with _logs_on_stderr(logging.DEBUG if debug else logging.WARNING), _stdout_for_results() as stream:
            yield Output(as_json, stream)
    # `typer.Exit` and `typer.Abort` are RuntimeErrors; a broken pipe is the reader's wish, which typer knows.
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc(file=sys.stderr)
        typer.echo(f"Error: {_sentence(error)}", err=True)
        raise typer.Exit(WRONG_USAGE if isinstance(error, InvalidRequestError) else FAILED) from error


def _sentence(error: Exception) -> str:
    if isinstance(error, (LADRerankError, ImportError)):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    told = " ".join(str(error).split()).removesuffix(".")
    return f"Unexpected {type(error).__name__}{': ' if told else ''}{told}. Run again with --debug to see where."


class _StderrHandler(logging.Handler):
    """Writes to whatever stderr is at the time, so that progress bars and tests may replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


@contextmanager
def _logs_on_stderr(level: int) -> Iterator[None]:
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)


@contextmanager
def _stdout_for_results() -> Iterator[IO[str]]:
    """Yield stdout, and point everyone else's stdout at stderr, below Python too where it is the process's.

    Raises:
        StdoutClosedError: There is none, so that all work would be for nothing.
    """
    stdout = sys.stdout
    # What typeshed does not say: Python leaves None where the file descriptor is closed at the start.
    if stdout is None or stdout.closed:
        raise StdoutClosedError("There is no stdout to print the result to; it is closed.")
    stdout.flush()
    if sys.__stdout__ is None or stdout is not sys.__stdout__ or sys.__stdout__.fileno() != 1:
        with redirect_stdout(sys.stderr):
            yield stdout
        return
    # A terminal that cannot show a character of a file name must not lose the result.
    stream = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors="backslashreplace")
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield stream
    finally:
        os.dup2(stream.fileno(), 1)
        stream.close()
