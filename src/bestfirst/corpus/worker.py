"""Worker: decodes records, the good ones together. What the model's own code fails on costs that line; a model that fails on
everything ends the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field, fields, replace
from functools import partial
from threading import Event
from typing import Any

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
"""Lines that are decoded and kept together: a few seconds' work on a CPU. Larger shards are no faster there (docs/corpus.md)."""
NOTHING_ALLOWED = "nothing that is allowed finished within the maximum length"
UNFINISHED, OUT_OF_CALLS = "nothing finished within the maximum length", "nothing finished within the calls allowed"
BEST_SO_FAR = "the calls allowed did not suffice; what had finished by then is written, and may not be the best"

Done = Callable[[Record, Result], None]
Tracer = Callable[[Record], Trace]
Failures = tuple[tuple[int, str], ...]
"""Which lines failed, by their numbers, and why."""


def on_gpu(device: str | None) -> bool:
    return device is not None and device.startswith("cuda")


def shard_lines(device: str | None) -> int:
    """Lines of a shard, where nobody says how many: a GPU does thousands in a second, and is idle between two shards."""
    return 8 * SHARD_LINES if on_gpu(device) else SHARD_LINES


def fixed_budget(device: str | None) -> Budget:
    """The rows of a forward pass: as asked, or what suits most models. It is not measured, as `decode` does, but fixed: then the
    bytes of an output do not depend on how busy the machine was, for the shape of a batch changes the last bits of scores."""
    return Budget(512, 64) if on_gpu(device) else Budget(128, 16)


MOST = 1e18  # of anything that is counted


@dataclass(slots=True)
class Tally:
    """Sums over lines. `sentences` are those that were given to the model, `beam_calls` what beam search makes at least."""

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
        """What was saved. ValueError if it is none."""
        if {each.name for each in fields(cls)} != set(numbers):
            raise ValueError("not the counts of a job")
        if not all(type(number) in (int, float) and 0 <= number < MOST for number in numbers.values()):
            raise ValueError("a count is not a number from 0 up")
        return cls(**numbers)

    def add(self, results: Sequence[Result], beam: int) -> None:
        """Sentences are done; with a beam of 0, beam search's calls are none that they could be compared with."""
        self.sentences += len(results)
        self.calls += sum([result.calls for result in results])
        self.beam_calls += sum([beam_calls(result, beam) for result in results]) if beam else 0
        self.rows += sum([result.rows for result in results])
        self.exact += sum([result.exact for result in results])

    def include(self, other: Tally, times: int = 1) -> None:
        """These lines too; with `times=-1`, no more."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + times * getattr(other, each.name))

    @property
    def saved(self) -> float:
        """The share of beam search's calls that was not made, at least."""
        return max(0.0, 1 - self.calls / self.beam_calls) if self.beam_calls else 0.0


def beam_calls(result: Result, beam: int) -> int:
    """How many calls beam search makes at least for the same answers, where finished hypotheses leave the beam.

    To find an answer of n tokens it scores the empty hypothesis and then a full beam of each length from 1 to n - 1, however
    well it is stopped (`tests/corpus/test_tally.py`). Where nothing finished it scores no fewer than were scored here.
    """
    answers = result.hypotheses
    longest = len(answers[0].tokens) if len(answers) == 1 else max((len(answer.tokens) for answer in answers), default=0)
    return 1 + beam * (longest - 1) if longest else result.calls


@dataclass(frozen=True)
class ShardResult:
    """A shard that is done: what is written for it, what it cost, which of its lines failed, and a digest of its records."""

    index: int
    data: bytes
    tally: Tally
    failures: Failures = ()
    source: str = ""


Work = Callable[[Iterator[Shard]], Iterable[ShardResult]]
"""Does shards, and hands them back in any order. It takes the next one when it has room for it, so that few are in memory."""


@dataclass
class Worker:
    """A model with its settings."""

    model: Any
    decoding: Decoding
    target: Target = field(default_factory=Target)
    signature: str = ""  # what makes its results what they are, in one line
    chat: bool = False  # whether texts are what is said to a chat model, not what it goes on with
    probe: str | None = None  # a text that the model can decode, as long as it can decode anything

    @property
    def beam(self) -> int:
        """The beam by which calls are compared; 0 where beam search's cost is not known."""
        decoding = self.decoding
        full = decoding.allowed is None and not decoding.processors  # where few tokens are allowed, beams are not
        comparable = decoding.finished == "leave" and decoding.strategy == "best-first" and full
        return decoding.beam if comparable else 0

    def decode_shard(self, shard: Shard, budget: Budget | None = None, notice: Callable[[], None] | None = None) -> ShardResult:
        """Decode a shard by itself. With the same budget the bytes are the same, whatever was decoded before and where."""
        if budget is not None and budget != self.decoding.row_budget:
            self.decoding = self.decoding.using(row_budget=budget)
        self.probe = self.probe or "."  # nobody sees the lines of a file fail one by one: do not go on with a dead model
        source = shard.digest
        shard = replace(shard, records=[self.target.admit(record) for record in shard.records])
        results: dict[int, Result] = {}

        def done(record: Record, result: Result) -> None:
            results[record.number] = result
            if notice is not None:
                notice()  # of one more line

        tally = self.decode(shard.records, done)
        inorder = [results[record.number] for record in shard.records]
        failures = [(r.number, why) for r, result in zip(shard.records, inorder, strict=True) if (why := self.failure(result))]
        tally.failed = len(failures)
        return ShardResult(shard.index, self.target.encode(shard, inorder), tally, tuple(failures), source)

    def work(self, budget: Budget | None, notice: Callable[[int], None], shards: Iterator[Shard]) -> Iterator[ShardResult]:
        """Shard after shard, in this process; two at a time where threads can."""
        if can_run_two_engines(self.model, self.decoding):
            return self._two_at_a_time(budget, notice, shards)
        return (self.decode_shard(shard, budget, partial(notice, 1)) for shard in shards)

    def _two_at_a_time(
        self, budget: Budget | None, notice: Callable[[int], None], shards: Iterator[Shard]
    ) -> Iterator[ShardResult]:
        free = [replace(self, model=self.model.second), self]
        over = Event()

        def tell() -> None:
            if over.is_set():
                raise Stopped("the work was broken off")
            notice(1)

        def decode(worker: Worker, shard: Shard) -> tuple[Worker, ShardResult]:
            with side_by_side():
                return worker, worker.decode_shard(shard, budget, tell)

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
        """Decode these records; `done` is told of each. Nothing is asked of the model for those without text.

        Stopped if the model fails on a line and then on one that it could decode before.
        """
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
        """Why a line has no output, or none that is known to be right, if it should have one."""
        if result.status == "error":
            return result.message
        if result.status == "complete" or (self.target.partial and self.target.shown(result)):
            return None
        if result.status == "budget":
            return BEST_SO_FAR if result.hypotheses else OUT_OF_CALLS
        return UNFINISHED if self.decoding.allowed is None else NOTHING_ALLOWED

    def _decode_together(
        self, records: Sequence[Record], done: Done, trace: Tracer | None, tally: Tally, last_try: bool = False
    ) -> None:
        """Decode these records together. If that fails, do those that are left in halves, until the one at fault is alone; that
        one once more, for what failed may have been the machine."""
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
        except Exception as error:  # of the model's or a score's own code
            why = reason(error)  # and no more: the exception holds the memory that may have run out
        if last_try:
            for index in list(left):
                finished(index, Result(status="error", message=why))
        tally.add(results, self.beam)
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
        """A line failed alone. Is it the line, or is a device lost, or its memory gone?"""
        try:
            if self.probe is not None:
                self._call([self.probe])
        except Exception as error:
            raise Stopped(f"the model fails on everything ({reason(error)})") from error

    def _call(self, texts: Sequence[str], **watching: Any) -> None:
        inputs = [conversation(text) for text in texts] if self.chat else texts
        decode(self.model, inputs, self.decoding, errors="raise", **watching)  # for who is at fault is found out here
