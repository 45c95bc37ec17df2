"""Request queue: what is accepted and what is refused, and how events of the engine reach the request that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any

from ..search import Result
from ..settings import Decoding
from .engine_thread import Certified, Done, EngineStopped, EngineThread, Event, Work
from .schemas import Limits

MOST_UNREAD = 2048  # events of a stream that wait for its client; one that is further behind does not read

Texts = Sequence[tuple[Any, Decoding]]


class TooMuch(Exception):
    """No request may ask for so much."""

    status_code = 422


class QueueFull(Exception):
    """`retry_after`: when it will not be, as far as can be foreseen, in seconds."""

    status_code = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(retry_after)}


class DeadlinePassed(Exception):
    """The request took too long."""

    status_code = 504


class ClientLeft(Exception):
    """Nobody waits for the response."""

    status_code = 499  # nginx's code; only the metrics see it


class RequestQueue:
    """Lives in the event loop's thread. At most `limits.max_queue` texts are accepted and not done at a time, and the larger
    requests have half of that.

    `on_results` is called with what was found, a step at a time.
    """

    def __init__(self, engine: EngineThread, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        self.queued = 0
        self.queued_by_large = 0
        self._done: deque[float] = deque(maxlen=256)  # when texts were, lately
        self.on_results: Callable[[Sequence[tuple[Result, Decoding]]], None] = lambda results: None
        self._outbox: dict[Submission, list[Event]] = {}

    def open(self) -> None:
        """Begin, in the event loop that is running."""
        loop = asyncio.get_running_loop()

        def flush() -> None:
            if self._outbox:
                told, self._outbox = self._outbox, {}
                loop.call_soon_threadsafe(self._deliver, told)

        self.engine.flush = flush
        self.engine.start()

    def check_engine(self) -> None:
        """Raise `EngineStopped` if nothing can be decoded."""
        if not self.engine.alive:
            raise EngineStopped("the engine has stopped; start the server again")

    def submit(self, texts: Texts, *, client: str, **how: Any) -> Submission:
        """Accept a request, or raise `TooMuch` or `QueueFull`. `how`: `stream`, `blanks` and `recorded` of `Work`."""
        self.check_engine()
        self._check(texts)
        submission = Submission(self, len(texts))
        tell = lambda event: self._outbox.setdefault(submission, []).append(event)  # noqa: E731
        submission.work = Work(client, texts=texts, tell=tell, **how)
        self.engine.submit(submission.work)
        return submission

    def _deliver(self, told: Mapping[Submission, Sequence[Event]]) -> None:
        """Hand out the events of a step. As little as can be is done for each text: the engine waits for this thread's lock."""
        done: list[tuple[Result, Decoding]] = []
        for submission, events in told.items():
            done += submission.receive(events)
        if done:
            self._done.extend([monotonic()] * len(done))
            self.on_results(done)

    def _check(self, texts: Texts) -> None:
        limits, count = self.limits, len(texts)
        rows = sum(limits.rows(text, decoding) for text, decoding in texts)
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
        """How long so many will take, at the speed of late: from 1 to 60 seconds."""
        seen = len(self._done) - 1
        if seen < 1:
            return 1
        return min(60, max(1, ceil(texts * (self._done[-1] - self._done[0]) / seen)))


class Submission:
    """An accepted request, for the handler that waits for it.

    Its places in the queue are given back as the engine is done with its texts, whether or not anybody reads the results; at the
    latest at the deadline, and by `close`.
    """

    work: Work

    def __init__(self, queue: RequestQueue, texts: int) -> None:
        self._queue = queue
        self._texts = self._left = texts
        self._large = texts > queue.limits.few
        self._events: deque[Certified | Done | Exception] = deque()  # that nobody has read
        self._news = asyncio.Event()  # set when there are some that are waited for
        self._timer = asyncio.get_running_loop().call_later(queue.limits.deadline, self._expire)
        self._give_back(-texts)

    # -- from the engine ---------------------------------------------------------------------------------------------------

    def receive(self, events: Sequence[Event]) -> list[tuple[Result, Decoding]]:
        """Take the events of a step; what they say is done, each with its settings. Gives up on a client that does not read."""
        if self._left and self.work.stream and len(self._events) > MOST_UNREAD:
            self._end(DeadlinePassed(f"{MOST_UNREAD:,} lines of the stream were waiting to be read; read them as they come"))
        if not self._left:
            return []  # it was given up, now or in the meantime
        self._events.extend(events)
        done = [(event.result, self.work.texts[event.index][1]) for event in events if isinstance(event, Done)]
        self._left -= len(done)
        self._give_back(len(done))
        if not self._left or isinstance(events[-1], EngineStopped):
            self.close()
        if self.work.stream or not self._left:  # else nobody reads before all is there
            self._news.set()
        return done

    def _expire(self) -> None:
        limit = self._queue.limits.deadline
        within = f"{self._texts - self._left} of {self._texts} texts were done within {limit:g} seconds"
        self._end(DeadlinePassed(f"{within}; send fewer at a time, or ask for them to be streamed"))

    def _end(self, error: Exception) -> None:
        self.close()
        self._events.append(error)
        self._news.set()

    def close(self) -> None:
        """Whatever is not done is not wanted any more."""
        self._timer.cancel()
        if self._left:
            self._queue.engine.cancel(self.work)
            self._give_back(self._left)
            self._left = 0

    def _give_back(self, places: int) -> None:
        self._queue.queued -= places
        if self._large:
            self._queue.queued_by_large -= places

    # -- for the handler ---------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Certified | Done]:
        """Of a stream: events as they come, until all texts are done. Raises `DeadlinePassed` or `EngineStopped`."""
        done = 0
        while done < self._texts:
            if not self._events:
                self._news.clear()
                await self._news.wait()
            event = self._events.popleft()
            if isinstance(event, Exception):
                raise event
            done += isinstance(event, Done)
            yield event

    async def results(self, gone: Awaitable[None]) -> list[Done]:
        """All texts in order. Raises `ClientLeft` if `gone`, which returns when the client has left, comes first."""
        leaving = asyncio.ensure_future(gone)
        working = asyncio.ensure_future(self._collect())
        try:
            await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientLeft
            return working.result()
        finally:
            leaving.cancel()
            working.cancel()
            self.close()

    async def _collect(self) -> list[Done]:
        while self._left:
            self._news.clear()
            await self._news.wait()
        if self._events and isinstance(self._events[-1], Exception):
            raise self._events[-1]
        return sorted((event for event in self._events if isinstance(event, Done)), key=lambda event: event.index)
