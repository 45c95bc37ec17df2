"""Messages: what goes between a server and its engine's process, as plain tuples: pickle takes four times as long for the objects
that they are made of. Settings and constraints are sent once, and are then a number."""

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


def _fields(kind: type, but: Sequence[str] = ()) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the fields of such an object, in order."""
    return attrgetter(*(each.name for each in fields(kind) if each.name not in but))


_of_answer, _of_result = _fields(Answer), _fields(Result, but=["hypotheses", "partial", "trace"])
of_stats = _fields(Stats, but=["results"])


def of_event(event: Event) -> tuple[Any, ...]:
    if isinstance(event, Certified):
        return "certified", event.index, event.rank, _of_answer(event.answer)
    if isinstance(event, EngineStopped):
        return "stopped", str(event)
    result, partial, trace = event.result, event.result.partial, event.trace and event.trace.events
    answers = [*map(_of_answer, result.hypotheses)]
    return "done", event.index, answers, _of_result(result), partial and _of_answer(partial), trace, event.read


def to_event(kind: str, *what: Any) -> Event:
    if kind == "certified":
        index, rank, answer = what
        return Certified(index, rank, Answer(*answer))
    if kind == "stopped":
        return EngineStopped(*what)
    index, answers, counts, partial, trace, read = what
    result = Result([Answer(*each) for each in answers], *counts, partial and Answer(*partial))  # type: ignore[call-arg]
    if trace is None:
        return Done(index, result, None, read)
    recorded = Trace()
    recorded.events = trace  # and no more: the rest names tokens by the whole model
    return Done(index, result, recorded, read)


class SettingsPickler(Pickler):
    """Of settings or a constraint; in settings, a constraint is a number."""

    number: Callable[[Any], int]
    whole: Any

    @classmethod
    def dumps(cls, thing: Any, number: Callable[[Any], int]) -> bytes:
        out = BytesIO()
        pickler = cls(out)
        pickler.number, pickler.whole = number, thing
        pickler.dump(thing)
        return out.getvalue()

    def persistent_id(self, thing: Any) -> int | None:
        return self.number(thing) if isinstance(thing, Constraint) and thing is not self.whole else None


class SettingsUnpickler(Unpickler):
    """Of what `SettingsPickler` wrote."""

    known: dict[int, Any]

    @classmethod
    def loads(cls, pickled: bytes, known: dict[int, Any]) -> Any:
        unpickler = cls(BytesIO(pickled))
        unpickler.known = known
        return unpickler.load()

    def persistent_load(self, number: int) -> Any:
        return self.known[number]
