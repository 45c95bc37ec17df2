"""`Worker`: decodes records in batches and isolates failures. A line on which the model's code raises fails alone; a model that
fails on everything (a lost device, exhausted memory) ends the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field, fields, replace
from functools import partial
from threading import Event
from typing import Any

from .. import __version__
from ..decoding import decode
from ..engine import Stats
from ..engine.choice import can_run_two_engines
from ..engine.threads import side_by_side
from ..errors import Stopped, reason
from ..models.reader import conversation
from ..search import Result, Trace
from ..settings import Budget, Decoding
from .formats import Target
from .records import Record, Shard

SHARD_LINES = 500
"""Lines per shard: a few seconds' work on a CPU. Larger shards are no faster there (docs/corpus.md)."""
MAX_COUNT = 1e18  # bound on all counts, to reject a damaged file
NOTHING_ALLOWED = "nothing that is allowed finished within the maximum length"
UNFINISHED, OUT_OF_CALLS = "nothing finished within the maximum length", "nothing finished within the calls allowed"
BEST_SO_FAR = "the calls allowed did not suffice; what had finished by then is written, and may not be the best"

Done = Callable[[Record, Result], None]
Tracer = Callable[[Record], Trace]
Failures = tuple[tuple[int, str], ...]
"""The numbers of the lines that failed, with the reasons."""


def on_gpu(device: str | None) -> bool:
    return device is not None and device.startswith("cuda")


def shard_lines(device: str | None) -> int:
    """The default lines per shard: a GPU decodes thousands in a second, and is idle between two shards."""
    return 8 * SHARD_LINES if on_gpu(device) else SHARD_LINES


def fixed_budget(device: str | None) -> Budget:
    """The default rows of a forward pass, which suits most models. `decode` measures it; a corpus job must not, because the shape
    of a batch changes the last bits of scores, and the output's bytes may not depend on how busy the machine was."""
    return Budget(512, 64) if on_gpu(device) else Budget(128, 16)


@dataclass(slots=True)
class Tally:
    """Counts summed over lines. `sentences` were passed to the model; `beam_calls` is a lower bound on beam search's calls."""

    lines: int = 0
    sentences: int = 0
    failed: int = 0
    calls: int = 0
    beam_calls: int = 0
    rows: int = 0
    steps: int = 0
    exact: int = 0
    model_seconds: float = 0.0

    @classmethod
    def load(cls, numbers: Any) -> Tally:
        """From the fields of a parsed JSON object. ValueError if they are not counts."""
        if {each.name for each in fields(cls)} != set(numbers):
            raise ValueError("not the counts of a job")
        if not all(type(number) in (int, float) and 0 <= number < MAX_COUNT for number in numbers.values()):
            raise ValueError("a count is not a number from 0 up")
        return cls(**numbers)

    def add(self, results: Sequence[Result], beam: int) -> None:
        """Add decoded sentences. With a beam of 0, no calls of beam search are added (there is no comparable beam search)."""
        self.sentences += len(results)
        self.calls += sum([result.calls for result in results])
        self.beam_calls += sum([beam_calls(result, beam) for result in results]) if beam else 0
        self.rows += sum([result.rows for result in results])
        self.exact += sum([result.exact for result in results])

    def include(self, other: Tally, times: int = 1) -> None:
        """Add another tally; with `times=-1`, subtract it."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + times * getattr(other, each.name))

    @property
    def saved(self) -> float:
        """The fraction of beam search's calls that was saved, as a lower bound."""
        return max(0.0, 1 - self.calls / self.beam_calls) if self.beam_calls else 0.0


def beam_calls(result: Result, beam: int) -> int:
    """A lower bound on the calls of beam search for the same answers, with finished hypotheses leaving the beam.

    To find an answer of n tokens it scores the empty hypothesis and then a full beam of each length from 1 to n - 1, under any
    stopping rule (`tests/corpus/test_tally.py`). If nothing finished, it scores at least as many as were scored here."""
    answers = result.hypotheses
    longest = len(answers[0].tokens) if len(answers) == 1 else max((len(answer.tokens) for answer in answers), default=0)
    return 1 + beam * (longest - 1) if longest else result.calls


def compared_beam(decoding: Decoding) -> int:
    """The beam size of the beam search that calls are compared with (`beam_calls`); 0 if that search's cost is not known."""
    full = decoding.allowed is None and not decoding.processors  # otherwise beams may not be full
    return decoding.beam if full and decoding.finished == "leave" and decoding.strategy == "best-first" else 0


@dataclass(frozen=True)
class ShardResult:
    """A decoded shard: its bytes in the output, its cost, the lines that failed, and the digest of its records (`source`)."""

    index: int
    data: bytes
    tally: Tally
    failures: Failures = ()
    source: str = ""


Work = Callable[[Iterator[Shard]], Iterable[ShardResult]]
"""Decodes shards and yields the results in any order. It takes a shard only when it has capacity, so few are in memory."""


@dataclass
class Worker:
    """A model with its decoding settings and output format."""

    model: Any
    decoding: Decoding
    target: Target = field(default_factory=Target)
    chat: bool = False  # whether texts are user messages for a chat model, not plain prompts
    probe: str | None = None  # a text that was decoded before, to test whether the model still works

    @property
    def signature(self) -> str:
        """Settings, model, dtype and version in one line."""
        return f"bestfirst|{self.decoding.signature}|model:{self.model.name}|dtype:{self.model.dtype_name}|v:{__version__}"

    def decode_shard(self, shard: Shard, notice: Callable[[], None] = lambda: None) -> ShardResult:
        """Decode a shard by itself: with a fixed row budget its bytes are always the same. `notice`: after each line."""
        self.probe = self.probe or "."  # without a probe, a dead model would fail every line of the file
        source = shard.digest
        shard = replace(shard, records=[self.target.admit(record) for record in shard.records])
        results: dict[int, Result] = {}

        def done(record: Record, result: Result) -> None:
            results[record.number] = result
            notice()

        tally = self.decode(shard.records, done)
        ordered = [results[record.number] for record in shard.records]
        failures = [(r.number, why) for r, result in zip(shard.records, ordered, strict=True) if (why := self.failure(result))]
        tally.failed = len(failures)
        return ShardResult(shard.index, self.target.encode(shard, ordered), tally, tuple(failures), source)

    def work(self, notice: Callable[[int], None], shards: Iterator[Shard]) -> Iterator[ShardResult]:
        """Decode shards in this process, in two threads if `can_run_two_engines`. `notice(1)` is called for each line."""
        if can_run_two_engines(self.model, self.decoding):
            return self._two_at_a_time(notice, shards)
        return (self.decode_shard(shard, partial(notice, 1)) for shard in shards)

    def _two_at_a_time(self, notice: Callable[[int], None], shards: Iterator[Shard]) -> Iterator[ShardResult]:
        """Decode shards in two threads, with `model.second` in one of them. If the consumer stops, running decodes end too."""
        free = [replace(self, model=self.model.second), self]
        over = Event()

        def notice_line() -> None:
            if over.is_set():
                raise Stopped("the work was broken off")
            notice(1)

        def decode(worker: Worker, shard: Shard) -> tuple[Worker, ShardResult]:
            with side_by_side():
                return worker, worker.decode_shard(shard, notice_line)

        with ThreadPoolExecutor(len(free), thread_name_prefix="shard") as pool:
            running: set[Future[tuple[Worker, ShardResult]]] = set()
            try:
                for shard in shards:
                    running.add(pool.submit(decode, free.pop(), shard))
                    if not free:
                        done, running = wait(running, return_when=FIRST_COMPLETED)
                        for worker, result in (each.result() for each in done):
                            free.append(worker)
                            yield result
                yield from (each.result()[1] for each in as_completed(running))
            finally:
                over.set()

    def decode(self, records: Sequence[Record], done: Done, trace: Tracer | None = None) -> Tally:
        """Decode records, calling `done` with each result. Records with an error or a blank text do not reach the model. Stopped
        if the model fails on a line alone and then on the probe."""
        tally = Tally(lines=len(records))
        wanted = []
        for record in records:
            if record.error is not None:
                done(record, Result(status="error", message=record.error))
            elif record.blank:
                done(record, Result(status="complete", exact=True))
            else:
                wanted.append(record)
        if wanted:
            self._decode_together(wanted, done, trace, tally)
        return tally

    def failure(self, result: Result) -> str | None:
        """Why a line counts as failed: it has no output, or one that may not be the best; None if it did not fail."""
        if result.status == "error":
            return result.message
        if result.status == "complete" or (self.target.partial and self.target.answers_to_write(result)):
            return None
        if result.status == "budget":
            return BEST_SO_FAR if result.hypotheses else OUT_OF_CALLS
        return UNFINISHED if self.decoding.allowed is None else NOTHING_ALLOWED

    def _decode_together(
        self, records: Sequence[Record], done: Done, trace: Tracer | None, tally: Tally, last_try: bool = False
    ) -> None:
        """Decode records in one call. If that raises, bisect the unfinished ones until the one at fault is alone; decode that one
        once more (`last_try`), in case the failure was a transient one of the machine."""
        left = dict(enumerate(records))
        results: list[Result] = []
        cost = Stats()

        def finished(index: int, result: Result) -> None:
            record = left.pop(index)
            if result.status != "error":
                self.probe = record.text
            results.append(result)
            done(record, result)

        tracer = None if trace is None else lambda index: trace(records[index])
        why = None
        try:
            self._call([record.text for record in records], progress=finished, trace=tracer, stats=cost)
            tally.steps += cost.steps
            tally.model_seconds += cost.model_seconds
        except (Stopped, BrokenPipeError):
            raise
        except Exception as error:  # raised by the model's or a score's own code
            why = reason(error)  # keep no reference to the exception: its frames may hold the memory that ran out
        if last_try:
            for index in list(left):
                finished(index, Result(status="error", message=why))
        tally.add(results, compared_beam(self.decoding))
        if why is None or last_try:
            return
        alone = len(records) == 1
        if alone:
            self._check_model()
        rest = list(left.values())
        middle = (len(rest) + 1) // 2
        for half in filter(None, (rest[:middle], rest[middle:])):
            self._decode_together(half, done, trace, tally, alone)

    def _check_model(self) -> None:
        """Called when a line failed alone: Stopped if the probe fails as well, as with a lost device or exhausted memory."""
        try:
            if self.probe is not None:
                self._call([self.probe])
        except Exception as error:
            raise Stopped(f"the model fails on everything ({reason(error)})") from error

    def _call(self, texts: Sequence[str], **options: Any) -> None:
        inputs = [conversation(text) for text in texts] if self.chat else texts
        decode(self.model, inputs, self.decoding, errors="raise", **options)  # "raise": `_decode_together` isolates the failure
