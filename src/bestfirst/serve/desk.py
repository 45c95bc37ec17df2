"""Desk: where requests and the engine meet. It accepts what fits, and hands the engine's events to who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from math import ceil
from time import monotonic

from ..decoding import Task
from .engine import Certified, Done, Engine, Event, Failed, Order
from .limits import Limits


class Busy(Exception):
    """The queue is full; `retry_after` is when it will not be, as far as can be foreseen, in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Late(Exception):
    """The deadline has passed."""


class Broken(Exception):
    """The engine is no more."""


class Pace:
    """Texts done a second, lately."""

    def __init__(self) -> None:
        self._done: list[float] = []

    def note(self) -> None:
        """One more is done."""
        self._done.append(monotonic())
        if len(self._done) > 256:
            del self._done[:128]

    def seconds_for(self, texts: int) -> int:
        """How long so many will take: from 1 to 60 seconds."""
        seen = len(self._done) - 1
        if seen < 1 or self._done[-1] == self._done[0]:
            return 1
        return min(60, max(1, ceil(texts * (self._done[-1] - self._done[0]) / seen)))


class Desk:
    """Lives in the event loop's thread. At most `limits.max_queue` texts are accepted and not done at a time."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        self.queued = 0
        self.pace = Pace()
        self._outbox: list[tuple[asyncio.Queue[Event], Event]] = []

    def open(self) -> None:
        """Begin, in the event loop that is running."""
        loop = asyncio.get_running_loop()

        def flush() -> None:
            if self._outbox:
                events, self._outbox = self._outbox, []
                loop.call_soon_threadsafe(_deliver, events)

        self.engine.flush = flush
        self.engine.start()

    def accept(self, items: Sequence[tuple[str, Task]], *, stream: bool = False, traced: bool = False) -> Ticket:
        """Take an order in, or raise `Busy`."""
        if not self.engine.alive:
            raise Broken("the engine has stopped; start the server again")
        if self.queued + len(items) > self.limits.max_queue:
            places = f"{self.queued} of {self.limits.max_queue} places are taken, {len(items)} needed"
            raise Busy(f"the queue is full: {places}; try again later", self.pace.seconds_for(self.queued))
        self.queued += len(items)
        events: asyncio.Queue[Event] = asyncio.Queue()
        order = Order(items, lambda event: self._outbox.append((events, event)), stream, traced)
        self.engine.submit(order)
        return Ticket(self, order, events)


def _deliver(events: Sequence[tuple[asyncio.Queue[Event], Event]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)


class Ticket:
    """An accepted order, for the request that waits for it. However that ends, `close` gives its places back."""

    def __init__(self, desk: Desk, order: Order, events: asyncio.Queue[Event]) -> None:
        self._desk = desk
        self._order = order
        self._events = events
        self._left = len(order.items)
        self._deadline = monotonic() + desk.limits.deadline

    async def events(self) -> AsyncIterator[Certified | Done]:
        """Events as they come, until all texts are done. Raises `Late` at the deadline."""
        while self._left:
            try:
                event = await asyncio.wait_for(self._events.get(), self._deadline - monotonic())
            except asyncio.TimeoutError:
                done, texts = len(self._order.items) - self._left, len(self._order.items)
                within = f"{done} of {texts} texts were done within {self._desk.limits.deadline:g} seconds"
                raise Late(f"{within}; send fewer at a time, or ask for them to be streamed") from None
            if isinstance(event, Failed):
                raise Broken(event.message)
            if isinstance(event, Done):
                self._left -= 1
                self._desk.queued -= 1
                self._desk.pace.note()
            yield event

    async def done(self, gone: Awaitable[None]) -> list[Done] | None:
        """All texts in order; None if `gone`, which returns when the client has left, comes first."""
        leaving = asyncio.ensure_future(gone)
        working = asyncio.ensure_future(self._collect())
        try:
            await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            leaving.cancel()
            working.cancel()

    async def _collect(self) -> list[Done]:
        found = [event async for event in self.events() if isinstance(event, Done)]
        return sorted(found, key=lambda event: event.index)

    def close(self) -> None:
        """Whatever is not done is not wanted any more."""
        if self._left:
            self._desk.engine.cancel(self._order)
            self._desk.queued -= self._left
            self._left = 0
