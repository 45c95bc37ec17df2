"""Engine process: the engine's thread in a process of its own, so that neither it nor a GPU waits for those who answer requests.

Here texts are read and written, there tokens are searched for. A thread here sends requests, another turns what comes back into
events; there the process's first thread hands requests to the engine's.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pickle import dumps, loads
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any

from ..engine import Stats, write_all
from ..models import Source
from ..search import Answer, Result
from ..settings import Decoding
from .engine_thread import EngineThread, take_turns
from .messages import SettingsPickler, SettingsUnpickler, of_event, of_source, of_stats, to_event, to_source
from .schemas import Limits
from .work import Certified, Done, EngineStopped, Event, TextReader, Work

KNOWN = 256  # settings and constraints that have a number
PATIENCE = 10.0  # seconds that the process may take to end
NEWS = 0.05  # seconds after which the state of the engine is told although nothing has happened

log = logging.getLogger(__name__)

Load = Callable[[], tuple[Any, Decoding]]


@dataclass(eq=False)
class Sent:
    """A request whose texts the process was sent, those that need a search: their indices, and how many are not done."""

    work: Work
    indices: list[int]
    left: int

    def event(self, *told: Any) -> Event:
        """What was told of it there, as it is told here."""
        event = to_event(*told)
        if isinstance(event, EngineStopped):
            return event
        index = self.indices[event.index]
        return (
            event._replace(index=index)
            if isinstance(event, Certified)
            else event._replace(index=index, read=self.work.size(index))
        )

    def answers(self, event: Event) -> list[tuple[Source, Decoding, Answer]]:
        """Those that an event tells of, to be written."""
        if isinstance(event, EngineStopped):
            return []
        found = [event.answer] if isinstance(event, Certified) else [*event.result.hypotheses, event.result.partial]
        source, (_, decoding) = self.work.sources[event.index], self.work.texts[event.index]
        return [(source, decoding, answer) for answer in found if answer is not None]  # type: ignore[misc]


class EngineProcess:
    """As `EngineThread`, to those who use it. `load` is called in the new process and returns a model of transformers, and
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
            self.model: Any = loads(self._pipe.recv_bytes())
        except EOFError:
            self._process.join()
            raise SystemExit(self._process.exitcode or 1) from None
        self._read = TextReader(self.model)
        self._tokenizer = Lock()  # not every one may be asked by two threads at a time
        self._outbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._sent: dict[int, Sent] = {}
        self._numbers: dict[Work, int] = {}
        self._next = 0
        self._known: dict[int, tuple[Any, int]] = {}  # by identity, the latest last
        self._sending = Thread(target=self._send_all, name="requests", daemon=True)
        self._listening = Thread(target=self._listen, name="events", daemon=True)

    def start(self) -> None:
        self._sending.start()
        self._listening.start()

    @property
    def alive(self) -> bool:
        return self._listening.is_alive()

    def submit(self, work: Work) -> None:
        self._outbox.put(partial(self._submit, work))

    def cancel(self, work: Work) -> None:
        """Nobody waits for it any more."""
        work.cancelled = True
        self._outbox.put(partial(self._cancel, work))

    def stop(self) -> None:
        """End the process; what is not done fails."""
        self._outbox.put(None)
        self._process.join(PATIENCE)
        self._process.kill()
        self._listening.join()

    # -- requests ----------------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while (call := self._outbox.get()) is not None:
            call()
        self._send("stop")

    def _submit(self, work: Work) -> None:
        if work.cancelled:
            return
        with self._tokenizer:
            self._read([(work, range(len(work.texts)))])
        found = [(index, source) for index, source in work.sources.items() if isinstance(source, Source)]
        for index, result in work.sources.items():
            if isinstance(result, Result):
                work.tell(Done(index, result))
        self.flush()
        if not found:
            return
        try:
            settings = [self._number(work.texts[index][1]) for index, _ in found]
        except Exception as error:  # of what pickles a constraint of somebody's own
            log.warning("a request could not be sent to the engine: %s", error, exc_info=True)
            self._fail(work)
            return
        self._next = number = self._next + 1
        self._sent[number] = Sent(work, [index for index, _ in found], len(found))
        self._numbers[work] = number
        texts = [work.texts[index][0] if work.recorded else None for index, _ in found]
        sources = [of_source(source) for _, source in found]
        if not self._send("submit", number, work.client, texts, sources, settings, work.stream, work.recorded):
            self._listening.join()  # it ends as the process has, and may have done so before it could know of this one
            self._fail(work)
        while len(self._known) > KNOWN:
            _, oldest = self._known.pop(next(iter(self._known)))
            self._send("forget", oldest)

    def _fail(self, work: Work) -> None:
        work.tell(EngineStopped("the engine cannot take this request"))
        self.flush()

    def _cancel(self, work: Work) -> None:
        number = self._numbers.pop(work, None)
        if number is not None:
            self._sent.pop(number, None)
            self._send("cancel", number)

    def _number(self, thing: Any) -> int:
        """Of settings or a constraint, sent if this is new."""
        found = self._known.pop(id(thing), None)
        if found is None:
            self._next = number = self._next + 1
            found = thing, number
            self._send("know", number, SettingsPickler.dumps(thing, self._number))
        self._known[id(thing)] = found
        return found[1]

    def _send(self, *message: Any) -> bool:
        """Whether it was sent: not, if the process has ended."""
        try:
            self._pipe.send_bytes(dumps(message))
        except OSError:
            return False
        return True

    # -- events ------------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                told, self.in_flight, costs = loads(self._pipe.recv_bytes())
                self.stats = Stats(*costs)
                self._tell(told)
                self.flush()
        except (EOFError, OSError):
            pass
        finally:
            for sent in [*self._sent.values()]:
                sent.work.tell(EngineStopped("the server is stopping"))
            self.flush()

    def _tell(self, told: Sequence[tuple[Any, ...]]) -> None:
        """Of those whose requests somebody still waits for, each with its texts."""
        wanted = [(sent, what) for number, *what in told if (sent := self._sent.get(number)) is not None]
        events = [(sent, sent.event(*what)) for sent, what in wanted if not sent.work.cancelled]
        try:
            self._write(events)
        except Exception:  # who is at fault is seen when each is written alone
            events = [(sent, self._written_alone(sent, event)) for sent, event in events]
        for sent, event in events:
            sent.left -= type(event) is Done
            if not sent.left and (number := self._numbers.pop(sent.work, None)) is not None:
                self._sent.pop(number, None)
            sent.work.tell(event)

    def _write(self, events: Sequence[tuple[Sent, Event]]) -> None:
        answers = [each for sent, event in events for each in sent.answers(event)]
        with self._tokenizer:
            write_all(self.model, answers)

    def _written_alone(self, sent: Sent, event: Event) -> Event:
        try:
            self._write([(sent, event)])
        except Exception as error:  # of the tokenizer's own code
            log.warning("an output could not be written: %s", error, exc_info=True)
            message = f"the output cannot be written: {type(error).__name__}"
            return event._replace(result=Result(status="error", message=message)) if isinstance(event, Done) else event
        return event


# -- there -----------------------------------------------------------------------------------------------------------------------


def run_engine(pipe: Connection, load: Load, limits: Limits, row_budget: int | None) -> None:
    """What the new process does, until it is told to stop or nobody is there to tell it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to both: who listens says when to stop
    model, decoding = load()
    engine = EngineThread(model, limits, row_budget=row_budget, draft=decoding.draft)
    pipe.send_bytes(dumps(model.without_weights()))
    told: list[tuple[Any, ...]] = []
    last = 0.0

    def flush() -> None:
        nonlocal last
        if told or not engine.busy or monotonic() - last > NEWS:
            last = monotonic()
            message = dumps((told, engine.in_flight, of_stats(engine.stats)))
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

    def submit(number: int, client: str, texts: Any, sources: Any, settings: Any, stream: bool, recorded: bool) -> None:
        left = len(texts)

        def tell(event: Event) -> None:
            nonlocal left
            told.append((number, *of_event(event)))
            left -= type(event) is Done
            if not left:
                works.pop(number, None)

        pairs = [(text, known[each]) for text, each in zip(texts, settings, strict=True)]
        work = works[number] = Work(client, texts=pairs, tell=tell, stream=stream, recorded=recorded, written=recorded)
        work.sources = dict(enumerate(map(to_source, sources)))
        engine.submit(work)

    def cancel(number: int) -> None:
        if (work := works.pop(number, None)) is not None:
            engine.cancel(work)

    def know(number: int, pickled: bytes) -> None:
        known[number] = SettingsUnpickler.loads(pickled, known)

    calls: dict[str, Callable[..., object]] = {"submit": submit, "cancel": cancel, "know": know, "forget": known.pop}
    while (message := loads(pipe.recv_bytes()))[0] != "stop":
        name, *what = message
        calls[name](*what)
