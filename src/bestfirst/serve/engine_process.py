"""Engine process: the engine's thread in a process of its own, so that neither it nor a GPU waits for those who answer requests.

Here texts are tokenised. A thread does that and sends requests, another turns what comes back into events; there the process's
first thread hands requests to the engine's.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pickle import dumps, loads
from threading import Event as Flag
from threading import Thread
from time import monotonic
from typing import Any

from ..constraints import Constraint
from ..engine import Stats
from ..errors import Stopped, Unusable, reason
from ..models.reader import TextIds
from ..settings import Decoding
from .engine_thread import TOGETHER, EngineThread, take_turns
from .messages import SettingsPickler, SettingsUnpickler, of_event, of_stats, to_event
from .schemas import Limits
from .work import Done, EngineStopped, Event, Inbox, Work

KNOWN: dict[type, int] = {Decoding: 256, Constraint: 32}  # settings and constraints that have a number
PATIENCE = 10.0  # seconds that the process may take to end
NEWS = 0.05  # seconds after which the state of the engine is told, where it has work

log = logging.getLogger(__name__)

Load = Callable[[], tuple[Any, Decoding]]


class EngineProcess:
    """As `EngineThread`, to those who use it. `load` is called in the new process and returns a model of transformers, and
    settings, of which the drafter is used; `model` is the same without weights. What is raised there is raised here.
    """

    def __init__(self, load: Load, limits: Limits, *, row_budget: int | None = None) -> None:
        self.flush: Callable[[], None] = lambda: None
        self.alive, self.in_flight, self.stats = False, 0, Stats()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_engine, args=(theirs, load, limits, row_budget), name="engine", daemon=True)
        self._process.start()
        atexit.register(self._process.kill)  # before multiprocessing asks it to end, which it does not listen to, and waits
        theirs.close()
        try:
            from ..models import transformers  # noqa: F401  # meanwhile: the model is one of its classes

            self.model: Any = loads(self._pipe.recv_bytes())
            if isinstance(self.model, Exception):
                raise self.model
        except EOFError:
            raise Stopped("the engine's process ended while it loaded the model; is there enough memory?") from None
        except BaseException:
            self._process.kill()
            raise
        self._read = self.model.reader()
        self._inbox = Inbox(self._fail)
        self._works: dict[int, Work] = {}  # that are not over, by their number
        self._numbers: dict[Work, int] = {}
        self._next = 0
        # What the process knows by its number, by identity, the latest last. Of constraints fewer, for they may be large.
        self._known: dict[type, dict[int, tuple[Any, int]]] = {Decoding: {}, Constraint: {}}
        self._sending = Thread(target=self._send_all, name="requests", daemon=True)
        self._listening = Thread(target=self._listen, name="events", daemon=True)

    def start(self) -> None:
        self.alive = True
        self._sending.start()
        self._listening.start()

    def submit(self, work: Work) -> None:
        self._inbox.put(work)

    def cancel(self, work: Work) -> None:
        """Nobody waits for it any more."""
        self._inbox.cancel(work)

    def stop(self) -> None:
        """End the process; what is not done fails."""
        self._inbox.put(None)
        self._process.join(PATIENCE)
        self._process.kill()
        atexit.unregister(self._process.kill)
        self._sending.join()
        self._listening.join()

    # -- requests ----------------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        works: list[Work | None] = []
        try:
            while None not in (works := self._waiting()):
                new = [work for work in works if work is not None and not work.cancelled]
                for work, texts in zip(new, self._tokenised(new), strict=True):
                    self._submit(work, texts)
                for each in works:
                    if each is not None and each.cancelled:
                        self._give_up(each)
            self._send("stop")
        except BaseException:
            self._process.kill()  # nobody would send it anything any more
            raise
        finally:
            self.alive = False
            for each in works:
                if each is not None and not each.cancelled and each not in self._numbers:
                    self._fail(each)
            self._inbox.close()

    def _waiting(self) -> list[Work | None]:
        """What waits to be sent: one request if the engine waits for it, else as many as are worth tokenising at a time."""
        found = [self._inbox.get()]
        left = TOGETHER if self._works else 1
        while (last := found[-1]) is not None and (left := left - len(last.texts)) > 0 and not self._inbox.empty():
            found.append(self._inbox.get())  # nobody else takes from it
        return found

    def _tokenised(self, works: Sequence[Work]) -> Iterator[list[Any]]:
        """The texts of each, as tuples of tokens where that is all that is needed of them."""
        texts = [text for work in works for text, _ in work.texts]
        needed = [work.recorded or (isinstance(text, str) and not text.strip()) for work in works for text, _ in work.texts]
        try:
            found = self._read.tokenised([None if whole else text for text, whole in zip(texts, needed, strict=True)])
        except Exception:  # of the tokenizer's own code: the engine reads them, and says whose text it was
            found = texts
        plain = ([*text] if type(text) is tuple else text for text in texts)
        each = (tuple(ids) if type(ids) is TextIds else text for text, ids in zip(plain, found, strict=True))
        return ([*islice(each, len(work.texts))] for work in works)

    def _submit(self, work: Work, texts: list[Any]) -> None:
        self._next = number = self._next + 1
        try:
            settings = [self._number(decoding) for _, decoding in work.texts]
        except Exception as error:  # of what pickles somebody's own function
            log.warning("a request could not be sent to the engine: %s", error, exc_info=True)
            self._fail(work)
            return
        self._works[number], self._numbers[work] = work, number
        how = {"stream": work.stream, "blanks": work.blanks, "recorded": work.recorded}
        if not self._send("submit", number, work.client, texts, settings, how):
            self._listening.join()  # it ends as the process has, and tells those requests that it knows
            if self._works.pop(number, None) is not None:
                self._fail(work)
        for kind, known in self._known.items():
            while len(known) > KNOWN[kind]:
                _, oldest = known.pop(next(iter(known)))
                self._send("forget", oldest)

    def _fail(self, work: Work) -> None:
        work.tell(EngineStopped("the engine cannot take this request"))
        self.flush()

    def _give_up(self, work: Work) -> None:
        number = self._numbers.pop(work, None)
        if number is not None:
            self._works.pop(number, None)
            self._send("cancel", number)

    def _number(self, thing: Any) -> int:
        """Of settings or a constraint, sent if this is new."""
        known = self._known[Constraint if isinstance(thing, Constraint) else Decoding]
        found = known.pop(id(thing), None)
        if found is None:
            self._next = number = self._next + 1
            found = thing, number
            self._send("know", number, SettingsPickler.dumps(thing, self._number))
        known[id(thing)] = found
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
                told, state = loads(self._pipe.recv_bytes())
                if state is not None:
                    self.in_flight, self.stats = state[0], Stats(*state[1])
                self._tell(told)
                self.flush()
        except (EOFError, OSError):
            pass
        finally:
            self.alive = False  # before anybody hears of it
            self._tell([(number, True, "stopped", "the server is stopping") for number in [*self._works]])
            self.flush()

    def _tell(self, told: Sequence[tuple[Any, ...]]) -> None:
        """Those who still wait for it."""
        for number, over, *what in told:
            work = self._works.pop(number, None) if over else self._works.get(number)
            if work is not None and over:
                self._numbers.pop(work, None)
            if work is not None and not work.cancelled:
                work.tell(to_event(*what))


# -- there -----------------------------------------------------------------------------------------------------------------------


def run_engine(pipe: Connection, load: Load, limits: Limits, row_budget: int | None) -> None:
    """What the new process does, until it is told to stop or nobody is there to tell it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # while it loads, whoever stops the server stops it, without a word
    try:
        model, decoding = load()
        engine = EngineThread(model, limits, row_budget=row_budget, draft=decoding.draft)
        front: Any = model.without_weights()
    except Exception as error:
        front = error if isinstance(error, (Unusable, Stopped)) else Stopped(f"the model cannot be served: {reason(error)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are sent to both: from now on who listens says when to stop
    try:
        pipe.send_bytes(dumps(front))
    except OSError:
        os._exit(1)
    if isinstance(front, Exception):
        return
    stopping = Flag()
    told: list[tuple[Any, ...]] = []
    last = 0.0

    def flush() -> None:
        nonlocal last
        state = None
        if not engine.busy or monotonic() - last > NEWS:
            state, last = (engine.in_flight, of_stats(engine.stats)), monotonic()
        if told or state:
            message = dumps((told, state))
            told.clear()
            try:
                pipe.send_bytes(message)
            except OSError:
                os._exit(1)

    engine.flush = flush
    take_turns()
    engine.start()
    Thread(target=_end_with, args=(engine, stopping), daemon=True).start()
    try:
        _hand_over(pipe, engine, told)
    except (EOFError, OSError):
        os._exit(1)  # the engine may be in the middle of a forward pass, and nobody waits for it
    stopping.set()
    engine.stop()


def _end_with(engine: EngineThread, stopping: Flag) -> None:
    """An engine whose thread has failed, which has then said why, ends its process: so the server hears of it."""
    engine.join()
    if not stopping.is_set():
        os._exit(1)


def _hand_over(pipe: Connection, engine: EngineThread, told: list[tuple[Any, ...]]) -> None:
    """What is asked for, to the engine."""
    known: dict[int, Any] = {}
    works: dict[int, Work] = {}

    def submit(number: int, client: str, texts: Sequence[Any], settings: Sequence[int], how: Any) -> None:
        left = len(texts)

        def tell(event: Event) -> None:
            nonlocal left
            left -= type(event) is Done
            over = not left or type(event) is EngineStopped
            told.append((number, over, *of_event(event)))
            if over:
                works.pop(number, None)

        read = [TextIds(text) if type(text) is tuple else text for text in texts]
        pairs = [*zip(read, map(known.__getitem__, settings), strict=True)]
        works[number] = Work(client, texts=pairs, tell=tell, **how)
        engine.submit(works[number])

    def cancel(number: int) -> None:
        if (work := works.pop(number, None)) is not None:
            engine.cancel(work)

    def know(number: int, pickled: bytes) -> None:
        known[number] = SettingsUnpickler.loads(pickled, known)

    calls: dict[str, Callable[..., object]] = {"submit": submit, "cancel": cancel, "know": know, "forget": known.pop}
    while (message := loads(pipe.recv_bytes()))[0] != "stop":
        name, *what = message
        calls[name](*what)
