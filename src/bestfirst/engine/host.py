"""HostEngine: a scheduler for searches on the host, which share a row budget in each forward pass.

The hypotheses that searches certainly need next are scheduled first. The rest of the budget goes to speculation: hypotheses that
searches are most likely to need later. Searches accept scores in any order (`bestfirst.search`), so neither results nor `calls`
depend on the budget, on which inputs share it or on their arrival order (`tests/engine/test_host.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ..drafting import MAX_DRAFT_TOKENS
from ..search import Answer, AnyOrderSearch, Hypothesis, LevelSearch, Result, StrictSearch, Successors
from ..settings import Budget, Decoding
from .engine import Job, Running, Stats, check_compatible, item_of, set_text, text_tokens, without_tokens
from .logits_processing import bounds_hold
from .scorer import Scorer
from .user_model import ModelFailure

if TYPE_CHECKING:
    from .drafts import Drafting

WINDOW = 16  # inputs read ahead and sorted by length, per row of the budget
LEVEL_INPUTS, MAX_LEVEL_ROWS = 4, 512  # inputs whose levels fit in a step; rows from which on more gain nothing

Plan = list[tuple[Running, list[Hypothesis]]]
FINISHED: list[Hypothesis] = []  # marks a finished search in a plan; another empty list means no rows in this step


class HostEngine:
    """Runs searches on a `Scorer`. A step admits waiting inputs, schedules rows, yields finished jobs, runs one forward pass.

    `max_cache_tokens` of the settings: an input is admitted only if, as far as predictable, the inputs in flight will together
    hold no more tokens than that. If they come to need more, the latest are preempted and start over later. Only a single input
    that needs more by itself exceeds the bound; no input is ever abandoned for it. A traced search cannot start over.
    """

    def __init__(self, scorer: Scorer, decoding: Decoding, drafting: Drafting | None = None) -> None:
        self.scorer = scorer
        self.drafting = drafting
        self.decoding = decoding
        self.budget = decoding.budget or suitable_budget(scorer.budget(), decoding)
        self.max_cache_tokens = decoding.max_cache_tokens
        self._stats = Stats(engine="host")
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        self._by_job: dict[Job, Running] = {}
        self._failed: dict[Job, Result] = {}  # failed jobs, not yielded yet
        self._submitted = 0
        self._cache_ratio: dict[tuple[int, str], float] = {}  # by `Running.kind`: largest number of cache tokens per source token

    @property
    def stats(self) -> Stats:
        self._stats.model_seconds = self.scorer.model_seconds
        return self._stats

    @property
    def wants(self) -> int:
        """A window of inputs, so that those of similar length can be encoded together."""
        return 0 if self._waiting else WINDOW * self.budget.rows

    @property
    def slots(self) -> int:
        return self.budget.rows

    @property
    def in_flight(self) -> list[Job]:
        return [running.job for running in self._active]

    @property
    def jobs(self) -> list[Job]:
        """Submitted jobs that are not finished."""
        return [*self._by_job, *self._failed]

    @property
    def shares_context(self) -> bool:
        return self.scorer.shares_context

    pauses = True

    def __bool__(self) -> bool:
        return bool(self._by_job or self._failed)

    def submit(self, *jobs: Job) -> None:
        """Queues jobs, the longest inputs of a call first, so that inputs encoded together have similar lengths."""
        for job in sorted(jobs, key=lambda job: -job.source.length):
            check_compatible(job.decoding, self.decoding)
            running = self._by_job[job] = self._prepare(job)
            self._waiting.append(running)
        self._submitted += len(jobs)

    def _prepare(self, job: Job) -> Running:
        search = job.search(self.scorer)
        if isinstance(search, AnyOrderSearch) and search.policy.by_score:
            search.ask_again()
        drafts = self.drafting is not None and isinstance(search, (StrictSearch, LevelSearch, AnyOrderSearch))
        return Running(job, search, drafts=self.drafting.start(job) if drafts else None)  # type: ignore[union-attr]

    def cancel(self, job: Job) -> None:
        if self._failed.pop(job, None) is not None:
            return
        if job not in self._by_job:
            raise ValueError("this job is not in the engine: it is over, or was never submitted")
        running = self._by_job[job]
        if running in self._active:
            self._active.remove(running)
            self._release(running)
        else:
            self._waiting.remove(running)
        self._forget(running)

    def certified(self, job: Job) -> list[Answer]:
        answers = self._by_job[job].search.certified()
        for answer in answers:
            self._annotate(job, answer)
        return answers

    def _annotate(self, job: Job, answer: Answer) -> None:
        """Sets an answer's text and item number."""
        eos = job.decoding.ending(self.scorer.eos)
        set_text(answer, job.decoding, eos, self.scorer.text(job.source, text_tokens(answer, job.decoding, eos)))
        answer.item = item_of(job, answer, eos)

    def step(self) -> Iterator[tuple[Job, Result]]:
        if self.decoding.budget is None:
            self.budget = suitable_budget(self.scorer.budget(), self.decoding)
        while self._failed:
            yield self._failed.popitem()
        self._admit()
        self._preempt()
        plan = self._schedule()
        self._stats.in_flight = max(self._stats.in_flight, len(self._active))
        finished = [running for running, work in plan if work is FINISHED]
        if finished:
            self._active = [running for running, work in plan if work is not FINISHED]
        for running in finished:
            yield running.job, self._finish(running)
        self._forward(plan)
        self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens())

    def _admit(self) -> None:
        """Moves inputs from the queue into flight, a quarter of the budget at a time, so that they are encoded in batches.

        Each reserves a share of the memory bound, estimated from its length and the largest need of earlier inputs of its kind.
        """
        waiting, active = self._waiting, self._active
        if not waiting:
            return
        rows = self.budget.rows - sum(running.rows_per_step for running in active if not running.job.paused)
        if active and rows < max(waiting[0].rows_per_step, self.budget.rows // 4):
            return
        free = self.max_cache_tokens - sum(running.reserved_tokens for running in active)
        entering: list[Running] = []
        while waiting and (rows >= waiting[0].rows_per_step or not (active or entering)):
            running = waiting[0]
            running.memory_share = self._cache_ratio.get(running.kind, 3.0) * (running.length + 1) * running.rows_per_step
            if running.memory_share > free and (active or entering):
                break
            rows -= running.rows_per_step
            free -= running.memory_share
            entering.append(waiting.popleft())
        entering.sort(key=lambda running: -running.length)  # similar lengths are encoded together, with little padding
        if entering:
            self.scorer.start([(running.search.root, running.job.source) for running in entering])
            active += entering

    def _preempt(self) -> None:
        """While the next step could exceed the memory bound, puts the latest input back at the queue's head, to start over."""
        active = self._active
        while len(active) > 1:
            next_step = self.scorer.cache_tokens() + sum(running.rows_per_step for running in active)
            latest = active[-1]
            if next_step <= self.max_cache_tokens or latest.job.trace is not None:
                return
            self._release(latest)
            latest.search.dismantle()
            active.pop()
            if latest.drafts is not None:
                latest.drafts.close(())
            again = self._by_job[latest.job] = self._prepare(latest.job)
            self._waiting.appendleft(again)

    def _schedule(self) -> Plan:
        """Plans a step: the hypotheses to score for each search, the needed ones, then promising ones in the rows left."""
        active, rows_left, free = self._active, self.budget.rows, self._cheap_rows()
        unreserved = self.max_cache_tokens - sum(running.reserved_tokens for running in active)  # memory left for speculation
        runnable = sum(not running.job.paused for running in active)
        spare = int(max(0, min(rows_left - runnable, free - runnable, unreserved)))
        per_search = min(spare, 1 + 2 * spare // max(1, runnable))  # candidates per search; the best of all are taken
        plan: Plan = []
        candidates: list[tuple[float, int, Hypothesis]] = []
        for place, running in enumerate(active):
            if running.job.paused or (place and rows_left < 1):
                plan.append((running, []))  # no rows in this step
                continue
            search = running.search
            # With k rows per step a search takes no more steps than beam search; more rows would not make it faster.
            m = rows_left if search.whole_levels else min(1 + per_search, search.level_rows)
            drafts, commit = running.drafts, partial(self._commit, running)
            work = search.frontier(m) if drafts is None else drafts.frontier(search, m, commit)
            if spare and not search.whole_levels:
                candidates += [(work[0].bound - y.bound, place, y) for y in work[1:]]
                work = work[:1]
            rows_left -= len(work)
            plan.append((running, work or FINISHED))
        candidates.sort(key=lambda candidate: candidate[0])
        for rank, (_, place, y) in enumerate(candidates[: min(spare, rows_left)], 1):
            plan[place][0].speculated += 1
            plan[place][1].append(y)
            if self._submitted == 1:
                plan[place][0].speculation.append((rank, y))
        if self.drafting is not None:
            drafting = [(running.drafts, work) for running, work in plan if running.drafts is not None]
            room = min(self.budget.rows, unreserved) - sum(len(work) for _, work in plan)
            self.drafting.fill_step(drafting, int(room), self.budget, runnable, self.scorer.vocabulary)
        return plan

    def _cheap_rows(self) -> int:
        """The number of rows in a step that add little to its time."""
        free = self.budget.free
        if self._submitted == 1 and self._active:  # latency: one step per length, as in beam search, if rows are cheap
            free = max(free, min(self.budget.rows, self._active[0].search.level_rows))
            free = min(free, self._cheap_rows_alone(self._active[0], free))
        return free

    def _cheap_rows_alone(self, running: Running, most: int) -> int:
        """The number of rows worth running in a step for a single input, at most `most`."""
        runs_as = getattr(running.search, "runs_as", type(running.search))
        if self.budget.alone is None or self.scorer.ahead is None or not issubclass(runs_as, StrictSearch):
            return self.budget.alone or most
        return self.scorer.ahead.rows(running.kind, most, self.budget.alone)

    def _forward(self, plan: Plan) -> None:
        """Runs one forward pass over the plan and commits the successors to the searches."""
        if not any(work for _, work in plan):
            return
        width = max(running.search.width for running, work in plan if work)
        successors = iter(self._score(plan, width))
        self._stats.steps += 1
        for running, work in plan:
            if work:
                running.steps += 1
                scored = [next(successors) for _ in work]
                if running.drafts is not None:
                    running.drafts.store([next(successors) for _ in running.drafts.to_score])
                self._commit(running, work, scored)

    def _score(self, plan: Plan, width: float) -> Sequence[Successors | ModelFailure]:
        """Scores all rows of the plan, each search's drafts behind the rows they continue. If the model raises on drafts,
        prefixes that it would never generate, drafting ends for these inputs and the needed rows are scored alone."""
        needed = [y for _, work in plan for y in work]
        batch = [y for running, work in plan for y in (*work, *(running.drafts.to_score if running.drafts else ()))]
        drafted = len(batch) - len(needed)
        self._stats.rows += len(batch)
        self._stats.drafted += drafted
        try:
            return self.scorer.expand(batch, width)
        except Exception as error:
            if not drafted:
                raise
            for running, _ in plan:
                if running.drafts is not None:
                    running.drafts.give_up(error)
            self._stats.rows += len(needed)
            return self.scorer.expand(needed, width)

    def _commit(self, running: Running, work: list[Hypothesis], scored: list[Successors | ModelFailure]) -> None:
        """Gives a search the successors of its rows. If the model failed on a needed row, the job has failed; failures of rows
        scored ahead are ignored, since they may never be needed."""
        search, decoding = running.search, running.job.decoding
        if running.drafts is not None:
            running.drafts.requested += work
        for y, successors in zip(work, scored, strict=True):
            if not isinstance(successors, ModelFailure):
                early = y.length < decoding.min_length
                search.commit(y, without_tokens(decoding.ending(self.scorer.eos), successors) if early else successors)
            elif y is work[0] or search.whole_levels:
                self._active.remove(running)
                self._release(running)
                rows = search.rows + running.unused_drafts
                self._failed[running.job] = Result(rows=rows, steps=running.steps, message=successors.message)
                self._forget(running)
                return

    def _release(self, running: Running) -> None:
        """Frees what the model holds for this input."""
        self.scorer.release(running.search.root)

    def _forget(self, running: Running) -> None:
        if running.drafts is not None:
            running.drafts.close(())
        running.search.dismantle()
        del self._by_job[running.job]

    def _speculation_outcomes(self, running: Running) -> list[tuple[int, bool]]:
        """For a single input: the rank of each row scored ahead, and whether it was needed."""
        return [(rank, y.on_beam) for rank, y in running.speculation]

    def _needed_prefixes(self, running: Running) -> Iterable[tuple[int, ...]]:
        """Prefixes that the drafted search had to expand, at most `MAX_DRAFT_TOKENS`."""
        requested, by_level = running.drafts.requested, isinstance(running.search, LevelSearch)  # type: ignore[union-attr]
        return [y.tokens for y in requested if by_level or y.on_beam][:MAX_DRAFT_TOKENS]

    def _finish(self, running: Running) -> Result:
        """The result of a finished search, with texts and costs; updates the statistics and frees the search."""
        result = running.search.result()
        result.steps = running.steps
        if running.drafts is not None:
            self._stats.accepted += running.drafts.accepted
            running.drafts.settle(result, self._needed_prefixes(running))
        result.exact = result.exact and self.scorer.exact and (not self.decoding.processors or bounds_hold(running.job.decoding))
        if self.scorer.ahead is not None:
            self.scorer.ahead.learn(running.kind, self._speculation_outcomes(running))
        if result.status == "incomplete":
            ends: Any = running.job.decoding.eos
            result.message = self.scorer.advice(running.search.root, running.job.n_max, ends)
        held = 1 + (result.rows - running.speculated) / (running.length + 1) / running.rows_per_step
        self._cache_ratio[running.kind] = max(self._cache_ratio.get(running.kind, 3.0), held)
        for answer in [*result.hypotheses, *([result.partial] if result.partial else [])]:
            self._annotate(running.job, answer)
        self._stats.calls += result.calls
        self._release(running)
        self._forget(running)
        return result


def suitable_budget(measured: Budget, decoding: Decoding) -> Budget:
    """The measured budget, widened for level-by-level search, which is sure to need its rows, to the levels of a few inputs."""
    k = decoding.plan.k
    if not decoding.plan.level_by_level or k == inf:
        return measured
    return Budget(max(measured.rows, min(MAX_LEVEL_ROWS, LEVEL_INPUTS * int(k))), measured.free, measured.alone)
