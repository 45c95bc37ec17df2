"""Call: one call of `generate`, run on the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from ..engine import Job, Stats, engine_for, run
from ..engine.logits_edits import NOTHING, Edits
from ..engine.logits_processing import never_rise
from ..engine.model_record import record_of
from ..engine.steps import checksum
from ..search import AnyOrderSearch, Groups, Hypothesis, Result, Search, Strategy, Trace
from ..settings import Decoding
from .inputs import Inputs, PreparedModel
from .limits import CallLimits, Candidates
from .outputs import ScoreRecord
from .processors import NotData, Processors, recognized
from .refusals import OwnLoop, placed_padding

_log = logging.getLogger(__name__)


@dataclass
class Call:
    """Everything that a call asks for, ready to be searched one way or, if that fails, another."""

    model: PreparedModel
    config: Any
    inputs: Inputs
    limits: CallLimits
    settings: dict[str, Any]  # of `Decoding`, beside the strategy
    processors: Sequence[Any]
    greedy: bool
    trace: Callable[[int], Trace | None] | None
    may_be_slower: bool  # whether to give up where `generate`'s own loop is faster
    stats: Stats = field(default_factory=Stats)
    results: list[Result] = field(default_factory=list)
    record: ScoreRecord | None = None
    _roots: dict[Hypothesis, int] = field(default_factory=dict)  # where each search begins, and its input
    _applied: Processors | None = None
    _edits: list[Edits] = field(default_factory=list)  # of each input, where searches on a GPU can do what is asked

    def run(self, plan: Strategy, monotonic: bool) -> None:
        """Search all inputs. Raises NotMonotonic if `monotonic` and a processor lifts a log-probability above 0."""
        with record_of(self.model).lock:
            summed = checksum.begin(self.model)
            if self.trace is None:
                self._run(plan, monotonic)
            changed = summed is not None and not summed.holds()  # by somebody, where torch does not count it
            if changed:
                record_of(self.model).step = None
            if changed or self.trace is not None:  # what is traced can be searched once only
                self._run(plan, monotonic)
            checksum.make_checksum(self.model)

    def _run(self, plan: Strategy, monotonic: bool) -> None:
        self.stats.search = "greedy" if self.greedy else "level by level" if plan.level_by_level else plan.name
        self.record = ScoreRecord() if self.config.return_dict_in_generate and self.config.output_scores else None
        self._roots = {}
        about = self.inputs.ids, self._input_of, self.config.num_beams, monotonic, not self.may_be_slower, self.record
        self._applied = Processors(self.processors, *about) if self.processors or self.record is not None else None

        def adapt(scorer: Any) -> None:
            scorer.process, scorer.normalized = self._applied, not self.greedy

        decoding = Decoding(plan, nbest=self.config.num_return_sequences, accept_truncated=True, **self.settings)
        device = self.may_be_slower and self.model.on_gpu
        if self.model.on_gpu and (why := self._why_host()) is not None and device:
            raise OwnLoop(why)
        try:
            hook = None if self._applied is None else adapt
            engine = engine_for(self.model, decoding, hook, edited=bool(self._edits), device=device, alone=len(self.inputs) == 1)
        except ValueError as error:
            raise OwnLoop(error) if self.may_be_slower else error from error
        if self.may_be_slower and not engine.shares_context:
            raise OwnLoop(f"{type(self.model.model).__name__} cannot share keys and values between hypotheses")
        found: dict[int, Result] = {}
        begun = perf_counter()
        try:
            for job, result in run(engine, self._jobs(decoding)):
                found[job.index] = result
                if self.record is not None:
                    self.record.close(job.index, result)
        finally:  # a run that had to be given up counts too
            self.stats.add(engine.stats)
            self.stats.seconds += perf_counter() - begun
        self.results = [found[i] for i in range(len(self.inputs))]
        if self.may_be_slower and not all(result.hypotheses for result in self.results):
            raise OwnLoop("no output of an input is possible; generate makes one up")
        pad = placed_padding(self.model.model) if self.may_be_slower else None
        if pad not in (None, *self.limits.eos) and any(pad in y.tokens for result in self.results for y in result.hypotheses):
            raise OwnLoop("the decoder gives padding a position of its own, and an output has some")

    # -- what is done to log-probabilities before the best are chosen -----------------------------------------------------

    def _why_host(self) -> str | None:
        """What of this call's own the searches of a GPU do not know. Where it is data, or can be asked for between two parts of a
        step, it is at hand from now on."""
        self._edits = []
        if self.limits.others:
            return f"{type(self.limits.others[0]).__name__} is asked by a search on the host"
        if self._applied is None:
            return None
        try:
            if self.record is not None:
                raise NotData("output_scores, which are noted in Python")
            self._edits = self._as_data(self._applied)
        except NotData as unknown:
            if not never_rise(self.processors):
                return str(unknown)
            _log.info("called between two parts of every step on the device, which is slower: %s", unknown)
            one = self._applied.one if self.processors else None
            self._edits = [Edits(b"", NOTHING, one, self.greedy, self._applied.rows)] * len(self.inputs)
        return None

    def _as_data(self, processors: Processors) -> list[Edits]:
        ids = self.inputs.ids
        start = ids.shape[1] if self.model.encoder_decoder else 1  # what rows of a language model know of its prompt
        if self.model.encoder_decoder and any(len(prompt.tokens) < start for prompt in self.inputs.prompts):
            raise NotData("logits processors look at padding")
        return recognized(self.processors, ids, self.model.vocabulary, processors, start, raw=self.greedy)

    def _input_of(self, y: Hypothesis) -> int:
        while y.parent is not None:
            y = y.parent
        return self._roots[y]

    # -- searches --------------------------------------------------------------------------------------------------------

    def _jobs(self, decoding: Decoding) -> Iterator[Job]:
        own = self._applied is not None or len(self.limits.others) > 0
        for i in range(len(self.inputs)):
            source = self.inputs.source(i, self.limits.n_max)
            job = Job(i, source, decoding, self.trace(i) if self.trace is not None else None)
            if own:
                job.begin = partial(self._search, job)
            if self._edits:
                job.edits = self._edits[i]
            yield job

    def _search(self, job: Job) -> Search:
        """A search that the processors know by its root."""
        search = self._asking(job) if self.limits.others else job.decoding.search(job.source, self.limits.eos, job.trace)
        for each in search.searches if isinstance(search, Groups) else [search]:
            self._roots[each.root] = job.index
        return search

    def _asking(self, job: Job) -> Candidates:
        """A search that asks the user's stopping criteria."""
        ended: set[tuple[int, ...]] = set()
        search = job.decoding.search(job.source, self.limits.eos, job.trace, ends=ended.__contains__)
        if not isinstance(search, AnyOrderSearch):
            score = job.decoding.objective.name
            raise ValueError(f"stopping_criteria of your own do not go with score {score!r}; use max_new_tokens")
        eos = self.config._eos_token_tensor
        width = max(2, 1 + (0 if eos is None else len(eos))) * int(self.config.num_beams)  # as many as Hugging Face looks at
        return Candidates(search, ended, width, partial(self.limits.ends, self.inputs.ids[job.index]))

    # -- what it cost ----------------------------------------------------------------------------------------------------

    def summary(self) -> Stats:
        """What it cost, and how it was searched."""
        self.stats.calls = sum(result.calls for result in self.results)
        self.stats.results = self.results
        return self.stats
