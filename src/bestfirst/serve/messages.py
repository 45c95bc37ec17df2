"""Messages between the server and its engine process.

Events and statistics travel as plain tuples, because pickle takes four times as long for the objects that they are made of.
Settings and constraints are sent once; after that, messages refer to them by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from pickle import Pickler, Unpickler
from typing import Any

from ..constraints import Constraint
from ..engine import Stats
from ..search import Answer, Result, Trace
from .work import Certified, Done, EngineStopped, Event


def _packer(kind: type, but: Sequence[str] = ()) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an object of this dataclass to the tuple of its fields, in order, without those named by `but`."""
    return attrgetter(*(each.name for each in fields(kind) if each.name not in but))


_pack_answer, _pack_counts = _packer(Answer), _packer(Result, but=["hypotheses", "partial", "trace"])
pack_stats = _packer(Stats, but=["results"])


def pack_event(event: Event) -> tuple[Any, ...]:
    """An event as a tuple of plain values; `unpack_event` is the inverse."""
    if isinstance(event, Certified):
        return "certified", event.index, event.rank, _pack_answer(event.answer)
    if isinstance(event, EngineStopped):
        return "stopped", str(event)
    result, partial, trace = event.result, event.result.partial, event.trace and event.trace.events
    answers = [*map(_pack_answer, result.hypotheses)]
    return "done", event.index, answers, _pack_counts(result), partial and _pack_answer(partial), trace, event.prompt_tokens


def unpack_event(kind: str, *values: Any) -> Event:
    if kind == "certified":
        index, rank, answer = values
        return Certified(index, rank, Answer(*answer))
    if kind == "stopped":
        return EngineStopped(*values)
    index, answers, counts, partial, events, prompt_tokens = values
    result = Result([Answer(*each) for each in answers], *counts, partial and Answer(*partial))  # type: ignore[call-arg]
    trace = None
    if events is not None:
        trace = Trace()
        trace.events = events  # its other fields would hold the whole model, which names the tokens
    return Done(index, result, trace, prompt_tokens)


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
