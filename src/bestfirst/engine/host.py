"""HostEngine: all searches in flight share a budget of rows for each forward pass.

Certain work comes first: the hypothesis that each search needs next. What is left of the budget goes to speculation, where it is
likeliest to be needed. Searches take what was scored in any order (`bestfirst.search`), so neither results nor `calls` depend
on the budget, on who shares it or on when they came (`tests/engine/test_host.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ..drafting import MAX_DRAFT_TOKENS
from ..search import Answer, Hypothesis, LevelSearch, Result, StrictSearch, Successors, certified
from ..settings import Budget, Decoding
from .engine import Job, Running, Stats, check_together, item_of, shown, without, write
from .logits_processing import bounds_hold
from .scorer import Scorer
from .user_model import ModelFailure

if TYPE_CHECKING:
    from .drafts import Drafting

WINDOW = 16  # inputs that are read ahead and sorted by length, for each one in flight
LEVELS, FULL = 4, 512  # inputs whose levels have room in a step, and rows beyond which more bring nothing


Plan = list[tuple[Running, list[Hypothesis]]]
DONE: list[Hypothesis] = []  # in a plan: this search is over, as against having no row in this step


class HostEngine:
    """Runs searches on a scorer.

    `max_cache_tokens` of its settings: no more inputs are let in than will, as far as can be foreseen, hold so many tokens
    together; if they come to need more, the latest make room and begin again later. Only an input that needs more by itself
    exceeds the bound; nothing is ever given up. A search that is traced cannot begin again.
    """

    learned_of: tuple[type, ...] = (StrictSearch,)  # searches of which is learned what is worth scoring ahead

    def __init__(self, scorer: Scorer, decoding: Decoding, drafting: Drafting | None = None) -> None:
        self.scorer = scorer
        self.drafting = drafting
        self.decoding = decoding
        self.budget = decoding.budget or roomy(scorer.budget(), decoding)
        self.max_cache_tokens = decoding.max_cache_tokens
        self._stats = Stats(engine="host")
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        self._running: dict[Job, Running] = {}
        self._failed: dict[Job, Result] = {}  # given up, and not told yet
        self._submitted = 0
        self._tokens_each: dict[tuple[int, str], float] = {}  # by settings: most tokens held for a token of an input, so far

    @property
    def stats(self) -> Stats:
        self._stats.model_seconds = self.scorer.model_seconds
        return self._stats

    @property
    def wants(self) -> int:
        """A window of inputs, so that those of like length can be encoded together."""
        return 0 if self._waiting else WINDOW * self.budget.rows

    @property
    def slots(self) -> int:
        return self.budget.rows

    @property
    def in_flight(self) -> list[Job]:
        return [running.job for running in self._active]

    @property
    def jobs(self) -> list[Job]:
        """Those that were submitted and are not over."""
        return [*self._running, *self._failed]

    @property
    def shares_context(self) -> bool:
        return self.scorer.shares_context

    pauses = True

    def __bool__(self) -> bool:
        return bool(self._running or self._failed)

    def submit(self, *jobs: Job) -> None:
        """Queue jobs; of those given together the longest come first, so that what is encoded together is alike."""
        for job in sorted(jobs, key=lambda job: -job.source.length):
            check_together(job.decoding, self.decoding)
            running = self._running[job] = self._begin(job)
            self._waiting.append(running)
        self._submitted += len(jobs)

    def _begin(self, job: Job) -> Running:
        search = job.search(self.scorer.eos, self.scorer.text, self.scorer.merge)
        return Running(job, search, drafts=None if self.drafting is None else self.drafting.begin(job, search))

    def cancel(self, job: Job) -> None:
        if self._failed.pop(job, None) is not None:
            return
        if job not in self._running:
            raise ValueError("this job is not in the engine: it is over, or was never submitted")
        running = self._running[job]
        if running in self._active:
            self._active.remove(running)
            self._release(running)
        else:
            self._waiting.remove(running)
        self._forget(running)

    def certified(self, job: Job) -> list[Answer]:
        answers = self._certain(self._running[job])
        for answer in answers:
            self._write(job, answer)
            answer.item = item_of(job, answer, self.scorer.eos)
        return answers

    def _certain(self, running: Running) -> list[Answer]:
        return certified(running.search)

    def _write(self, job: Job, answer: Answer) -> None:
        eos = job.decoding.ending(self.scorer.eos)
        write(answer, job.decoding, eos, self.scorer.text(job.source, shown(answer, job.decoding, eos)))

    def step(self) -> Iterator[tuple[Job, Result]]:
        if self.decoding.budget is None:
            self.budget = roomy(self.scorer.budget(), self.decoding)
        while self._failed:
            yield self._failed.popitem()
        self._admit()
        self._make_room()
        plan = self._plan()
        self._stats.in_flight = max(self._stats.in_flight, len(self._active))
        over = [running for running, work in plan if work is DONE]
        if over:
            self._active = [running for running, work in plan if work is not DONE]
        for running in over:
            yield running.job, self._result(running)
        self._forward(plan)
        self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens())

    def _admit(self) -> None:
        """Let inputs in as others leave, a quarter of the room at a time, so that what is done once for each is done in batches.

        Each takes with it a share of the memory bound, by its length and by what the inputs before it came to need.
        """
        waiting, active = self._waiting, self._active
        if not waiting:
            return
        # each has as many as it needs in a step
        rows = self.budget.rows - sum(running.rows_each for running in active if not running.job.paused)
        if active and rows < max(waiting[0].rows_each, self.budget.rows // 4):
            return
        free = self.max_cache_tokens - sum(running.holds for running in active)
        entering: list[Running] = []
        while waiting and (rows >= waiting[0].rows_each or not (active or entering)):
            running = waiting[0]
            running.share = self._tokens_each.get(running.kind, 3.0) * (running.length + 1) * running.rows_each
            if running.share > free and (active or entering):
                break
            rows -= running.rows_each
            free -= running.share
            entering.append(waiting.popleft())
        entering.sort(key=lambda running: -running.length)  # those encoded together are to be alike
        if entering:
            self.scorer.start([(running.search.root, running.job.source) for running in entering])
            active += entering

    def _make_room(self) -> None:
        """While the next step could go beyond the memory bound, send the latest input back to begin again when there is room."""
        active = self._active
        while len(active) > 1:
            next_step = self.scorer.cache_tokens() + sum(running.rows_each for running in active)
            latest = active[-1]
            if next_step <= self.max_cache_tokens or latest.job.trace is not None:
                return
            self._release(latest)
            latest.search.dismantle()
            active.pop()
            if latest.drafts is not None:
                latest.drafts.finish(())
            again = self._running[latest.job] = self._begin(latest.job)
            self._waiting.appendleft(again)

    def _plan(self) -> Plan:
        """Who is scored in this step: what is needed, then, while the step has room, what is worth scoring ahead."""
        active, left, free = self._active, self.budget.rows, self._free()
        unshared = self.max_cache_tokens - sum(running.holds for running in active)  # memory for what may not be needed
        taking_part = sum(not running.job.paused for running in active)
        ahead = int(max(0, min(left - taking_part, free - taking_part, unshared)))
        each = min(ahead, 1 + 2 * ahead // max(1, taking_part))  # guesses asked of a search; the likeliest of all are taken
        plan: Plan = []
        guesses: list[tuple[float, int, Hypothesis]] = []
        for place, running in enumerate(active):
            if running.job.paused or (place and left < 1):
                plan.append((running, []))  # waits for its turn
                continue
            search = running.search
            # With k rows a step, a search takes no more steps than beam search: more would not make it faster.
            m = left if search.whole_levels else min(1 + each, search.level_rows)
            drafts, commit = running.drafts, partial(self._commit, running)
            work = search.frontier(m) if drafts is None else drafts.named(search, m, commit)
            if ahead and not search.whole_levels:
                guesses += [(work[0].bound - y.bound, place, y) for y in work[1:]]
                work = work[:1]
            left -= len(work)
            plan.append((running, work or DONE))
        guesses.sort(key=lambda guess: guess[0])
        for rank, (_, place, y) in enumerate(guesses[: min(ahead, left)], 1):
            plan[place][0].guessed += 1
            plan[place][1].append(y)
            if self._submitted == 1:
                plan[place][0].ahead.append((rank, y))
        if self.drafting is not None:
            drafting = [(running.drafts, work) for running, work in plan if running.drafts is not None]
            room = min(self.budget.rows, unshared) - sum(len(work) for _, work in plan)
            self.drafting.fill(drafting, int(room), self.budget, taking_part, self.scorer.vocabulary)
        return plan

    def _free(self) -> int:
        """Rows of a step that cost little."""
        free = self.budget.free
        if self._submitted == 1 and self._active:  # latency counts: a step a length, as in beam search, if rows cost little
            free = max(free, min(self.budget.rows, self._active[0].search.level_rows))
            free = min(free, self._alone(self._active[0], free))
        return free

    def _alone(self, running: Running, most: int) -> int:
        """The rows of a step that no other input is in."""
        if self.budget.alone is None or self.scorer.ahead is None or not isinstance(running.search, self.learned_of):
            return self.budget.alone or most
        return self.scorer.ahead.rows(running.kind, most, self.budget.alone)

    def _forward(self, plan: Plan) -> None:
        """One forward pass; every search takes what was scored for it."""
        if not any(work for _, work in plan):
            return
        width = max(running.search.width for running, work in plan if work)
        successors = iter(self._expand(plan, width))
        self._stats.steps += 1
        for running, work in plan:
            if work:
                running.steps += 1
                found = [next(successors) for _ in work]
                if running.drafts is not None:
                    running.drafts.scored([next(successors) for _ in running.drafts.now])
                self._commit(running, work, found)

    def _expand(self, plan: Plan, width: float) -> Sequence[Successors | ModelFailure]:
        """Score the rows of all, drafts behind what they continue. What the model raises for a prefix that it would never write
        is nobody's concern: then what is needed is scored without."""
        needed = [y for _, work in plan for y in work]
        batch = [y for running, work in plan for y in (*work, *(running.drafts.now if running.drafts else ()))]
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

    def _commit(self, running: Running, work: list[Hypothesis], found: list[Successors | ModelFailure]) -> None:
        """A search takes what was scored for it. Where the model failed on what is needed, it is over; what was to be
        scored ahead may never be needed, and is left as it is."""
        search, decoding = running.search, running.job.decoding
        if running.drafts is not None:
            running.drafts.asked += work
        for y, successors in zip(work, found, strict=True):
            if not isinstance(successors, ModelFailure):
                early = y.length < decoding.min_length
                search.commit(y, without(decoding.ending(self.scorer.eos), successors) if early else successors)
            elif y is work[0] or search.whole_levels:
                self._active.remove(running)
                self._release(running)
                rows = search.rows + running.unused
                self._failed[running.job] = Result(rows=rows, steps=running.steps, message=successors.message)
                self._forget(running)
                return

    def _release(self, running: Running) -> None:
        """Give back what the model holds for it."""
        self.scorer.release(running.search.root)

    def _forget(self, running: Running) -> None:
        if running.drafts is not None:
            running.drafts.finish(())
        running.search.dismantle()
        del self._running[running.job]

    def _looked_ahead(self, running: Running) -> list[tuple[int, bool]]:
        """Of what was scored ahead for an input by itself, its rank, and whether it came to be needed."""
        return [(rank, y.on_beam) for rank, y in running.ahead]

    def _needed(self, running: Running) -> Iterable[tuple[int, ...]]:
        """The first prefixes whose successors a search had to know that was drafted for."""
        asked, levels = running.drafts.asked, isinstance(running.search, LevelSearch)  # type: ignore[union-attr]
        return [y.tokens for y in asked if levels or y.on_beam][:MAX_DRAFT_TOKENS]

    def _result(self, running: Running) -> Result:
        result = running.search.result()
        result.steps = running.steps
        if running.drafts is not None:
            self._stats.accepted += running.drafts.accepted
            running.drafts.count(result, self._needed(running))
        result.exact = result.exact and self.scorer.exact and (not self.decoding.processors or bounds_hold(running.job.decoding))
        if self.scorer.ahead is not None:
            self.scorer.ahead.learn(running.kind, self._looked_ahead(running))
        if result.status == "incomplete":
            ends: Any = running.job.decoding.eos
            result.message = self.scorer.advice(running.search.root, running.job.n_max, ends)
        held = 1 + (result.rows - running.guessed) / (running.length + 1) / running.rows_each
        self._tokens_each[running.kind] = max(self._tokens_each.get(running.kind, 3.0), held)
        for answer in [*result.hypotheses, *([result.partial] if result.partial else [])]:
            self._write(running.job, answer)
            answer.item = item_of(running.job, answer, self.scorer.eos)
        self._stats.calls += result.calls
        self._release(running)
        self._forget(running)
        return result


def roomy(measured: Budget, decoding: Decoding) -> Budget:
    """What suits the model; level by level, where all rows are sure to be needed, with room for the levels of a few inputs."""
    k = decoding.plan.k
    if not decoding.plan.level_by_level or k == inf:
        return measured
    return Budget(max(measured.rows, min(FULL, LEVELS * int(k))), measured.free, measured.alone)
