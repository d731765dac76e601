"""Options that several commands share, in one record: written once, shown as options of each command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that takes options in records.

    Every parameter whose type is a dataclass becomes one option for each of its fields; the function gets the
    record, filled.

    Args:
        command: The function. Parameters behind records must be keyword-only.

    Returns:
        The same as typer wants it: one parameter an option, in the same order.
    """
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in records:
            shown.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(records[name], include_extras=True)
        for one in fields(records[name]):
            default = inspect.Parameter.empty if one.default is MISSING else one.default
            shown.append(
                inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[one.name])
            )

    @functools.wraps(command)
    def run(**given: Any) -> None:
        filled = {
            name: record(**{one.name: given.pop(one.name) for one in fields(record)})
            for name, record in records.items()
        }
        command(**given, **filled)

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # what inspect and typer look for
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run
