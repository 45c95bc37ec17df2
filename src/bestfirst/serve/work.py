"""Work: the texts of a request and their events, the inbox of an engine, and the batched tokenisation of texts."""

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
    """Event of a stream: an answer that is certain to have this rank, from 1, in the result of its text."""

    index: int  # type: ignore[assignment]  # of the text, from 0
    rank: int
    answer: Answer


class Done(NamedTuple):
    """Event: a text is finished, with a result or an error."""

    index: int  # type: ignore[assignment]  # of the text, from 0
    result: Result
    trace: Trace | None = None
    prompt_tokens: int = 0


class EngineStopped(Exception):
    """Event, the last of its request: the engine has stopped, and what was not done will not be."""

    status_code = 503


Event = Certified | Done | EngineStopped


@dataclass(eq=False, kw_only=True)
class Work(Flow):
    """The texts of one request, each with its settings, and their state in the engine's thread. `emit` is called with every
    event, in a thread of the engine's or, once the inbox is closed, in the thread that puts the request into it. It must not
    block."""

    texts: Sequence[tuple[Any, Decoding]]  # a text, or a conversation
    emit: Callable[[Event], None]
    stream: bool = False  # emit answers as they are certified
    blanks: bool = False  # decode texts of whitespace alone too, instead of giving them an empty result
    recorded: bool = False  # record every search, and add the trace, in strict order, to its `Done`
    cancelled: bool = False
    sources: dict[int, Source | Result] = field(default_factory=dict)  # by index, of the texts that were tokenised, in order
    reserved: dict[int, int] = field(default_factory=dict)  # by index, of evicted texts: cache tokens to reserve next time
    streamed: dict[int, int] = field(default_factory=dict)  # by index: how many answers were emitted

    def prompt_tokens(self, index: int) -> int:
        """The number of input tokens of a text: the encoder's, for a model that has one. 0 for a text without a prompt."""
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
    """Turns texts into model inputs, in batches if the model's reader has `batch`, which take little longer than one text."""

    def __init__(self, model: Model) -> None:
        self.read = model.reader()
        self.read_batch: Callable[[Sequence[Any]], Sequence[Any]] | None = getattr(self.read, "batch", None)

    def __call__(self, works: Iterable[tuple[Work, range]]) -> None:
        """Fill `sources` of each request for this range of its texts: with the model's input, or with a `Result` if a text is
        blank (nothing to search) or cannot be read (an error)."""
        places = [(work, index) for work, indices in works for index in indices]
        texts = [work.texts[index][0] for work, index in places]
        for (work, index), text, source in zip(places, texts, self._read_all(texts), strict=True):
            if isinstance(text, str) and not work.blanks and not text.strip():
                work.sources[index] = Result(status="complete", exact=True)
            else:
                work.sources[index] = source if isinstance(source, Source) else Result(status="error", message=str(source))

    def _read_all(self, texts: Sequence[Any]) -> Sequence[Any]:
        if self.read_batch is not None and len(texts) > 1:
            try:
                return self.read_batch(texts)
            except Exception:  # read one by one, the text that caused it is found
                pass
        return [self._read_one(text) for text in texts]

    def _read_one(self, text: Any) -> Source | str:
        """The model's input, or an error message."""
        try:
            return self.read(text)
        except ValueError as error:
            return str(error)
        except Exception as error:  # raised by the tokenizer's own code
            log.warning("a text could not be read: %s", error, exc_info=True)
            return f"the text cannot be read: {type(error).__name__}"
