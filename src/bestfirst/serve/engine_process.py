"""Engine process: the engine's thread in a process of its own, so that neither it nor a GPU waits for those who answer requests.

Here a thread turns what comes back into events; there the process's first thread hands requests to the engine's. Messages are
plain tuples. Settings and constraints are sent once and then named by their number.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from operator import attrgetter
from pickle import Pickler, Unpickler, dumps, loads
from threading import Thread
from time import monotonic
from typing import Any

from ..constraints import Constraint
from ..engine import Stats
from ..models import Model
from ..search import Answer, Result
from ..settings import Decoding
from .engine_thread import Certified, Done, EngineStopped, EngineThread, Event, Work, take_turns
from .schemas import Limits

KNOWN = 256  # settings and constraints that have a number
PATIENCE = 10.0  # seconds that the process may take to end
NEWS = 0.05  # seconds after which the state of the engine is told although nothing has happened

Load = Callable[[], tuple[Model, Decoding]]

_ANSWER = attrgetter(*(each.name for each in fields(Answer)))
_COUNTS = [each.name for each in fields(Result)[1:-2]]  # all that is neither an answer nor a trace
_RESULT = attrgetter(*_COUNTS)
_COST = [each.name for each in fields(Stats) if each.name != "results"]


class EngineProcess:
    """As `EngineThread`, to those who use it. `load` is called in the new process and returns a model of transformers and
    settings, of which the drafter is used; `model` is the same without weights.

    If `load` ends its process, which has then said why, so does this one, with the same code.
    """

    def __init__(self, load: Load, limits: Limits, *, row_budget: int | None = None) -> None:
        self.flush: Callable[[], None] = lambda: None
        self.in_flight, self.stats = 0, Stats()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_engine, args=(theirs, load, limits, row_budget), name="engine", daemon=True)
        self._process.start()
        theirs.close()
        from ..models import transformers  # noqa: F401  # meanwhile: the model is one of its classes

        try:
            self.model: Model = loads(self._pipe.recv_bytes())
        except EOFError:
            self._process.join()
            raise SystemExit(self._process.exitcode or 1) from None
        self._works: dict[int, Work] = {}
        self._numbers: dict[Work, int] = {}
        self._left: dict[int, int] = {}  # texts of each that are not done
        self._next = 0
        self._known: dict[int, tuple[Any, int]] = {}  # by identity, the latest last
        self._thread = Thread(target=self._listen, name="engine's events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Work) -> None:
        numbers = [self._number(decoding) for _, decoding in work.texts]
        texts, how = [text for text, _ in work.texts], (work.stream, work.blanks, work.recorded)
        self._next = number = self._next + 1
        self._works[number], self._numbers[work], self._left[number] = work, number, len(texts)
        self._send("submit", number, work.client, texts, numbers, how)
        while len(self._known) > KNOWN:
            _, oldest = self._known.pop(next(iter(self._known)))
            self._send("forget", oldest)

    def cancel(self, work: Work) -> None:
        number = self._numbers.get(work)
        if number is not None:
            self._forget(number)
            self._send("cancel", number)

    def stop(self) -> None:
        """End the process; what is not done fails."""
        self._send("stop")
        self._process.join(PATIENCE)
        self._process.kill()

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # if it has ended, the thread that listens says so
            self._pipe.send_bytes(dumps(message))

    def _number(self, thing: Any) -> int:
        """Of settings or a constraint, sent if this is new."""
        found = self._known.pop(id(thing), None)
        if found is None:
            self._next = number = self._next + 1
            found = thing, number
            self._send("know", number, _Pickler.dumps(thing, self._number))
        self._known[id(thing)] = found
        return found[1]

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                told, self.in_flight, costs = loads(self._pipe.recv_bytes())
                self.stats = Stats(*costs)
                for number, *event in told:
                    self._tell(number, event)
                self.flush()
        except (EOFError, OSError):
            pass
        finally:
            for work in [*self._works.values()]:
                work.tell(EngineStopped("the server is stopping"))
            self.flush()

    def _tell(self, number: int, event: list[Any]) -> None:
        work = self._works.get(number)
        if work is None:
            return  # nobody waits for it any more
        told = _event(*event)
        self._left[number] -= type(told) is Done
        if not self._left[number]:
            self._forget(number)
        work.tell(told)

    def _forget(self, number: int) -> None:
        del self._numbers[self._works.pop(number)], self._left[number]


def _event(kind: str, *what: Any) -> Event:
    """What was told, as `_told` wrote it."""
    if kind == "certified":
        index, rank, answer = what
        return Certified(index, rank, Answer(*answer))
    if kind == "stopped":
        return EngineStopped(*what)
    index, counts, answers, partial, trace, read = what
    result = Result([Answer(*each) for each in answers], *counts, partial and Answer(*partial))  # type: ignore[call-arg]
    return Done(index, result, trace and loads(trace), read)


def _told(event: Event) -> tuple[Any, ...]:
    if isinstance(event, Certified):
        return "certified", event.index, event.rank, _ANSWER(event.answer)
    if isinstance(event, EngineStopped):
        return "stopped", str(event)
    index, result, trace, read = event
    partial = result.partial and _ANSWER(result.partial)
    return "done", index, _RESULT(result), [*map(_ANSWER, result.hypotheses)], partial, trace and dumps(trace), read


class _Pickler(Pickler):
    """Of settings, whose constraints have a number."""

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


class _Unpickler(Unpickler):
    """Of what `_Pickler` wrote."""

    known: dict[int, Any]

    def persistent_load(self, number: int) -> Any:
        return self.known[number]


# -- there -----------------------------------------------------------------------------------------------------------------------


def run_engine(pipe: Connection, load: Load, limits: Limits, row_budget: int | None) -> None:
    """What the new process does, until it is told to stop or nobody is there to tell it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to both: who listens says when to stop
    model, decoding = load()
    engine = EngineThread(model, limits, row_budget=row_budget, draft=decoding.draft)
    pipe.send_bytes(dumps(model.without_weights()))  # type: ignore[attr-defined]
    told: list[tuple[Any, ...]] = []
    last = 0.0

    def flush() -> None:
        nonlocal last
        if told or not engine.busy or monotonic() - last > NEWS:
            stats, last = engine.stats, monotonic()
            message = dumps((told, engine.in_flight, [getattr(stats, name) for name in _COST]))
            told.clear()
            try:
                pipe.send_bytes(message)
            except OSError:
                os._exit(1)

    engine.flush = flush
    take_turns()
    engine.start()
    try:
        _hand_over(pipe, engine, told)
    except (EOFError, OSError):
        os._exit(1)  # the engine may be in the middle of a forward pass, and nobody waits for it
    engine.stop()


def _hand_over(pipe: Connection, engine: EngineThread, told: list[tuple[Any, ...]]) -> None:
    """What is asked for, to the engine."""
    known: dict[int, Any] = {}
    works: dict[int, Work] = {}

    def submit(number: int, client: str, texts: Sequence[Any], settings: Sequence[int], how: Sequence[bool]) -> None:
        left = len(texts)

        def tell(event: Event) -> None:
            nonlocal left
            told.append((number, *_told(event)))
            left -= type(event) is Done
            if not left:
                works.pop(number, None)

        stream, blanks, recorded = how
        pairs = [(text, known[each]) for text, each in zip(texts, settings, strict=True)]
        works[number] = Work(client, texts=pairs, tell=tell, stream=stream, blanks=blanks, recorded=recorded)
        engine.submit(works[number])

    def cancel(number: int) -> None:
        if (work := works.pop(number, None)) is not None:
            engine.cancel(work)

    def know(number: int, pickled: bytes) -> None:
        unpickler = _Unpickler(BytesIO(pickled))
        unpickler.known = known
        known[number] = unpickler.load()

    calls: dict[str, Callable[..., object]] = {"submit": submit, "cancel": cancel, "know": know, "forget": known.pop}
    while (message := loads(pipe.recv_bytes()))[0] != "stop":
        name, *what = message
        calls[name](*what)
