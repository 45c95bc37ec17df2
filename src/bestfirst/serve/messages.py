"""Messages between the server and its engine process.

Pickle takes four times as long for the objects that events are made of as for the tuples of their fields, so these are sent.
Settings and constraints are sent once; after that, messages refer to them by number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from pickle import Pickler, Unpickler
from typing import Any

from ..constraints import Constraint
from ..search import Answer, Result, Trace


def _by_fields(kind: type, but: str = "") -> Callable[[Any], tuple[Any, ...]]:
    """How pickle takes apart an object of this dataclass: its type, and its fields in order, without the one named by `but`."""
    values = attrgetter(*(each.name for each in fields(kind) if each.name != but))
    return lambda value: (kind, values(value))


def _trace_of(events: list[dict[str, Any]]) -> Trace:
    trace = Trace()
    trace.events = events  # its other fields would hold the whole model, which names the tokens
    return trace


class EventPickler(Pickler):
    dispatch_table = {  # noqa: RUF012
        Answer: _by_fields(Answer),
        Result: _by_fields(Result, but="trace"),
        Trace: lambda trace: (_trace_of, (trace.events,)),
    }


def pickle_events(message: Any) -> bytes:
    """A message of events, for `pickle.loads`."""
    out = BytesIO()
    EventPickler(out).dump(message)
    return out.getvalue()


def pickle_settings(value: Any, number: Callable[[Any], int]) -> bytes:
    """Settings with a number in place of their constraint, or one constraint. `number` gives the number of a constraint inside
    `value`, and sends that constraint first if it is new."""
    out = BytesIO()
    SettingsPickler(out, value, number).dump(value)
    return out.getvalue()


class SettingsPickler(Pickler):
    def __init__(self, out: BytesIO, root: Any, number: Callable[[Any], int]) -> None:
        super().__init__(out)
        self._root, self._number = root, number

    def persistent_id(self, value: Any) -> int | None:
        return self._number(value) if isinstance(value, Constraint) and value is not self._root else None


class SettingsUnpickler(Unpickler):
    """Reads what `pickle_settings` wrote; `known` has the constraints by number."""

    def __init__(self, pickled: bytes, known: dict[int, Any]) -> None:
        super().__init__(BytesIO(pickled))
        self._known = known

    def persistent_load(self, number: int) -> Any:
        return self._known[number]
