"""CorpusJob: decodes from file to file; it can be interrupted at any time, and the same command resumes it. `CostSummary` prints
the costs of a job or a stream."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from ..corpus import Checkpoint, Input, ShardResult, Survey, Tally, Target, Worker
from ..corpus.worker import BEST_SO_FAR, NOTHING_ALLOWED, OUT_OF_CALLS, UNFINISHED, fixed_budget, on_gpu, shard_lines
from ..errors import Conflict, InputChanged, Stopped
from ..settings import Decoding
from .console import INTERRUPTED, PARTLY, Bar, CommandError, print_to_stderr, progress_bar, say, usage
from .model_choice import ModelChoice, identity
from .options import CorpusOptions, LineOptions

REMEDIES = {
    UNFINISHED: "raise --max-length, or see what there is with --partial",
    NOTHING_ALLOWED: "raise --max-length, if the model can write what is allowed at all",
    OUT_OF_CALLS: "raise --max-calls, or see what there is with --partial",
    BEST_SO_FAR: "raise --max-calls, or be content with it by --partial",
}


def say_failure(number: int, why: str) -> None:
    """Print which line has no output, why, and what may help."""
    say(f"line {number}: {why}" + (f"; {REMEDIES[why]}" if why in REMEDIES else ""))


def show_saved(bar: Bar, tally: Tally) -> None:
    """Show beside the bar the share of beam search's calls that was saved so far."""
    if tally.beam_calls:
        bar(saved=f"{tally.saved:.0%} of calls saved")


def is_job(file: str | None, output: str | None) -> bool:
    """Whether input and output are regular files. A pipe cannot be read again on resuming, nor keep what was done."""
    return _regular(file) is True and output not in (None, "-") and _regular(output) is not False


def _regular(path: str | None) -> bool | None:
    """Whether this is a regular file (or a folder, which gets its own error later); None if it does not exist."""
    if path in (None, "-"):
        return False
    try:
        mode = os.stat(str(path)).st_mode
    except OSError:
        return None
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


@dataclass(frozen=True)
class CorpusJob:
    """One command line of `translate` or `complete`. `run` decodes from file to file; streams use `worker` only."""

    source: Input
    target: Target
    output: str  # `-` for standard output
    decoding: Decoding
    choice: ModelChoice
    corpora: CorpusOptions
    lines: LineOptions
    chat: bool = False

    @property
    def shard_lines(self) -> int:
        return self.corpora.shard_lines or shard_lines(self.choice.device)

    def worker(self) -> Worker:
        """A worker with its model loaded, in this process."""
        model, decoding = self.choice.load(self.decoding)
        if self.chat and not model.chats:
            raise usage(f"model {model.name!r} has no chat template; leave out --chat, or choose a chat model")
        return Worker(model, decoding, self.target, self.chat)

    def run(self) -> int:
        """Do the shards that are missing; returns the exit code."""
        survey = self.source.survey()
        checkpoint = Checkpoint(self.output, self._identity(survey), self.target)
        if checkpoint.owns(self.source.path):
            raise usage(f"{self.source.path!r} is a file that this command reads or writes already; name another")
        with checkpoint:
            try:
                state = checkpoint.state(self.lines.overwrite, self.lines.retry_failed)
            except Conflict as error:
                raise usage(f"{error}; replace it with --overwrite, or name another output") from error
            if state == "complete":
                return self._nothing_to_do(checkpoint)
            if state == "begun" and checkpoint.tally.lines:
                say(f"going on: {checkpoint.tally.lines} of {survey.lines} lines are done")
            summary, signature = self._work(checkpoint, survey)
        if self.lines.stats:
            print_to_stderr(summary.table(signature))
        else:
            say(f"{summary.line()}; written to {self.output!r}")
        return PARTLY if summary.tally.failed else 0

    def _identity(self, survey: Survey) -> dict[str, Any]:
        """Everything that the bytes of the output depend on; kept in the manifest."""
        return {
            "input": {**vars(survey), **self.source.identity()},
            "output": self.target.identity(),
            "settings": identity(self.decoding),
            "model": self.choice.identity(),
            "shard_lines": self.shard_lines,
            **({"chat": True} if self.chat else {}),
        }

    def _nothing_to_do(self, checkpoint: Checkpoint) -> int:
        complete = checkpoint.manifest.complete
        assert complete is not None
        failed = f", {complete.tally.failed} of them failed (see --retry-failed)" if complete.tally.failed else ""
        say(f"{self.output!r} is complete: {_lines(complete.tally)}{failed}; nothing to do")
        return PARTLY if complete.tally.failed else 0

    def _work(self, checkpoint: Checkpoint, survey: Survey) -> tuple[CostSummary, str]:
        """Load the model, here or on a Ray cluster, and decode the missing shards. Returns the costs and the signature."""
        budget = checkpoint.manifest.row_budget or self.decoding.budget or fixed_budget(self.choice.device)
        fixed = replace(self, decoding=self.decoding.using(row_budget=budget))
        with progress_bar(lambda: survey.lines) as bar, fixed._pool() as pool:
            checkpoint.begin(budget)
            bar(start=True, completed=checkpoint.tally.lines, description=self.choice.doing)
            summary = CostSummary(checkpoint.tally, checkpoint.tally.sentences)

            def notice(result: ShardResult) -> None:
                for number, why in result.failures:
                    say_failure(number, why)
                show_saved(bar, checkpoint.tally)

            try:
                work = partial(pool.work, lambda lines: bar(advance=lines))
                checkpoint.run(self.source, survey, work, self.shard_lines, notice)
            except InputChanged:
                raise
            except (Stopped, KeyboardInterrupt) as error:
                kept = f"{checkpoint.tally.lines} lines are kept: the same command goes on from there"
                if isinstance(error, Stopped):
                    raise CommandError(f"{error}; {kept}") from error
                raise CommandError(f"interrupted; {kept}", INTERRUPTED) from None
            return summary, pool.signature

    def _pool(self) -> AbstractContextManager[Any]:
        if self.corpora.ray is None:
            return nullcontext(self.worker())
        from ..cluster import Pool

        return Pool(self.worker, self.corpora.ray, self.corpora.workers, self.choice.threads or 1, on_gpu(self.choice.device))


# -- costs -------------------------------------------------------------------------------------------------------------


@dataclass
class CostSummary:
    """The costs of all lines of a job, and the speed of this run, which did only some of them if the job was resumed."""

    tally: Tally = field(default_factory=Tally)
    before: int = 0  # sentences that were done by earlier runs
    began: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    @property
    def rate(self) -> float:
        return (self.tally.sentences - self.before) / self.seconds

    def line(self) -> str:
        """The most important figures in one line."""
        tally = self.tally
        each = max(1, tally.sentences)
        saved = f"; beam search makes at least {tally.beam_calls / each:.1f}" if tally.beam_calls else ""
        failed = f", {tally.failed} failed" if tally.failed else ""
        calls = f"{tally.calls / each:.1f} calls a sentence{saved}"
        return f"{_lines(tally)}{failed}, {self.seconds:.1f} seconds ({self.rate:.1f} sentences a second), {calls}"

    def table(self, signature: str) -> str:
        """All figures, one in each line."""
        tally, seconds = self.tally, self.seconds
        each = max(1, tally.sentences)
        earlier = f", {self.before} of them before" if self.before else ""
        least = f"{tally.beam_calls / each:.1f} a sentence"
        lines = [
            f"sentences {tally.sentences}" + (f" ({tally.failed} failed)" if tally.failed else "") + earlier,
            f"calls     {tally.calls} ({tally.calls / each:.1f} a sentence): hypotheses that had to be scored",
            f"saved     {tally.saved:.0%} of beam search's calls at least, of {least}"
            if tally.saved
            else f"saved     nothing: beam search needs {least} at least",
            f"rows      {tally.rows} ({tally.rows / each:.1f} a sentence): hypotheses that were scored, ahead of need included",
            f"steps     {tally.steps} ({tally.rows / max(1, tally.steps):.1f} rows each): forward passes",
            f"exact     {tally.exact} of {tally.sentences}: proven to be beam search's answer",
            f"seconds   {seconds:.2f} ({tally.model_seconds:.2f} in the model): {self.rate:.1f} sentences a second",
            *([f"memory    {most} MB at most"] if (most := peak_memory_mb()) is not None else []),
            f"signature {signature}",
        ]
        return "\n".join(line for line in lines if tally.beam_calls or not line.startswith("saved"))


def _lines(tally: Tally) -> str:
    return f"{tally.lines} line{'s' * (tally.lines != 1)}"


def peak_memory_mb() -> int | None:
    """The peak resident memory of this process in MB; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:  # on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1 << 20 if sys.platform == "darwin" else 1 << 10)
