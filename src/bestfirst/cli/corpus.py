"""From file to file: a corpus job that can be broken off at any time and goes on when the same command is given again."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ..corpus import Finished, Input, Job, Shard, Store, Survey, Target, Worker
from ..corpus.job import SHARD_LINES, Work, row_budget
from ..settings import Budget, Decoding
from .failure import INTERRUPTED, PARTLY, CommandError, say, tell, usage
from .progress import Bar
from .settings import ModelChoice, identity, signature
from .stats import Summary


def is_job(file: str | None, output: str | None) -> bool:
    """Whether both ends are files: what comes through a pipe cannot be read again, and what goes into one cannot be kept."""
    return _regular(file) is True and output not in (None, "-") and _regular(output) is not False


def _regular(path: str | None) -> bool | None:
    """Whether this is a file with a content (or a folder, which is to be refused as such); None where there is nothing."""
    if path in (None, "-"):
        return False
    try:
        mode = os.stat(str(path)).st_mode
    except OSError:
        return None
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs: an address, or "local" to start it here. `workers`: how many models are held; as many as fit without."""

    address: str
    workers: int | None = None


@dataclass(frozen=True)
class Corpus:
    """What the command line asks of a job."""

    source: Input
    target: Target
    output: str
    decoding: Decoding
    choice: ModelChoice
    shard_lines: int | None = None
    overwrite: bool = False
    cluster: Cluster | None = None

    def run(self, show_stats: bool) -> int:
        """Do what is missing; returns the exit code."""
        if os.path.exists(self.output) and os.path.samefile(self.source.path, self.output):
            raise usage(f"{self.output!r} is a file that this command reads or writes already; name another")
        survey = self.source.survey()
        with Store(self.output, self._identity(survey), self.target) as store:
            state = store.state(self.overwrite)
            if state == "complete":
                return self._nothing_to_do(store)
            if state == "begun" and store.tally.lines:
                say(f"going on: {store.tally.lines} of {survey.lines} lines are done")
            summary, signature = self._work(Job(self.source, survey, store, self.shard_lines or SHARD_LINES))
        if show_stats:
            tell(summary.table(signature))
        else:
            say(f"{summary.line()}; written to {self.output!r}")
        return PARTLY if summary.tally.failed else 0

    def _identity(self, survey: Survey) -> dict[str, Any]:
        """All that the bytes of the output depend on."""
        return {
            "input": {**vars(survey), **self.source.identity()},
            "output": self.target.identity(),
            "settings": identity(self.decoding),
            "model": self.choice.identity(),
            "shard_lines": self.shard_lines or SHARD_LINES,
        }

    def _nothing_to_do(self, store: Store) -> int:
        complete = store.manifest.complete
        assert complete is not None
        failed = f", {complete.tally.failed} of them failed" if complete.tally.failed else ""
        say(f"{self.output!r} is complete: {complete.tally.lines} lines{failed}; nothing to do")
        return PARTLY if complete.tally.failed else 0

    def _work(self, job: Job) -> tuple[Summary, str]:
        """Load the model, here or on a cluster, and let it do the shards that are missing."""
        store = job.store
        with Bar(lambda: job.survey.lines) as bar, self._pool() as pool:
            budget = store.row_budget or self.decoding.budget or row_budget(self.choice.device)
            store.begin(budget)
            bar.begin(store.tally.lines)
            summary = Summary(store.tally, store.tally.sentences)

            def notice(finished: Finished) -> None:
                for number, why in finished.troubles:
                    say(f"line {number}: {why}")
                bar.saved(store.tally)

            try:
                job.run(pool.work(budget, bar.advance), notice)
            except KeyboardInterrupt:
                kept = f"{store.tally.lines} lines are kept: the same command goes on from there"
                raise CommandError(f"interrupted; {kept}", INTERRUPTED) from None
            return summary, pool.signature()

    @contextmanager
    def _pool(self) -> Iterator[Any]:
        build = partial(build_worker, self.choice, self.decoding, self.target)
        if self.cluster is None:
            yield Here(build())
            return
        from ..cluster.pool import Pool

        with Pool(build, self.cluster.address, self.cluster.workers, self.choice.threads or 1, self.choice.device) as pool:
            yield pool


def build_worker(choice: ModelChoice, decoding: Decoding, target: Target) -> Worker:
    """A worker with its model loaded, in whatever process this runs."""
    model, decoding = choice.load(decoding)
    settings = {field.name: getattr(decoding, field.name) for field in fields(decoding) if field.name != "row_budget"}
    return Worker(model, settings, target, signature(decoding, model))


class Here:
    """One worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def signature(self) -> str:
        return self.worker.signature

    def work(self, budget: Budget | None, notice: Callable[[int], None]) -> Work:
        """Shard after shard."""

        def work(shards: Iterator[Shard]) -> Iterator[Finished]:
            for shard in shards:
                yield self.worker.work(shard, budget, partial(notice, 1))

        return work
