"""The engine behind every door: jobs in, results out, and what it cost.

    engine = engine_for(model, decoding)
    engine.submit(Job(0, source, decoding))     # at any time between two steps; so is `cancel`
    while engine:
        for job, result in engine.step():       # those that are over, then one forward pass for the others
            ...

`decode`, `generate`, `serve`, corpus jobs and `bench` are clients of this loop (`run`). There are two engines: searches on the
host, which share a budget of rows for each forward pass (`host.py`), and searches on a GPU (`device/`), which hands what it
cannot do to the first. `choice.py` is the one place that chooses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Protocol

from ..constraints import Constraint
from ..models import Source
from ..search import Answer, Groups, Hypothesis, Result, Search, Successors, Trace
from ..settings import Decoding
from .scorer import ON_THE_WAY

if TYPE_CHECKING:
    from .drafts import Drafts
    from .logits_edits import Edits


Text = Callable[[Sequence[int]], str | None]
"""The text of an output's tokens."""


@dataclass(eq=False, slots=True)
class Job:
    """An input with its settings; `n_max` is the most tokens of its output. ValueError where there is room for none.

    `trace`: where its search is recorded. `begin`: makes a search other than the settings' own (`search`). Either keeps a job on
    the host, unless `edits` says as data what `begin` is there for. `error`: why this input cannot be decoded; no engine sees
    such a job. `paused`: it keeps what it holds and is given no rows; to be changed between two steps. An engine whose searches
    run by themselves may take no notice.
    """

    index: int
    source: Source
    decoding: Decoding
    trace: Trace | None = None
    begin: Callable[[], Search] | None = None
    error: str | None = None
    paused: bool = False
    edits: Edits | None = None
    n_max: int = 0

    def __post_init__(self) -> None:
        if self.error is None:
            self.n_max = self.decoding.n_max(self.source)

    def search(
        self,
        eos: Collection[int],
        text: Callable[[Source, Sequence[int]], str | None],
        merge: Callable[[Any, tuple[int, ...]], Hashable] | None = None,
    ) -> Search:
        """A new search of this input, for a model whose outputs end with `eos`, have this text and, with `merge`, states."""
        if self.begin is not None:
            search = self.begin()
        else:
            strings = self.decoding.stop_strings
            more: dict[str, Any] = {}
            if strings:
                more["ends"] = StopStrings(strings, partial(text, self.source), self._tail(text))
            if merge is not None:
                more["merge"] = partial(merge, self.source.payload)
            search = self.decoding.search(self.source, self.decoding.ending(eos), self.trace, **more)
        if isinstance(allowed := self.decoding.allowed, Constraint):
            for each in search.searches if isinstance(search, Groups) else [search]:
                each.root.node = (allowed, allowed.start())
        return search

    def _tail(self, text: Callable[[Source, Sequence[int]], str | None]) -> Text:
        """The text of tokens that do not follow a forced prefix at once."""
        payload = self.source.payload
        if not getattr(payload, "shown", 0):
            return partial(text, self.source)
        return partial(text, replace(self.source, payload=replace(payload, shown=0)))


class StopStrings:
    """Whether tokens are complete because a stop string is in their `text`. Only the last tokens are looked at, by themselves
    (`tail`): before them there was none, or the output would have ended."""

    def __init__(self, strings: Sequence[str], text: Text, tail: Text) -> None:
        self._strings = strings
        self._text, self._tail = text, tail
        self._last = max(len(string.encode()) for string in strings) + 4  # a token has a byte at least, a character up to four

    def __call__(self, tokens: tuple[int, ...]) -> bool:
        text = self._text(tokens) if len(tokens) <= self._last else self._tail(tokens[-self._last :])
        if text is None:
            raise ValueError("stop_strings need a model that gives text; name tokens instead, with eos")
        return any(string in text for string in self._strings)


@dataclass(eq=False)
class Running:
    """A job with its search."""

    job: Job
    search: Search
    steps: int = 0
    guessed: int = 0  # rows that were scored ahead
    ahead: list[tuple[int, Hypothesis]] = field(default_factory=list)  # of an input by itself, these: rank, and which
    share: float = 0.0  # of the memory bound
    drafts: Drafts | None = None

    @property
    def length(self) -> int:
        """|x|."""
        return self.job.source.length

    @property
    def holds(self) -> float:
        """Its share, or what it has for certain after the next step, where that is more; and what was scored ahead for it."""
        certain = self.length + 1 + self.search.rows - self.guessed
        return max(self.share, certain + self.rows_each) + self.guessed + self.unused

    @property
    def unused(self) -> int:
        """Drafted rows that the search has not asked for."""
        return 0 if self.drafts is None else self.drafts.unused

    @property
    def kind(self) -> tuple[int, str]:
        """What it is likely to need is what others of its kind needed: the beam, and what is searched for."""
        return self.job.decoding.beam, self.job.decoding.objective.name

    @property
    def rows_each(self) -> int:
        """How many rows it needs in a step: a whole level, or one."""
        return self.search.level_rows if self.search.whole_levels else 1


def item_of(job: Job, answer: Answer, eos: Collection[int]) -> int | None:
    """The number of an answer that ends in EOS, where a constraint numbers what it allows."""
    if not isinstance(job.decoding.allowed, Constraint) or not answer.tokens or answer.tokens[-1] not in eos:
        return None
    return job.decoding.allowed.item(answer.tokens[:-1])


def cut(text: str, strings: Sequence[str]) -> str | None:
    """The text before the first of these strings; None where there is none of them."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return text[: min(places)] if places else None


def shown(answer: Answer, decoding: Decoding, eos: Collection[int]) -> Sequence[int]:
    """The tokens that an answer's text is made of; one that the settings say ends it may well have a text."""
    tokens = answer.tokens
    return tokens[:-1] if decoding.eos is not None and tokens and tokens[-1] in eos else tokens


def write(answer: Answer, decoding: Decoding, eos: Collection[int], text: str | None) -> None:
    """Give an answer its text, up to what ended it, and say whether nothing did."""
    before = cut(text, decoding.stop_strings) if text and decoding.stop_strings else None
    answer.text = text if before is None else before
    answer.truncated = before is None and not (answer.tokens and answer.tokens[-1] in eos)


def without(tokens: Collection[int], successors: Successors) -> Successors:
    """The successors but for these tokens."""
    kept = [i for i, token in enumerate(successors.tokens) if token not in tokens]
    if len(kept) == len(successors.tokens):
        return successors
    logprobs = None if successors.logprobs is None else [successors.logprobs[i] for i in kept]
    values = [successors.values[i] for i in kept]
    return successors._replace(values=values, tokens=[successors.tokens[i] for i in kept], logprobs=logprobs)


@dataclass
class Stats:
    """What a decode cost as a whole. `model_seconds`: in the encoder, forward passes, gathers and top-k, and in searches that are
    compiled with them; the rest is search."""

    steps: int = 0
    rows: int = 0
    calls: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    in_flight: int = 0  # most inputs at a time
    cache_tokens: int = 0  # most tokens held at a time, for all of them
    drafted: int = 0  # of the rows, those that were guessed ahead of the hypotheses before them
    accepted: int = 0  # and of these, those that a search came to ask for
    engine: str = ""  # who ran it: "host", "device", both; "generate" for Hugging Face's own loop
    search: str = ""  # how it was searched, where a door chooses that itself
    results: list[Result] = field(default_factory=list, repr=False)  # one an input, where a door returns something else

    @property
    def outside(self) -> float:
        """The share of time that was not the model's."""
        return 1 - self.model_seconds / self.seconds if self.seconds else 0.0

    def add(self, other: Stats) -> None:
        """Count another run's costs to these."""
        for name in ("steps", "rows", "calls", "seconds", "model_seconds", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.in_flight, self.cache_tokens = max(self.in_flight, other.in_flight), max(self.cache_tokens, other.cache_tokens)
        self.engine = "+".join(dict.fromkeys([*filter(None, self.engine.split("+")), *filter(None, other.engine.split("+"))]))


class Engine(Protocol):
    """Runs many jobs at once on one model and one device."""

    @property
    def stats(self) -> Stats:
        """What it cost so far, but for `seconds`."""

    @property
    def wants(self) -> int:
        """How many more jobs should be submitted now, for it to work well."""

    @property
    def slots(self) -> int:
        """How many jobs can share a forward pass, where each needs one row of it."""

    @property
    def in_flight(self) -> Sequence[Job]:
        """The jobs that were let in and are not over."""

    def __bool__(self) -> bool:
        """Whether anything is left to do."""

    @property
    def shares_context(self) -> bool:
        """Whether hypotheses share what was computed of their beginnings; if not, each is run from its first token."""

    @property
    def pauses(self) -> bool:
        """Whether it takes notice of `Job.paused`; if not, its searches run by themselves, in memory of their own."""

    def submit(self, *jobs: Job) -> None:
        """Queue jobs. Those that are given together may be taken in any order, others come behind."""

    def cancel(self, job: Job) -> None:
        """Give up a job that waits or is in flight, and what is held for it."""

    def step(self) -> Iterator[tuple[Job, Result]]:
        """Yields the jobs that are over; then does a forward pass for those in flight."""

    def certified(self, job: Job) -> list[Answer]:
        """The answers of a job in flight that are sure to be the first of its result."""


def run(engine: Engine, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """Feed an engine and yield what is done: the loop of every door. Only as many jobs are read as the engine wants.

    What was read is finished before an exception of `jobs` goes on to the caller, and what is done before one of the model.
    """
    unread = iter(jobs)
    failure: Exception | None = None
    more = True
    while more or engine:
        done: list[tuple[Job, Result]] = []
        try:
            with no_garbage_collection():
                if more and (wanted := engine.wants):
                    batch: list[Job] = []
                    try:
                        batch.extend(islice(unread, wanted))
                    except Exception as error:
                        failure = error
                    more = len(batch) == wanted and failure is None
                    done += [(job, Result(status="error", message=job.error)) for job in batch if job.error is not None]
                    engine.submit(*(job for job in batch if job.error is None))
                done.extend(engine.step())
        except Exception:
            yield from done
            raise
        yield from done
    if failure is not None:
        raise failure


class _Collection(local):
    """Garbage collection, which is off while any thread searches and is not asking a model. Threads come and go in any order."""

    off = False  # this thread's wish
    lock, threads, was_on = Lock(), 0, True  # how many wish it off, and whether it was on before

    @contextmanager
    def turned(self, off: bool) -> Iterator[None]:
        before = self.off
        self._turn(off)
        try:
            yield
        finally:
            self._turn(before)

    def _turn(self, off: bool) -> None:
        shared = _Collection
        with shared.lock:
            before, shared.threads = shared.threads, shared.threads + off - self.off
            self.off = off
            if not before and shared.threads:
                shared.was_on = gc.isenabled()
                gc.disable()
            elif before and not shared.threads and shared.was_on:
                gc.enable()


_COLLECTION = _Collection()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Searches make many objects and take them apart themselves; looking for garbage among them costs more than the search."""
    with _COLLECTION.turned(off=True):
        yield


def collecting() -> AbstractContextManager[None]:
    """A model of the user's own may leave cycles behind, as large as it likes: while it runs they are collected as usual."""
    return _COLLECTION.turned(off=False)


def check_together(decoding: Decoding, engine: Decoding) -> None:
    """Jobs of one engine may have any scores that add up log-probabilities as they are, or all have the same one."""
    if decoding.processors != engine.processors:
        raise ValueError("jobs of one engine have the same processors; submit this one to an engine of its own")
    score, shared = decoding.objective, engine.objective
    usual = all(each.plain and not each.needs & ON_THE_WAY for each in (score, shared))
    if score is not shared and not usual:
        raise ValueError(f"score {score.name!r} cannot share an engine with score {shared.name!r}; submit it to one of its own")
