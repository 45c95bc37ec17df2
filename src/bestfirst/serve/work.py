"""Work: the texts of one request on their way to an engine, how they are read, and what is told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..models import Model, Source
from ..search import Answer, Result, Trace
from ..settings import Decoding
from .fair_share import Flow

log = logging.getLogger(__name__)


class Certified(NamedTuple):
    """An answer that is certain to have this rank, from 1 on."""

    index: int  # type: ignore[assignment]  # which text, from 0
    rank: int
    answer: Answer


class Done(NamedTuple):
    """A text that is over."""

    index: int  # type: ignore[assignment]  # which text, from 0
    result: Result
    trace: Trace | None = None
    read: int = 0  # tokens of the text


class EngineStopped(Exception):
    """Nothing will be decoded any more."""

    status_code = 503


Event = Certified | Done | EngineStopped


@dataclass(eq=False, kw_only=True)
class Work(Flow):
    """Texts of one request, each with its settings. `tell` gets its events, in a thread of the engine's."""

    texts: Sequence[tuple[Any, Decoding]]  # or conversations
    tell: Callable[[Event], None]
    stream: bool = False  # tell of answers as they are certified
    blanks: bool = False  # decode texts of nothing but blanks, too
    recorded: bool = False  # tell every event of every search, in strict order
    cancelled: bool = False
    sources: dict[int, Source | Result] = field(default_factory=dict)  # of texts that were read, from the first on
    set_aside: dict[int, int] = field(default_factory=dict)  # of texts that had to make room: tokens of memory for next time
    told: dict[int, int] = field(default_factory=dict)  # of a stream: of each text, how many answers were told

    def size(self, index: int) -> int:
        """Tokens of a text that was read: by the encoder, where there is one."""
        prompt: Any = getattr(self.sources.get(index), "payload", None)
        return getattr(prompt, "length", 0) or len(getattr(prompt, "tokens", ()))


class Inbox:
    """The queue of requests to the one thread that takes them. None asks that thread to stop; a request that was cancelled is
    put a second time, with its flag set.

    Every request is either taken or refused: the thread closes the inbox when it ends, and what is put into it later is refused
    as well. `put` and `cancel` may be called from any thread.
    """

    def __init__(self, refuse: Callable[[Work], None]) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._refuse = refuse
        self._closed = False
        self.get, self.empty = self._queue.get, self._queue.empty

    def put(self, work: Work | None) -> None:
        self._queue.put(work)
        if self._closed:  # checked after the put: otherwise `close` could miss this request, and it would wait for ever
            self.close()

    def cancel(self, work: Work) -> None:
        work.cancelled = True
        self.put(work)

    def close(self) -> None:
        """Refuse every request that was not taken."""
        self._closed = True
        with suppress(Empty):
            while True:
                work = self._queue.get_nowait()
                if work is not None and not work.cancelled:
                    self._refuse(work)


class TextReader:
    """Reads texts of requests, many of them together where the model can: it takes little longer than for one."""

    def __init__(self, model: Model) -> None:
        self.read = model.reader()
        self.together: Callable[[Sequence[Any]], Sequence[Any]] | None = getattr(self.read, "batch", None)

    def __call__(self, works: Iterable[tuple[Work, range]]) -> None:
        """Read these texts of each into its `sources`: what the model makes of a text, or its result, where it needs no search or
        cannot have one."""
        places = [(work, index) for work, indices in works for index in indices]
        texts = [work.texts[index][0] for work, index in places]
        for (work, index), text, found in zip(places, texts, self._read(texts), strict=True):
            if isinstance(text, str) and not work.blanks and not text.strip():
                work.sources[index] = Result(status="complete", exact=True)
            else:
                work.sources[index] = found if isinstance(found, Source) else Result(status="error", message=str(found))

    def _read(self, texts: Sequence[Any]) -> Sequence[Any]:
        if self.together is not None and len(texts) > 1:
            try:
                return self.together(texts)
            except Exception:  # who is at fault is seen when each is read alone
                pass
        return [self._read_alone(text) for text in texts]

    def _read_alone(self, text: Any) -> Source | str:
        try:
            return self.read(text)
        except ValueError as error:
            return str(error)
        except Exception as error:  # of the tokenizer's own code
            log.warning("a text could not be read: %s", error, exc_info=True)
            return f"the text cannot be read: {type(error).__name__}"
