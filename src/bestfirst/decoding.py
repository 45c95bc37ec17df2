"""decode: inputs in, results out, for any model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from .models import Budget, Model, Source
from .scheduler import Job, Scheduler, Stats
from .scoring import Score, named_score
from .search import Context, Finished, Heuristic, Result, Stop, Strategy, Trace
from .strategies import by_method, named_strategy, stopping

Read = tuple[int, Any, Source]
"""An input: its number, as it was given, and as the model reads it."""


LEVELS, FULL = 4, 512  # inputs whose levels have room in a step, and rows beyond which more bring nothing


@dataclass(frozen=True)
class Task:
    """What is asked of an input: how to search, for what, and within which limits. Makes jobs for the scheduler."""

    plan: Strategy
    score: Score
    nbest: int = 1
    max_length: int | Callable[[int], int] | None = None
    accept_truncated: bool = False
    max_calls: int | None = None

    def __post_init__(self) -> None:
        self.score.check(self.plan)
        if isinstance(self.max_length, int) and self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")

    def n_max(self, source: Source) -> int:
        """The most tokens that an output for this input may have."""
        wanted = self.max_length(source.length) if callable(self.max_length) else self.max_length
        return int(min(source.max_length if wanted is None else wanted, source.limit))

    def job(self, index: int, source: Source, eos: Collection[int], trace: Trace | None = None) -> Job:
        """The search of one input, ready to begin."""
        n_max = self.n_max(source)
        begin = partial(
            self.score.search,
            self.plan,
            eos=eos,
            context=Context(n_max=n_max, source_length=source.length),
            n=self.nbest,
            accept_truncated=self.accept_truncated,
            max_calls=self.max_calls,
            trace=trace,
        )
        return Job(index, source, begin(), begin if trace is None else None)


def decode(
    model: Model,
    inputs: Iterable[Any],
    *,
    strategy: str | Strategy = "best-first",
    beam: int = 5,
    score: str | Score = "logprob",
    score_options: Mapping[str, Any] | None = None,
    method: str = "exact",
    nbest: int = 1,
    max_length: int | Callable[[int], int] | None = None,
    finished: Finished = "leave",
    prefix: Any = None,
    row_budget: int | None = None,
    max_cache_tokens: float = inf,
    heuristic: Heuristic | None = None,
    stop: str | Stop | None = None,
    stop_options: Mapping[str, Any] | None = None,
    max_calls: int | None = None,
    queue_capacity: int | None = None,
    accept_truncated: bool = False,
    trace: bool | Callable[[int], Trace | None] | None = None,
    progress: Callable[[int, Result], None] | None = None,
    stats: Stats | None = None,
) -> list[Result]:
    """Decode every input; one `Result` for each, in order.

    An input that cannot be decoded gets a result with `status="error"` and a `message`; the others are not disturbed.

    score          what a hypothesis is worth: an object of `bestfirst.scoring`, or its name and parameters (`score_options`)
    method         for scores that are not monotonic: "exact", or the paper's "stopping" or "heuristic" (no guarantee)
    stop           a stopping rule other than the strategy's own, an object or its name: "exhausted", "opennmt", "shrinking",
                   "huang", "hf-true", "hf-false", "hf-never", "patience" (with its factor in `stop_options`)
    max_length     counts generated tokens, EOS included, BOS not; a number, or a function of |x|; by default the model's own
                   limit, else 2|x| + 10
    prefix         the forced start of every output, a text or token ids (Hugging Face models); it is not scored
    row_budget     rows in a forward pass, shared by all inputs in flight; by default what suits the model, measured once
    max_cache_tokens  tokens held for all inputs in flight: fewer are let in when it is reached. Results depend on neither
    max_calls      give up on an input after so many calls (`status="budget"`)
    queue_capacity memory-reduced search: at most this many hypotheses wait (the paper's gamma * k)
    trace          whether to record every search (`Result.trace`, for `bestfirst.view`); or a function from an input's number to
                   where its search is recorded, None for nowhere
    progress       called with an input's number and result, as soon as it is done
    stats          filled with what the decode cost as a whole
    """
    if isinstance(inputs, str):
        raise ValueError("inputs must be a list of inputs, got one text; write decode(model, [text])")
    plan = named_strategy(strategy, beam=beam, finished=finished, heuristic=heuristic)
    worth = named_score(score, **(score_options or {}))
    if stop is not None:
        plan = stopping(plan, stop, **(stop_options or {}))
    plan = by_method(plan, method, worth)
    if queue_capacity is not None:
        plan = plan.using(queue_capacity=queue_capacity)
    task = Task(plan, worth, nbest, max_length, accept_truncated, max_calls)
    results: dict[int, Result] = {}
    traces: dict[int, Trace] = {}

    def record(index: int, raw: Any) -> Trace | None:
        recorded = trace(index) if callable(trace) else Trace() if trace else None
        if recorded is not None:
            recorded.describe(model, raw)
            traces[index] = recorded
        return recorded

    def done(index: int, result: Result) -> None:
        results[index] = result
        result.trace = traces.pop(index, None)
        if result.trace is not None:
            result.trace.text(result)
        if progress is not None:
            progress(index, result)

    def read(who: Any) -> Iterator[Read]:
        reader = None
        for index, raw in enumerate(inputs):
            try:
                reader = reader or who.reader(prefix)
                source = reader(raw)
            except ValueError as error:
                done(index, Result(status="error", message=str(error)))
                continue
            yield index, raw, source

    begun = perf_counter()
    total = Stats()
    pilot = None if trace or row_budget is not None or max_cache_tokens < inf else model.pilot(task)
    if pilot is not None:
        for index, result in pilot.run(read(model)):
            done(index, result)
        total = pilot.stats
    if pilot is None or pilot.left:
        scorer = model.scorer(worth, inf if plan.k == inf else int(plan.k) + len(model.eos))
        budget = _budget(scorer.budget(), plan) if row_budget is None else Budget(row_budget, row_budget)
        begun = begun if pilot is not None else perf_counter()
        scheduler = Scheduler(scorer, budget, max_cache_tokens)
        waiting = read(scorer) if pilot is None else iter(pilot.left)
        for job, result in scheduler.run(
            task.job(index, source, scorer.eos, record(index, raw)) for index, raw, source in waiting
        ):
            done(job.index, result)
        total = scheduler.stats
        total.model_seconds = scorer.model_seconds
    if stats is not None:
        total.seconds = perf_counter() - begun
        vars(stats).update(vars(total))
    return [results[index] for index in range(len(results))]


def _budget(measured: Budget, plan: Strategy) -> Budget:
    """What suits the model; level by level, where all rows are sure to be needed, with room for the levels of a few inputs."""
    if not plan.level_by_level or plan.k == inf:
        return measured
    return Budget(max(measured.rows, min(FULL, LEVELS * int(plan.k))), measured.free)
