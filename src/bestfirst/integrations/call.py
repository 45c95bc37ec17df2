"""Call: one call of `generate`, run on bestfirst's engine.

`generate.py` builds a `Call` from the arguments and runs it. A `Call` creates the engine, decides between the GPU's kernels and a
search on the host, hooks in the logits processors and stopping criteria, and collects results and costs.
"""

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
from ..search import AnyOrderSearch, Hypothesis, Result, Search, Strategy, Trace
from ..settings import Decoding
from .inputs import Inputs, PreparedModel
from .limits import CallLimits, Candidates
from .outputs import ScoreRecord
from .processors import NotData, Processors, as_edits
from .refusals import OwnLoop, positioned_padding

_log = logging.getLogger(__name__)
MADE_UP = -1e9  # the score of what `generate` fills its beams with


@dataclass
class Call:
    """The arguments of one call of `generate`, and its results. `run` may be called again with another strategy if one fails."""

    model: PreparedModel
    config: Any
    inputs: Inputs
    limits: CallLimits
    settings: dict[str, Any]  # arguments of `Decoding` other than the strategy
    processors: Sequence[Any]
    greedy: bool
    trace: Callable[[int], Trace | None] | None
    may_fall_back: bool  # whether to raise OwnLoop where `generate`'s own loop is faster, or only it gives the same output
    stats: Stats = field(default_factory=Stats)
    results: list[Result] = field(default_factory=list)
    record: ScoreRecord | None = None
    _roots: dict[Hypothesis, int] = field(default_factory=dict)  # the input's number, by the root hypothesis of its search
    _hook: Processors | None = None  # the processors as the engine calls them
    _edits: list[Edits] = field(default_factory=list)  # for each input, the processors in the form that the GPU's search takes

    def run(self, plan: Strategy, monotonic: bool) -> None:
        """Search all inputs. Raises NotMonotonic if `monotonic` and a processor lifts a log-probability above 0, and OwnLoop
        where `generate`'s own loop has to run instead.

        The engine's step may hold copies of the weights. Their checksum is verified while the search runs; if they have changed,
        the search is repeated with new copies. A traced search cannot be repeated, so its checksum is verified first.
        """
        with record_of(self.model).lock:
            summed = checksum.begin(self.model)
            if self.trace is None:
                self._run(plan, monotonic)
            changed = summed is not None and not summed.holds()  # in a way that torch's version counters do not show
            if changed:
                record_of(self.model).step = None
            if changed or self.trace is not None:
                self._run(plan, monotonic)
            checksum.make_checksum(self.model)

    def _run(self, plan: Strategy, monotonic: bool) -> None:
        self.stats.search = "greedy" if self.greedy else "level by level" if plan.level_by_level else plan.name
        self.record = ScoreRecord() if self.config.return_dict_in_generate and self.config.output_scores else None
        self._roots = {}
        context = self.inputs.ids, self._input_of, self.config.num_beams, monotonic, not self.may_fall_back, self.record
        self._hook = Processors(self.processors, *context) if self.processors or self.record is not None else None

        def adapt(scorer: Any) -> None:
            scorer.process, scorer.normalized = self._hook, not self.greedy

        decoding = Decoding(plan, nbest=self.config.num_return_sequences, accept_truncated=True, **self.settings)
        device = self.may_fall_back and self.model.on_gpu
        if self.model.on_gpu and (why := self._reason_for_host()) is not None and device:
            raise OwnLoop(why)
        try:
            hook = None if self._hook is None else adapt
            engine = engine_for(self.model, decoding, hook, edited=bool(self._edits), device=device, alone=len(self.inputs) == 1)
        except ValueError as error:
            raise OwnLoop(error) if self.may_fall_back else error from error
        if self.may_fall_back and not engine.shares_context:
            why = f"{type(self.model.model).__name__} cannot share keys and values between hypotheses"
            record_of(self.model).unshared = why
            raise OwnLoop(why)
        results: dict[int, Result] = {}
        begun = perf_counter()
        try:
            for job, result in run(engine, self._jobs(decoding)):
                results[job.index] = result
                if self.record is not None:
                    self.record.close(job.index, result)
        finally:  # the cost of an abandoned run counts too
            self.stats.add(engine.stats)
            self.stats.seconds += perf_counter() - begun
        self.results = [results[i] for i in range(len(self.inputs))]
        if self.may_fall_back and not all(result.hypotheses for result in self.results):
            raise OwnLoop("no output of an input is possible; generate makes one up")
        scores = [answer.score for result in self.results for answer in result.hypotheses]
        if self.may_fall_back and not self.greedy and min(scores, default=0.0) < MADE_UP:
            raise OwnLoop(f"an output's score is below {MADE_UP:g}; generate prefers one that it makes up")
        pad = positioned_padding(self.model.model) if self.may_fall_back else None
        if pad not in (None, *self.limits.eos) and any(pad in y.tokens for result in self.results for y in result.hypotheses):
            raise OwnLoop("the decoder gives padding a position of its own, and an output has some")

    # -- logits processors: as data for the GPU's kernels, else called by the search ---------------------------------------

    def _reason_for_host(self) -> str | None:
        """Why this call cannot be searched by the GPU's kernels; None if it can, and then `_edits` is set for it.

        Processors that are not known as data, but never raise a log-probability, run in Python between two parts of a step.
        """
        self._edits = []
        if self.limits.others:
            return f"{type(self.limits.others[0]).__name__} is asked by a search on the host"
        if self._hook is None:
            return None
        try:
            if self.record is not None:
                raise NotData("output_scores, which are noted in Python")
            ids, seq2seq = self.inputs.ids, self.model.encoder_decoder
            start = ids.shape[1] if seq2seq else 1  # of a language model's prompt, a row holds the last token only
            if seq2seq and any(len(prompt.tokens) < start for prompt in self.inputs.prompts):
                raise NotData("logits processors look at padding")
            self._edits = as_edits(self.processors, ids, self.model.vocabulary, self._hook, start, raw=self.greedy)
        except NotData as unknown:
            if not never_rise(self.processors):
                return str(unknown)
            _log.info("called between two parts of every step on the device, which is slower: %s", unknown)
            one = self._hook.one if self.processors else None
            self._edits = [Edits(b"", NOTHING, one, self.greedy, self._hook.rows)] * len(self.inputs)
        return None

    def _input_of(self, y: Hypothesis) -> int:
        """The number of the input that this hypothesis belongs to."""
        while y.parent is not None:
            y = y.parent
        return self._roots[y]

    # -- searches --------------------------------------------------------------------------------------------------------

    def _jobs(self, decoding: Decoding) -> Iterator[Job]:
        own_search = self._hook is not None or len(self.limits.others) > 0
        for i in range(len(self.inputs)):
            source = self.inputs.source(i, self.limits.n_max)
            job = Job(i, source, decoding, self.trace(i) if self.trace is not None else None)
            if own_search:
                job.begin = partial(self._search, job)
            if self._edits:
                job.edits = self._edits[i]
            yield job

    def _search(self, job: Job) -> Search:
        """The search of one input, its roots noted so that the processors can tell which input a hypothesis belongs to.
        ValueError for the user's own stopping criteria with a score that needs another kind of search than they do."""
        ended: set[tuple[int, ...]] = set()
        criteria = {"ends": ended.__contains__} if self.limits.others else {}
        search = job.decoding.search(job.source, self.limits.eos, job.trace, **criteria)
        if self.limits.others:
            if not isinstance(search, AnyOrderSearch):
                score = job.decoding.objective.name
                raise ValueError(f"stopping_criteria of your own do not go with score {score!r}; use max_new_tokens")
            eos = self.config._eos_token_tensor
            width = max(2, 1 + (0 if eos is None else len(eos))) * int(self.config.num_beams)  # candidates, as in Hugging Face
            search = Candidates(search, ended, width, partial(self.limits.ends, self.inputs.ids[job.index]))
        self._roots |= dict.fromkeys(search.roots, job.index)
        return search

    # -- costs -----------------------------------------------------------------------------------------------------------

    def summary(self) -> Stats:
        """The costs of all runs of this call, the search that ran last, and the results."""
        self.stats.calls = sum(result.calls for result in self.results)
        self.stats.results = self.results
        return self.stats
