"""Groups of options that several commands share, each declared once, as a dataclass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., int])


def grouped(command: Command) -> Command:
    """A parameter whose type is a dataclass becomes an option for each of its fields; the command is given the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            parameters += [(field.name, field.default, types[field.name]) for field in fields(groups[name])]
        else:
            parameters.append((name, parameter.default, hints[name]))

    @functools.wraps(command)
    def run(**given: Any) -> int:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return command(**given)

    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for name, default, kind in parameters]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run  # type: ignore[return-value]
