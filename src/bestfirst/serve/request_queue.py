"""Request queue: what is accepted and what is refused, and how events of the engine reach the request that waits for them."""

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

MOST_UNREAD = 2048  # events of a stream that wait for its client; one that is further behind does not read

Texts = Sequence[tuple[Any, Decoding]]
Write = Callable[[Result], Any]


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

    def __init__(self, engine: EngineThread | EngineProcess, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        self.queued = 0
        self.queued_by_large = 0
        self._done: deque[float] = deque(maxlen=256)  # when texts were, lately
        self.on_results: Callable[[Sequence[tuple[Result, Decoding]]], None] = lambda results: None
        self.open_submissions: dict[Submission, None] = {}

    def open(self) -> None:
        """Begin, in the event loop that is running."""
        loop = asyncio.get_running_loop()

        def flush() -> None:
            if any(each.told for each in [*self.open_submissions]):  # a copy: they come and go meanwhile
                loop.call_soon_threadsafe(self._deliver)

        self.engine.flush = flush
        self.engine.start()

    def check_engine(self) -> None:
        """Raise `EngineStopped` if nothing can be decoded."""
        if not self.engine.alive:
            raise EngineStopped("the engine has stopped; start the server again")

    def submit(self, texts: Texts, *, client: str, write: Write | None = None, **how: Any) -> Submission:
        """Accept a request, or raise `TooMuch` or `QueueFull`. `write`: what is made of each text that is done, as soon as it is,
        for `Submission.results`. `how`: `stream`, `blanks` and `recorded` of `Work`."""
        self.check_engine()
        self._check(texts)
        submission = Submission(self, len(texts), write)
        submission.work = Work(client, texts=texts, tell=submission.told.append, **how)
        self.engine.submit(submission.work)
        return submission

    def _deliver(self) -> None:
        """Hand out what was told. As little as can be is done for each text: the engine waits for this thread's lock."""
        done: list[tuple[Result, Decoding]] = []
        for submission in [each for each in self.open_submissions if each.told]:
            done += submission.receive()
        if done:
            self._done.extend([monotonic()] * len(done))
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

    def __init__(self, queue: RequestQueue, texts: int, write: Write | None = None) -> None:
        self.told: list[Event] = []  # by the engine, and not received
        self._queue = queue
        self._texts = self._left = texts
        self._large = texts > queue.limits.few
        self._write = write
        self._written: list[Any] = [None] * texts  # of a request that is no stream: what was made of each
        self._events: deque[Certified | Done | Exception] = deque()  # of a stream, those that nobody has read; or what went wrong
        self._news = asyncio.Event()  # set when there is something that is waited for
        self._timer = asyncio.get_running_loop().call_later(queue.limits.deadline, self._expire)
        self._give_back(-texts)
        queue.open_submissions[self] = None

    # -- from the engine ---------------------------------------------------------------------------------------------------

    def receive(self) -> list[tuple[Result, Decoding]]:
        """Take what was told; what it says is done, each with its settings. Gives up on a client that does not read."""
        stream, texts, write = self.work.stream, self.work.texts, self._write
        if stream and len(self._events) > MOST_UNREAD:
            self._end(DeadlinePassed(f"{MOST_UNREAD:,} lines of the stream were waiting to be read; read them as they come"))
            return []
        events = self.told[:]
        del self.told[: len(events)]  # the engine may tell more meanwhile
        done = [event for event in events if type(event) is Done]
        if stream:
            self._events.extend(events)
        else:
            try:
                for event in done:
                    self._written[event.index] = event if write is None else write(event.result)
            except Exception as error:  # of what a model gave: half a character, say. It is this request's affair alone
                self._end(error)
                return []
            self._events.extend(events[len(done) :])  # that the engine has stopped comes last
        self._left -= len(done)
        self._give_back(len(done))
        if not self._left or isinstance(events[-1], EngineStopped):
            self.close()
        if stream or not self._left:  # else nobody reads before all is there
            self._news.set()
        return [(each.result, texts[each.index][1]) for each in done]

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
        self._queue.open_submissions.pop(self, None)
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

    async def results(self, gone: Awaitable[None]) -> list[Any]:
        """What was made of all texts, in order; `Done`, where nobody said what is to be. Raises `ClientLeft` if `gone`, which
        returns when the client has left, comes first, `DeadlinePassed` or `EngineStopped`."""
        leaving = asyncio.ensure_future(gone)
        leaving.add_done_callback(lambda _: self._news.set())
        try:
            while self._left:
                if leaving.done():
                    raise ClientLeft
                self._news.clear()
                await self._news.wait()
            if self._events and isinstance(self._events[-1], Exception):
                raise self._events[-1]
            return self._written
        finally:
            leaving.cancel()
            self.close()
