"""Engine process: the engine's thread in a process of its own, so that neither it nor the GPU waits for the GIL of the server.

The server's side is `EngineProcess`. One of its threads takes requests from an inbox, tokenises their texts and sends them;
another receives events and passes them on. The other side is `run_engine`: its main thread receives requests and submits them to
an `EngineThread`, which sends events back. Either side notices the other's end by the end of their pipe.
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
from .engine_thread import EngineThread, tune_interpreter
from .messages import SettingsUnpickler, pack_event, pack_stats, pickle_settings, unpack_event
from .schemas import Limits
from .work import Done, EngineStopped, Event, Inbox, Work

MOST_KNOWN: dict[type, int] = {Decoding: 256, Constraint: 32}  # that are sent once and kept; constraints may be large
SEND_BATCH = 128  # texts to tokenise before their requests are sent: enough for a batched call, few enough not to wait for them
STOP_SECONDS = 10.0  # that the process may take to end
STATE_SECONDS = 0.05  # between two reports of the engine's statistics while it works

log = logging.getLogger(__name__)

Load = Callable[[], tuple[Any, Decoding]]


class EngineProcess:
    """Starts an engine in a new process; used exactly like `EngineThread`.

    `load` is called in the new process and returns a model of transformers, and the settings for `EngineThread`. `model` is that
    model without its weights. An exception of `load` is raised here.
    """

    def __init__(self, load: Load, limits: Limits) -> None:
        self.flush: Callable[[], None] = lambda: None
        self.alive, self.in_flight, self.stats = False, 0, Stats()
        context = get_context("spawn")
        self._pipe, engine_end = context.Pipe()
        self._process = context.Process(target=run_engine, args=(engine_end, load, limits), name="engine", daemon=True)
        self._process.start()
        # Runs before multiprocessing's own exit handler, which sends SIGTERM, ignored by the process, and waits for its end.
        atexit.register(self._process.kill)
        engine_end.close()
        try:
            from ..models import transformers  # noqa: F401  # the model is one of its classes; imported while the process loads

            self.model: Any = loads(self._pipe.recv_bytes())
            if isinstance(self.model, Exception):
                raise self.model
        except EOFError:
            raise Stopped("the engine's process ended while it loaded the model; is there enough memory?") from None
        except BaseException:
            self._process.kill()
            raise
        self._read = self.model.reader()
        self._inbox = Inbox(self._refuse)
        self._works: dict[int, Work] = {}  # by number, those that were sent and are not done
        self._numbers: dict[Work, int] = {}
        self._last_number = 0
        # Settings and constraints that the process has, with their numbers, by identity; least recently used first.
        self._known: dict[type, dict[int, tuple[Any, int]]] = {Decoding: {}, Constraint: {}}
        self._sender = Thread(target=self._send_requests, name="requests", daemon=True)
        self._receiver = Thread(target=self._receive_events, name="events", daemon=True)

    def start(self) -> None:
        self.alive = True
        self._sender.start()
        self._receiver.start()

    def submit(self, work: Work) -> None:
        self._inbox.put(work)

    def cancel(self, work: Work) -> None:
        """Drop the texts of a request that are not done."""
        self._inbox.cancel(work)

    def stop(self) -> None:
        """End the process; requests that are not done get `EngineStopped`."""
        self._inbox.put(None)
        self._process.join(STOP_SECONDS)
        self._process.kill()
        atexit.unregister(self._process.kill)
        self._sender.join()
        self._receiver.join()

    # -- the sender's thread -----------------------------------------------------------------------------------------------

    def _send_requests(self) -> None:
        batch: list[Work | None] = []
        try:
            while None not in (batch := self._next_batch()):
                new = [work for work in batch if work is not None and not work.cancelled]
                for work, texts in zip(new, self._tokenised(new), strict=True):
                    self._send_request(work, texts)
                for each in batch:
                    if each is not None and each.cancelled:
                        self._send_cancel(each)
            self._send("stop")
        except BaseException:
            self._process.kill()  # it would never hear of another request
            raise
        finally:
            self.alive = False
            for each in batch:
                if each is not None and not each.cancelled and each not in self._numbers:
                    self._refuse(each)
            self._inbox.close()

    def _next_batch(self) -> list[Work | None]:
        """The requests to send next: one if the engine has nothing to do, else as many as are worth tokenising together."""
        batch = [self._inbox.get()]
        texts_left = SEND_BATCH if self._works else 1
        while (last := batch[-1]) is not None and (texts_left := texts_left - len(last.texts)) > 0 and not self._inbox.empty():
            batch.append(self._inbox.get())  # no other thread takes from it
        return batch

    def _tokenised(self, works: Sequence[Work]) -> Iterator[list[Any]]:
        """For each request its texts, as tuples of token ids. Texts that the engine needs as text (to record their search, or
        because they may be blank) and texts that are no strings stay as they are."""
        texts = [text for work in works for text, _ in work.texts]
        as_text = [work.recorded or (isinstance(text, str) and not text.strip()) for work in works for text, _ in work.texts]
        try:
            encoded = self._read.tokenised([None if keep else text for text, keep in zip(texts, as_text, strict=True)])
        except Exception:  # raised by the tokenizer's own code: the engine reads them one by one, and finds the text at fault
            encoded = texts
        # The engine takes a tuple for the tokens of a text. Token ids that a request gave go as a list, and are checked there.
        originals = ([*text] if type(text) is tuple else text for text in texts)
        ready = (tuple(ids) if type(ids) is TextIds else text for text, ids in zip(originals, encoded, strict=True))
        return ([*islice(ready, len(work.texts))] for work in works)

    def _send_request(self, work: Work, texts: list[Any]) -> None:
        self._last_number = number = self._last_number + 1
        try:
            settings = [self._number_of(decoding) for _, decoding in work.texts]
        except Exception as error:  # raised by pickle: settings may hold a user's own function
            log.warning("a request could not be sent to the engine: %s", error, exc_info=True)
            self._refuse(work)
            return
        self._works[number], self._numbers[work] = work, number  # before it is sent: events may come at once
        options = {"stream": work.stream, "blanks": work.blanks, "recorded": work.recorded}
        if not self._send("submit", number, work.client, texts, settings, options):
            self._receiver.join()  # it ends because the process has ended, and refuses the requests that it finds in `_works`
            if self._works.pop(number, None) is not None:
                self._refuse(work)
        for kind, known in self._known.items():
            while len(known) > MOST_KNOWN[kind]:
                _, oldest = known.pop(next(iter(known)))
                self._send("forget", oldest)

    def _refuse(self, work: Work) -> None:
        work.emit(EngineStopped("the engine cannot take this request"))
        self.flush()

    def _send_cancel(self, work: Work) -> None:
        number = self._numbers.pop(work, None)
        if number is not None:
            self._works.pop(number, None)
            self._send("cancel", number)

    def _number_of(self, value: Any) -> int:
        """The number of settings or a constraint, which are sent first if the process does not have them."""
        known = self._known[Constraint if isinstance(value, Constraint) else Decoding]
        entry = known.pop(id(value), None)
        if entry is None:
            self._last_number = number = self._last_number + 1
            entry = value, number
            self._send("know", number, pickle_settings(value, self._number_of))
        known[id(value)] = entry
        return entry[1]

    def _send(self, *message: Any) -> bool:
        """Send a message; False if the process has ended."""
        try:
            self._pipe.send_bytes(dumps(message))
        except OSError:
            return False
        return True

    # -- the receiver's thread ---------------------------------------------------------------------------------------------

    def _receive_events(self) -> None:
        try:
            while True:
                events, state = loads(self._pipe.recv_bytes())
                if state is not None:
                    self.in_flight, self.stats = state[0], Stats(*state[1])
                self._emit(events)
                self.flush()
        except (EOFError, OSError):
            pass
        finally:
            self.alive = False  # before the requests get their events, so that no handler sees it alive after that
            self._emit([(number, True, "stopped", "the server is stopping") for number in [*self._works]])
            self.flush()

    def _emit(self, events: Sequence[tuple[Any, ...]]) -> None:
        """Pass on events, each as (number of the request, whether it is its last, packed event), unless they were cancelled."""
        for number, last, *packed in events:
            work = self._works.pop(number, None) if last else self._works.get(number)
            if work is not None and last:
                self._numbers.pop(work, None)
            if work is not None and not work.cancelled:
                work.emit(unpack_event(*packed))


# -- the engine's process ------------------------------------------------------------------------------------------------------


def run_engine(pipe: Connection, load: Load, limits: Limits) -> None:
    """The engine's process. Returns when told to stop; exits with code 1 if the server ends or the engine's thread fails."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a signal to the process group ends the loading, without a traceback
    try:
        model, decoding = load()
        engine = EngineThread(model, limits, decoding)
        first: Any = model.without_weights()
    except Exception as error:
        first = error if isinstance(error, (Unusable, Stopped)) else Stopped(f"the model cannot be served: {reason(error)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C goes to both processes: from now on the server decides when to stop
    try:
        pipe.send_bytes(dumps(first))
    except OSError:
        os._exit(1)
    if isinstance(first, Exception):
        return
    stopping = Flag()
    events: list[tuple[Any, ...]] = []
    last_state = 0.0

    def flush() -> None:
        nonlocal last_state
        state = None
        if not engine.busy or monotonic() - last_state > STATE_SECONDS:
            state, last_state = (engine.in_flight, pack_stats(engine.stats)), monotonic()
        if events or state:
            message = dumps((events, state))
            events.clear()
            try:
                pipe.send_bytes(message)
            except OSError:
                os._exit(1)

    engine.flush = flush
    tune_interpreter()
    engine.start()
    Thread(target=_exit_with, args=(engine, stopping), daemon=True).start()
    try:
        _receive_requests(pipe, engine, events)
    except (EOFError, OSError):
        os._exit(1)  # without waiting: the engine may be in the middle of a forward pass that is of no use any more
    stopping.set()
    engine.stop()


def _exit_with(engine: EngineThread, stopping: Flag) -> None:
    """End the process when the engine's thread has failed (it has logged why), so that the server notices."""
    engine.thread.join()
    if not stopping.is_set():
        os._exit(1)


def _receive_requests(pipe: Connection, engine: EngineThread, events: list[tuple[Any, ...]]) -> None:
    """Carry out the server's messages until it says "stop". What the engine emits is appended to `events`, packed."""
    known: dict[int, Any] = {}
    works: dict[int, Work] = {}

    def submit(number: int, client: str, texts: Sequence[Any], settings: Sequence[int], options: Any) -> None:
        left = len(texts)

        def emit(event: Event) -> None:
            nonlocal left
            left -= type(event) is Done
            last = not left or type(event) is EngineStopped
            events.append((number, last, *pack_event(event)))
            if last:
                works.pop(number, None)

        inputs = [TextIds(text) if type(text) is tuple else text for text in texts]
        pairs = [*zip(inputs, map(known.__getitem__, settings), strict=True)]
        works[number] = Work(client, texts=pairs, emit=emit, **options)
        engine.submit(works[number])

    def cancel(number: int) -> None:
        if (work := works.pop(number, None)) is not None:
            engine.cancel(work)

    def know(number: int, pickled: bytes) -> None:
        known[number] = SettingsUnpickler(pickled, known).load()

    calls: dict[str, Callable[..., object]] = {"submit": submit, "cancel": cancel, "know": know, "forget": known.pop}
    while (message := loads(pipe.recv_bytes()))[0] != "stop":
        name, *arguments = message
        calls[name](*arguments)
