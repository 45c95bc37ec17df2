"""The engine interface: jobs in, results and costs out.

    engine = engine_for(model, decoding)
    engine.submit(Job(0, source, decoding))     # at any time between two steps; so is `cancel`
    while engine:
        for job, result in engine.step():       # finished jobs, then one forward pass for the others
            ...

`decode`, `generate`, `serve`, corpus jobs and `bench` are all clients of this loop (`run`). `HostEngine` (`host.py`)
schedules searches on the host under a shared row budget; `CompiledEngine` is a subclass, and `TwoEngines` runs two of them.
`DeviceEngine` (`device/`) runs whole searches on a GPU and passes what it does not support to a `HostEngine`. `choice.py` is the
only place that chooses between them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Protocol

from ..constraints import Constraint
from ..models import Source
from ..search import Answer, Hypothesis, Result, Search, Successors, Trace
from ..settings import Decoding
from .scorer import NEEDED_PER_TOKEN, Scorer

if TYPE_CHECKING:
    from .drafts import Drafts
    from .logits_edits import Edits


BATCH, FIRST_BATCH = 512, 320
"""Inputs that a device is given at a time, and texts that are tokenised at a time. The first batch is smaller, because the device
waits for it; it is larger than a small session, so that the size of the session can be chosen."""
TextOf = Callable[[Sequence[int]], str | None]
"""Detokenizes an output; None if the model has no text."""


@dataclass(eq=False, slots=True)
class Job:
    """One input with its settings. `n_max` is the maximum output length; ValueError if no token would fit.

    `trace`: records the search. `begin`: creates a search other than the one of the settings. Both force the job onto the host,
    unless `edits` describes as data what `begin` is for. `error`: why the input cannot be decoded; such a job never reaches an
    engine. `paused`: the job keeps its memory but gets no rows; change it between two steps. No effect in engines without
    `pauses`.
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

    def search(self, scorer: Scorer) -> Search:
        """Creates the search, to be run on this scorer."""
        if self.begin is not None:
            search = self.begin()
        else:
            strings = self.decoding.stop_strings
            options: dict[str, Any] = {}
            if strings:
                options["ends"] = StopStrings(strings, partial(scorer.text, self.source), self._text_of_tail(scorer))
            # What else looks at the whole prefix may tell apart what the model does not.
            others = strings or self.decoding.processors or self.decoding.objective.needs & NEEDED_PER_TOKEN
            if scorer.merge is not None and self.decoding.allowed is None and not others:
                options["merge"] = partial(scorer.merge, self.source.payload)
            search = self.decoding.search(self.source, self.decoding.ending(scorer.eos), self.trace, **options)
        if isinstance(allowed := self.decoding.allowed, Constraint):
            for root in search.roots:
                root.node = (allowed, frozenset(self.decoding.ending(scorer.eos)), allowed.start())
        return search

    def _text_of_tail(self, scorer: Scorer) -> TextOf:
        """A detokenizer for tokens in the middle of an output: they do not directly follow a forced prefix."""
        payload = self.source.payload
        if not getattr(payload, "shown", 0):
            return partial(scorer.text, self.source)
        return partial(scorer.text, replace(self.source, payload=replace(payload, shown=0)))


class StopStrings:
    """Tells whether an output is complete because its text contains a stop string. Only the last tokens are detokenized, on
    their own (`tail`): an earlier stop string would already have ended the output."""

    def __init__(self, strings: Sequence[str], text: TextOf, tail: TextOf) -> None:
        self._strings = strings
        self._text, self._tail = text, tail
        self._last = max(len(string.encode()) for string in strings) + 4  # a token has one byte or more, a character up to four

    def __call__(self, tokens: tuple[int, ...]) -> bool:
        text = self._text(tokens) if len(tokens) <= self._last else self._tail(tokens[-self._last :])
        if not isinstance(text, str):
            got = "" if text is None else f" and not {text!r:.40}"
            raise ValueError(f"stop_strings need a model that gives text{got}; name tokens instead, with eos")
        return any(string in text for string in self._strings)


@dataclass(eq=False)
class Running:
    """A submitted job with its search, and the scheduler's bookkeeping for it."""

    job: Job
    search: Search
    steps: int = 0
    speculated: int = 0  # rows scored ahead of need, apart from drafts
    speculation: list[tuple[int, Hypothesis]] = field(default_factory=list)  # their rank and hypothesis, for a single input
    memory_share: float = 0.0  # tokens of `max_cache_tokens` reserved at admission
    drafts: Drafts | None = None

    @property
    def length(self) -> int:
        """|x|, the number of source tokens."""
        return self.job.source.length

    @property
    def reserved_tokens(self) -> float:
        """Cache tokens to reserve: its share, or its certain need after the next step if larger, plus rows scored ahead."""
        certain = self.length + 1 + self.search.rows - self.speculated
        return max(self.memory_share, certain + self.rows_per_step) + self.speculated + self.unused_drafts

    @property
    def unused_drafts(self) -> int:
        """Drafted rows that the search has not requested."""
        return 0 if self.drafts is None else self.drafts.unused

    @property
    def kind(self) -> tuple[int, str]:
        """The statistics key: jobs with the same beam and objective are expected to need similar resources."""
        return self.job.decoding.beam, self.job.decoding.objective.name

    @property
    def rows_per_step(self) -> int:
        """Rows that the search needs in a step: a whole level, or one."""
        return self.search.level_rows if self.search.whole_levels else 1


def item_of(job: Job, answer: Answer, eos: Collection[int]) -> int | None:
    """The number of the constraint's item that this answer is, if it ends in EOS and the constraint numbers its items."""
    if not isinstance(job.decoding.allowed, Constraint) or not answer.tokens or answer.tokens[-1] not in eos:
        return None
    return job.decoding.allowed.item(answer.tokens[:-1])


def text_before(text: str, strings: Sequence[str]) -> str | None:
    """The text before the first of these strings; None if it contains none of them."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return text[: min(places)] if places else None


def text_tokens(answer: Answer, decoding: Decoding, eos: Collection[int]) -> Sequence[int]:
    """The tokens of an answer's text: without the last, if the settings name it as an end token (it may have a text)."""
    tokens = answer.tokens
    return tokens[:-1] if decoding.eos is not None and tokens and tokens[-1] in eos else tokens


def set_text(answer: Answer, decoding: Decoding, eos: Collection[int], text: str | None) -> None:
    """Sets an answer's text, cut at the first stop string, and `truncated`: neither EOS nor a stop string ended it."""
    stopped = text_before(text, decoding.stop_strings) if text and decoding.stop_strings else None
    answer.text = text if stopped is None else stopped
    answer.truncated = stopped is None and not (answer.tokens and answer.tokens[-1] in eos)


def without_tokens(tokens: Collection[int], successors: Successors) -> Successors:
    """The successors except for these tokens."""
    kept = [i for i, token in enumerate(successors.tokens) if token not in tokens]
    if len(kept) == len(successors.tokens):
        return successors
    logprobs = None if successors.logprobs is None else [successors.logprobs[i] for i in kept]
    values = [successors.values[i] for i in kept]
    return successors._replace(values=values, tokens=[successors.tokens[i] for i in kept], logprobs=logprobs)


@dataclass
class Stats:
    """The total cost of a decode. `model_seconds`: time in the encoder, forward passes, gathers and top-k, and in searches
    compiled together with them; the rest is search."""

    steps: int = 0
    rows: int = 0
    calls: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    in_flight: int = 0  # largest number of inputs at a time
    cache_tokens: int = 0  # peak number of tokens in the KV cache, over all inputs
    drafted: int = 0  # rows that were drafts: scored in one step with their parents
    accepted: int = 0  # drafted rows that a search requested later
    engine: str = ""  # "host", "device" or "host+device"; "generate" for Hugging Face's own loop
    search: str = ""  # how it was searched, if the entry point chose that itself
    results: list[Result] = field(default_factory=list, repr=False)  # one per input, for entry points that return something else

    @property
    def outside(self) -> float:
        """The share of time spent outside the model."""
        return 1 - self.model_seconds / self.seconds if self.seconds else 0.0

    def add(self, other: Stats) -> None:
        """Adds the costs of another run."""
        for name in ("steps", "rows", "calls", "seconds", "model_seconds", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.in_flight, self.cache_tokens = max(self.in_flight, other.in_flight), max(self.cache_tokens, other.cache_tokens)
        self.engine = "+".join(dict.fromkeys([*filter(None, self.engine.split("+")), *filter(None, other.engine.split("+"))]))


class Runnable(Protocol):
    """Runs many jobs concurrently on one model and one device: what `run` needs."""

    @property
    def stats(self) -> Stats:
        """Costs so far, without `seconds`."""

    @property
    def wants(self) -> int:
        """How many more jobs to submit now for good utilisation."""

    def __bool__(self) -> bool:
        """Whether any job is unfinished."""

    def submit(self, *jobs: Job) -> None:
        """Queues jobs. Jobs of one call may be admitted in any order, those of later calls after them."""

    def step(self) -> Iterator[tuple[Job, Result]]:
        """Yields the finished jobs, then runs one forward pass for those in flight."""


class Engine(Runnable, Protocol):
    """One whose jobs may also be cancelled, paused and read before they are finished, as a server needs."""

    @property
    def slots(self) -> int:
        """How many jobs can share a forward pass if each needs one row."""

    @property
    def in_flight(self) -> Sequence[Job]:
        """Jobs that were admitted and are not finished."""

    @property
    def shares_context(self) -> bool:
        """Whether hypotheses reuse the keys and values of their prefix; if not, each is run from its first token."""

    @property
    def pauses(self) -> bool:
        """Whether `Job.paused` has an effect; if not, searches run on the device by themselves, in memory of their own."""

    def cancel(self, job: Job) -> None:
        """Drops a waiting or running job and frees its memory."""

    def certified(self, job: Job) -> list[Answer]:
        """The answers of a job in flight that are already certain to be the first of its result."""


def run(engine: Runnable, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """Feeds an engine and yields finished jobs: the loop of every entry point. Reads only as many jobs as the engine wants.

    If `jobs` raises, the jobs read before are finished first; if the model raises, finished jobs are yielded first.
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
    """Python's garbage collector, off while a thread searches and is not in a user's model. Threads come and go in any order."""

    off = False  # whether this thread wants collection off
    lock, threads, was_on = Lock(), 0, True  # shared: how many threads want it off, and whether it was on before the first

    @contextmanager
    def switched(self, off: bool) -> Iterator[None]:
        before = self.off
        self._switch(off)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, off: bool) -> None:
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
    """Garbage collection off: searches create many objects and free them themselves; scanning them costs more than the search."""
    with _COLLECTION.switched(off=True):
        yield


def garbage_collection() -> AbstractContextManager[None]:
    """Garbage collection on, for a user's own model: it may leave reference cycles that hold any amount of memory."""
    return _COLLECTION.switched(off=False)


def check_compatible(decoding: Decoding, engine: Decoding) -> None:
    """ValueError unless a job can share the engine: same processors, and the same score or plain sums of log-probabilities."""
    if decoding.processors != engine.processors:
        raise ValueError("jobs of one engine have the same processors; submit this one to an engine of its own")
    score, shared = decoding.objective, engine.objective
    additive = all(each.plain and not each.needs & NEEDED_PER_TOKEN for each in (score, shared))
    if score is not shared and not additive:
        raise ValueError(f"score {score.name!r} cannot share an engine with score {shared.name!r}; submit it to one of its own")
