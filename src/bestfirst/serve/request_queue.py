"""Request queue: admission of requests, and the way of the engine's events to the handlers that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from math import ceil
from time import monotonic
from typing import Any

from ..search import Result
from ..settings import Decoding
from .engine_process import EngineProcess
from .engine_thread import EngineThread
from .schemas import Limits
from .work import Certified, Done, EngineStopped, Event, Work

MOST_UNREAD = 2048  # events of a stream that its client has not read; a client that is further behind is given up

Texts = Sequence[tuple[Any, Decoding]]
Write = Callable[[Result], Any]


class TooMuch(Exception):
    """The request asks for more than any request may."""

    status_code = 422


class QueueFull(Exception):
    """There are too many texts in the queue now; there may be room in about `retry_after` seconds."""

    status_code = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after)}


class DeadlinePassed(Exception):
    """The request took longer than the deadline, or its client does not read the stream."""

    status_code = 504


class ClientLeft(Exception):
    """The client has disconnected."""

    status_code = 499  # nginx's code; only the metrics see it


class RequestQueue:
    """Accepts requests for the engine. At most `limits.max_queue` texts are accepted and not done at a time. Large requests
    (`limits.few`) take at most half of these places, except that one is accepted whenever no other is in the queue.

    All methods run in the event loop's thread. `on_results` is called once a step with the results of that step.
    """

    def __init__(self, engine: EngineThread | EngineProcess, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        self.queued = 0
        self.queued_by_large = 0
        self._done_times: deque[float] = deque(maxlen=256)  # of the latest results
        self.on_results: Callable[[Sequence[tuple[Result, Decoding]]], None] = lambda results: None
        self.open_submissions: dict[Submission, None] = {}

    def open(self) -> None:
        """Start the engine; its events go to the running event loop."""
        loop = asyncio.get_running_loop()

        def flush() -> None:
            if any(each.emitted for each in [*self.open_submissions]):  # a copy: the event loop adds and removes some meanwhile
                loop.call_soon_threadsafe(self._deliver)

        self.engine.flush = flush
        self.engine.start()

    def check_engine(self) -> None:
        """Raise `EngineStopped` if the engine has stopped."""
        if not self.engine.alive:
            raise EngineStopped("the engine has stopped; start the server again")

    def submit(self, texts: Texts, *, client: str, write: Write | None = None, **how: Any) -> Submission:
        """Accept a request, or raise `TooMuch` or `QueueFull`. `write` turns each result, as soon as it is there, into what
        `Submission.results` returns for that text. `how`: `stream`, `blanks` and `recorded` of `Work`."""
        self.check_engine()
        self._check(texts)
        submission = Submission(self, len(texts), write)
        submission.work = Work(client, texts=texts, emit=submission.emitted.append, **how)
        self.engine.submit(submission.work)
        return submission

    def _deliver(self) -> None:
        """Pass emitted events on to their submissions, with as little work as possible: the engine's thread waits for the GIL."""
        done: list[tuple[Result, Decoding]] = []
        for submission in [each for each in self.open_submissions if each.emitted]:
            done += submission.receive()
        if done:
            self._done_times.extend([monotonic()] * len(done))
            self.on_results(done)

    def _check(self, texts: Texts) -> None:
        limits, count = self.limits, len(texts)
        rows = limits.rows(texts)
        if rows > limits.max_rows:
            product = f"texts, beam and max_length make {rows:,} hypotheses at worst, a request may have {limits.max_rows:,}"
            raise TooMuch(f"{product}; send fewer texts at a time, or ask for a smaller beam or max_length")
        if self.queued + count > limits.max_queue:
            places = f"{self.queued} of {limits.max_queue} places are taken, {count} needed"
            raise QueueFull(f"the queue is full: {places}; try again later", self._seconds_for(self.queued))
        large = self.queued_by_large
        if count > limits.few and large and large + count > limits.max_queue // 2:
            places = f"requests of more than {limits.few} texts have {large} of {limits.max_queue // 2} places, {count} needed"
            message = f"the queue is full: {places}; try again later, or send fewer at a time"
            raise QueueFull(message, self._seconds_for(large))

    def _seconds_for(self, texts: int) -> int:
        """How long so many texts will take at the recent throughput: from 1 to 60 seconds."""
        times = self._done_times
        if len(times) < 2:
            return 1
        return min(60, max(1, ceil(texts * (times[-1] - times[0]) / (len(times) - 1))))


class Submission:
    """An accepted request, for the handler that waits for its results (`results`) or streams its events (`events`).

    It releases a place in the queue for each text that the engine is done with, whether or not the client reads; those that are
    left at the deadline, or when it is closed.
    """

    work: Work

    def __init__(self, queue: RequestQueue, texts: int, write: Write | None = None) -> None:
        self.emitted: list[Event] = []  # by the engine, in its thread; not received yet
        self._queue = queue
        self._texts = self._left = texts
        self._large = texts > queue.limits.few
        self._write = write
        self._results: list[Any] = [None] * texts  # unless it is a stream: by index, `Done` or what `write` made of it
        self._events: deque[Certified | Done | Exception] = deque()  # of a stream, those not read; the error, if any, last
        self._wake_up = asyncio.Event()  # for the handler
        self._timer = asyncio.get_running_loop().call_later(queue.limits.deadline, self._expire)
        self._release(-texts)
        queue.open_submissions[self] = None

    # -- from the engine ---------------------------------------------------------------------------------------------------

    def receive(self) -> list[tuple[Result, Decoding]]:
        """Take emitted events; returns the results among them, with their settings. Gives up a client that does not read."""
        stream, texts, write = self.work.stream, self.work.texts, self._write
        if stream and len(self._events) > MOST_UNREAD:
            self._end(DeadlinePassed(f"{MOST_UNREAD:,} lines of the stream were waiting to be read; read them as they come"))
            return []
        events = self.emitted[:]
        del self.emitted[: len(events)]  # not `clear`: the engine may emit more meanwhile
        done = [event for event in events if type(event) is Done]
        if stream:
            self._events.extend(events)
        else:
            try:
                for event in done:
                    self._results[event.index] = event if write is None else write(event.result)
            except Exception as error:  # the model gave text that is not Unicode, say: an error of this request alone
                self._end(error)
                return []
            self._events.extend(events[len(done) :])  # none, or `EngineStopped`, which comes last
        self._left -= len(done)
        self._release(len(done))
        if not self._left or isinstance(events[-1], EngineStopped):
            self.close()
        if stream or not self._left:  # `results` waits until all texts are done
            self._wake_up.set()
        return [(each.result, texts[each.index][1]) for each in done]

    def _expire(self) -> None:
        limit = self._queue.limits.deadline
        within = f"{self._texts - self._left} of {self._texts} texts were done within {limit:g} seconds"
        self._end(DeadlinePassed(f"{within}; send fewer at a time, or ask for them to be streamed"))

    def _end(self, error: Exception) -> None:
        self.close()
        self._events.append(error)
        self._wake_up.set()

    def close(self) -> None:
        """Cancel the texts that are not done. Closing twice does no harm."""
        self._timer.cancel()
        self._queue.open_submissions.pop(self, None)
        if self._left:
            self._queue.engine.cancel(self.work)
            self._release(self._left)
            self._left = 0

    def _release(self, places: int) -> None:
        self._queue.queued -= places
        if self._large:
            self._queue.queued_by_large -= places

    # -- for the handler ---------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Certified | Done]:
        """The events of a stream as they come, until all texts are done. Raises `DeadlinePassed` or `EngineStopped`."""
        done = 0
        while done < self._texts:
            if not self._events:
                self._wake_up.clear()
                await self._wake_up.wait()
            event = self._events.popleft()
            if isinstance(event, Exception):
                raise event
            done += isinstance(event, Done)
            yield event

    async def results(self, disconnection: Awaitable[None]) -> list[Any]:
        """For each text, in order, its `Done`, or what `write` made of its result. Raises `DeadlinePassed`, `EngineStopped`, or
        `ClientLeft` if `disconnection` returns first."""
        leaving = asyncio.ensure_future(disconnection)
        leaving.add_done_callback(lambda _: self._wake_up.set())
        try:
            while self._left:
                if leaving.done():
                    raise ClientLeft
                self._wake_up.clear()
                await self._wake_up.wait()
            if self._events and isinstance(self._events[-1], Exception):
                raise self._events[-1]
            return self._results
        finally:
            leaving.cancel()
            self.close()
