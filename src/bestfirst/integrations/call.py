"""Call: one call of `generate`, run on the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from ..engine import EngineScorer
from ..models import Budget
from ..scheduler import Job, Scheduler, Stats
from ..scoring import Score
from ..search import AnyOrderSearch, Context, Groups, Hypothesis, Result, Search, Strategy, Trace
from .candidates import Candidates
from .inputs import Inputs, PreparedModel
from .limits import Limits
from .outputs import Record
from .processors import Processors


@dataclass
class Call:
    """Everything that a call asks for, ready to be searched one way or, if that fails, another."""

    model: PreparedModel
    config: Any
    inputs: Inputs
    limits: Limits
    score: Score
    processors: Sequence[Any]
    greedy: bool
    row_budget: int | None
    trace: Callable[[int], Trace | None] | None
    stats: Stats = field(default_factory=Stats)
    results: list[Result] = field(default_factory=list)
    record: Record | None = None
    search: str = ""  # how it was searched
    _roots: dict[Hypothesis, int] = field(default_factory=dict)  # where each search begins, and its input

    def run(self, plan: Strategy, monotonic: bool) -> None:
        """Search all inputs. Raises NotMonotonic if `monotonic` and a processor lifts a log-probability above 0."""
        self.score.check(plan)
        with self.model.lock:
            self._run(plan, monotonic)
        self.model.remember()

    def _run(self, plan: Strategy, monotonic: bool) -> None:
        self.search = "greedy" if self.greedy else "level by level" if plan.level_by_level else plan.name
        self.record = Record() if self.config.return_dict_in_generate and self.config.output_scores else None
        self._roots = {}
        width = self._candidates if self.limits.others else plan.k + len(self.limits.eos)
        scorer = EngineScorer(self.model, self.score, width, self._process(monotonic), normalized=not self.greedy)
        scheduler = Scheduler(scorer, self._budget(scorer))
        found: dict[int, Result] = {}
        begun = perf_counter()
        try:
            for job, result in scheduler.run(self._jobs(plan)):
                found[job.index] = result
                if self.record is not None:
                    self.record.close(job.index, result)
        finally:
            self._add(scheduler.stats, perf_counter() - begun, scorer.model_seconds)
        self.results = [found[i] for i in range(len(self.inputs))]

    @property
    def _candidates(self) -> int:
        """How many candidates of a level Hugging Face looks at."""
        eos = self.config._eos_token_tensor
        return max(2, 1 + (0 if eos is None else len(eos))) * int(self.config.num_beams)

    def _budget(self, scorer: EngineScorer) -> Budget:
        if self.row_budget is not None:
            return Budget(self.row_budget, self.row_budget)
        return scorer.budget()

    # -- the engine's hook -----------------------------------------------------------------------------------------------

    def _process(self, monotonic: bool) -> Callable[[Sequence[Hypothesis], torch.Tensor], torch.Tensor] | None:
        """What is done to log-probabilities before the best are chosen; None where nothing is."""
        if not self.processors and self.record is None:
            return None
        processors = Processors(self.processors, self.inputs.ids, self._input_of, self.config.num_beams, monotonic)

        def process(batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
            if self.processors:
                scores = processors(batch, scores)
            if self.record is not None:
                for y, row in zip(batch, scores.clone(), strict=True):  # the next step may use the same memory
                    self.record.note(self._input_of(y), y, row)
            return scores

        return process

    def _input_of(self, y: Hypothesis) -> int:
        while y.parent is not None:
            y = y.parent
        return self._roots[y]

    # -- searches --------------------------------------------------------------------------------------------------------

    def _jobs(self, plan: Strategy) -> Iterator[Job]:
        for i in range(len(self.inputs)):
            source = self.inputs.source(i, self.model, self.limits.n_max)
            search = self._search(plan, i, int(min(source.max_length, source.limit)))
            for each in search.searches if isinstance(search, Groups) else [search]:
                self._roots[each.root] = i
            yield Job(i, source, search)

    def _search(self, plan: Strategy, i: int, n_max: int) -> Search:
        settings: dict[str, Any] = {
            "eos": self.limits.eos,
            "context": Context(n_max=n_max, source_length=self.inputs.lengths[i]),
            "n": self.config.num_return_sequences,
            "accept_truncated": True,
            "trace": self.trace(i) if self.trace is not None else None,
        }
        if not self.limits.others:
            return self.score.search(plan, **settings)

        def make(ends: Callable[[tuple[int, ...]], bool]) -> AnyOrderSearch:
            search = self.score.search(plan, ends=ends, **settings)
            if not isinstance(search, AnyOrderSearch):
                raise ValueError(f"stopping_criteria of your own do not go with score {self.score.name!r}; use max_new_tokens")
            return search

        return Candidates(make, self._candidates, self.limits.ends(self.inputs.ids[i]))

    # -- what it cost ----------------------------------------------------------------------------------------------------

    def _add(self, run: Stats, seconds: float, model_seconds: float) -> None:
        """Count a run; one that had to be given up counts too."""
        mine = self.stats
        mine.steps, mine.rows = mine.steps + run.steps, mine.rows + run.rows
        mine.seconds, mine.model_seconds = mine.seconds + seconds, mine.model_seconds + model_seconds
        mine.in_flight, mine.cache_tokens = max(mine.in_flight, run.in_flight), max(mine.cache_tokens, run.cache_tokens)

    def summary(self) -> dict[str, Any]:
        """What it cost, and how it was searched."""
        calls = sum(result.calls for result in self.results)
        return {**vars(self.stats), "calls": calls, "search": self.search, "results": self.results}
