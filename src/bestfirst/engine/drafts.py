"""Drafts: guessed hypotheses, scored in one forward pass with their parents, as in speculative decoding.

The scores wait, keyed by tokens, until the search expands a hypothesis with these tokens; so results and `calls` do not change
(`tests/engine/test_drafts.py`). How much is guessed depends on how often such guesses were right and on what a row costs: if a
step costs as much as r rows before its first one, and n inputs share it, a guess pays from a probability of 1 / (1 + r / n) on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from time import thread_time
from typing import TYPE_CHECKING, Any

from ..drafting import MAX_DRAFT_TOKENS, Drafter
from ..search import Hypothesis, Result, Search, Successors, Trace
from .model_record import DraftGains, SuccessRates

if TYPE_CHECKING:
    from ..settings import Budget
    from .engine import Job

RETRY_STEPS, RETRY_ROWS = 32, 2  # where guesses did not pay: steps until a retry, and its rows
MANY_FREE_ROWS = 12  # if a step has so many free rows, speculative rows get drafts as well

Commit = Callable[[list[Hypothesis], list[Any]], None]

_log = logging.getLogger(__name__)


def free_rows(budget: Budget) -> int:
    """The constant cost of a step in rows, r above; also the largest number of inputs that may share a step with drafts."""
    return budget.free if budget.alone is None else budget.alone - 1


class Drafted(Hypothesis):
    """A guessed prefix. `successors`: the model's scores for it."""

    __slots__ = ("kind", "trust")

    def __init__(self, parent: Hypothesis, token: int, kind: Hashable, trust: float) -> None:
        super().__init__(parent, token, 0.0, 0.0, False)
        self.kind = kind
        self.trust = trust  # the drafter's prior for this kind


@dataclass
class TimedInputs:
    """Inputs submitted together whose time is measured: `kind`, the thread's CPU time at submission, and output tokens so far."""

    kind: Hashable
    started: float
    tokens: int = 0


class Drafting:
    """An engine's drafter with the success rates of its guesses. `end`: tokens that end a hypothesis, never drafted."""

    def __init__(self, drafter: Drafter, rates: SuccessRates, gains: DraftGains, end: frozenset[int]) -> None:
        self.drafter = drafter
        self.rates = rates
        self.gains = gains
        self.end = end
        self._warned = False
        self._logged: set[str] = set()
        self._timed: TimedInputs | None = None

    def pays(self, jobs: Sequence[Job], budget: Budget, *, alone: bool, measured: bool) -> bool:
        """Whether a `CompiledEngine`, which runs searches with drafts in Python, drafts for inputs submitted together. They must
        be `alone` in the engine, few, and without a constraint. If the budget was `measured`, not given, and the drafter is
        `optional`, drafting must also have taken less time before (`DraftGains`)."""
        self._timed = None
        if not alone or any(job.decoding.allowed is not None for job in jobs):
            return False
        if len(jobs) > (free := free_rows(budget)):
            self._log_once("%d inputs at a time, and a step costs as much as %d rows before it has one", len(jobs), free)
            return False
        if not measured or not self.drafter.optional:
            return True
        try:
            outlook = Counter(self.drafter.outlook(job.source) for job in jobs).most_common(1)[0][0]
        except Exception as error:
            self.log_error("outlook", error)
            return False
        self._timed = TimedInputs((len(jobs), jobs[0].decoding.beam, jobs[0].decoding.objective.name, outlook), thread_time())
        pay = self.gains.pay(self._timed.kind)
        if not pay:
            self._log_once("inputs like these take longer with them")
        return pay

    def record_time(self, result: Result, *, last: bool, drafted: bool) -> None:
        """Called when one of those inputs is finished, drafted for or not; after the `last` one records the time per token."""
        if self._timed is None:
            return
        self._timed.tokens += 1 + max((len(each.tokens) for each in (*result.hypotheses[:1], result.partial) if each), default=0)
        if last:
            self.gains.note(self._timed.kind, drafted, (thread_time() - self._timed.started) / self._timed.tokens)

    def _log_once(self, why: str, *given: object) -> None:
        """Logs why nothing is drafted, each reason once."""
        if why not in self._logged:
            self._logged.add(why)
            _log.info(f"no drafts: {why}", *given)

    def start(self, job: Job) -> Drafts | None:
        """Starts the drafter on an input, even if nothing is drafted for it: the drafter learns from the output."""
        if job.decoding.allowed is not None:
            return None
        try:
            return Drafts(self, self.drafter.start(job.source), job.n_max, job.trace)
        except Exception as error:
            self.log_error("start", error)
            return None

    def fill_step(
        self, plan: Sequence[tuple[Drafts, Sequence[Hypothesis]]], room: int, budget: Budget, inputs: int, vocabulary: int
    ) -> None:
        """Fills a step that `inputs` share with guessed continuations of its rows, as far as they are likely enough to pay."""
        free = free_rows(budget)
        for drafts, work in plan:
            drafts.to_score = []
            if not work or room < 1 or inputs > free or not self._should_guess():
                continue
            least, most = 1 / (1 + free / inputs), min(room, MAX_DRAFT_TOKENS)
            if self.rates.idle % RETRY_STEPS == 0:
                least, most = 0.0, min(room, RETRY_ROWS)
            try:
                rows = work if free >= MANY_FREE_ROWS else work[:1]
                drafts.to_score = drafts.likeliest(rows, most, least, vocabulary)
            except Exception as error:  # of the drafter, or while reading its guesses
                self.log_error("guess", error)
            drafts.drafted += len(drafts.to_score)
            room -= len(drafts.to_score)
            if drafts.to_score:
                self.rates.idle = 0

    def _should_guess(self) -> bool:
        """Whether to call the drafter in this step: the more rarely, the longer no guess was worth scoring."""
        idle = self.rates.idle = self.rates.idle + 1
        return idle <= 4 or idle % min(RETRY_STEPS, idle // 4) == 0

    def note(self, y: Drafted, right: bool) -> None:
        """Records whether a guess was right."""
        self.rates.note(y.kind, right, y.trust)

    def log_error(self, method: str, error: Exception) -> None:
        """Logs an exception of the drafter, as a warning the first time; it must not affect results."""
        log, self._warned = _log.debug if self._warned else _log.warning, True
        log("no drafts: %s.%s raised %s: %s", type(self.drafter).__name__, method, type(error).__name__, error)


class Drafts:
    """One input's drafts: those to score in this step, and those scored that the search has not requested yet."""

    def __init__(self, drafting: Drafting, memory: Any, n_max: int, trace: Trace | None) -> None:
        self._drafting = drafting
        self._memory = memory
        self._n_max = n_max
        self._trace = trace
        self._scored: dict[tuple[int, ...], Drafted] = {}
        self._latest: list[Drafted] = []  # of these, the ones of the last step
        self.to_score: list[Drafted] = []  # drafts of this step; parents come first
        self.requested: list[Hypothesis] = []  # hypotheses that the search has expanded so far
        self.drafted = 0
        self.accepted = 0

    @property
    def unused(self) -> int:
        """Rows that the search has not requested."""
        return self.drafted - self.accepted

    # -- what to score ---------------------------------------------------------------------------------------------------

    def likeliest(self, work: Sequence[Hypothesis], room: int, least: float, vocabulary: int) -> list[Drafted]:
        """The most probable continuations of these rows, each with a probability of at least `least`."""
        rates, drafter = self._drafting.rates, self._drafting.drafter
        nodes: dict[tuple[int, ...], tuple[float, int, Any, float]] = {}  # by prefix: probability, length, kind and trust
        guessed = drafter.guess_all(self._memory, [y.tokens for y in work], room)
        for rank, (y, guesses) in enumerate(zip(work, guessed, strict=False)):
            for continuation in guesses:
                tokens, probability = y.tokens, 1.0
                for token, kind in continuation:
                    valid = type(token) is int and 0 <= token < vocabulary and token not in self._drafting.end
                    trust, kind = drafter.trust(kind), (rank > 0, kind)
                    probability *= rates.rate(kind, trust)
                    if not valid or probability < least or len(tokens) + 1 >= self._n_max:
                        break
                    tokens = (*tokens, token)
                    if probability > nodes.get(tokens, (-1.0,))[0]:
                        nodes[tokens] = (probability, len(tokens), kind, trust)
        best = sorted(nodes, key=lambda tokens: (-nodes[tokens][0], nodes[tokens][1]))[:room]
        known: dict[tuple[int, ...], Hypothesis] = {y.tokens: y for y in work}
        out: list[Drafted] = []
        for tokens in best:
            out.append(Drafted(known[tokens[:-1]], tokens[-1], *nodes[tokens][2:]))
            known[tokens] = out[-1]
        return out

    def store(self, results: Sequence[Any]) -> None:
        """Keeps the model's `Successors` of this step's drafts; failures are dropped."""
        for y, successors in zip(self.to_score, results, strict=True):
            if isinstance(successors, Successors):
                y.successors = successors
                self._scored[y.tokens] = y
                self._latest.append(y)
        self.to_score = []

    def give_up(self, error: Exception) -> None:
        """Stops drafting for this input: the model raises on prefixes that it would never generate."""
        _log.info("no drafts: the model raised %s: %s", type(error).__name__, error)
        self.to_score, self._n_max = [], 0

    # -- what the search requests -----------------------------------------------------------------------------------------

    def frontier(self, search: Search, m: int, commit: Commit) -> list[Hypothesis]:
        """The search's next hypotheses, after it was given all drafted successors that it can use now."""
        progress = True
        while progress:
            while self._scored and self._commit_drafted(search.frontier(1), commit):
                pass  # needed hypotheses first, before any draft is committed for speculation
            work = search.frontier(m)
            progress = bool(self._scored) and self._commit_drafted(work, commit, search.whole_levels)
        for y in self._latest:
            if y.tokens in self._scored and y.parent.tokens not in self._scored:  # type: ignore[union-attr]
                self._drafting.note(y, False)
        self._latest.clear()
        return work

    def _commit_drafted(self, work: Sequence[Hypothesis], commit: Commit, whole: bool = False) -> bool:
        """Commits the drafted successors of these hypotheses; returns whether there were any."""
        claimed = [y for y in work if y.tokens in self._scored]
        drafts = [self._scored.pop(y.tokens) for y in claimed]
        for y, drafted in zip(claimed, drafts, strict=True):
            y.state = drafted.state
            # A row that would have been scored speculatively anyway saves no step.
            self._drafting.note(drafted, whole or y is work[0])
        self.accepted += len(claimed)
        if claimed:
            commit(claimed, [drafted.successors for drafted in drafts])
        for y in claimed if self._trace is not None else ():
            self._trace.note("draft", y)  # type: ignore[union-attr]
        return bool(claimed)

    # -- the end --------------------------------------------------------------------------------------------------------

    def settle(self, result: Result, needed: Iterable[tuple[int, ...]]) -> None:
        """Adds the drafts' costs to a result, and tells the drafter the output and which prefixes were expanded."""
        result.drafted, result.accepted = self.drafted, self.accepted
        result.rows += self.unused
        try:
            self._drafting.drafter.needed(self._memory, needed)
        except Exception as error:
            self._drafting.log_error("needed", error)
        self.close([answer.tokens for answer in result.hypotheses])

    def close(self, outputs: Sequence[tuple[int, ...]]) -> None:
        """Ends drafting for this input; idempotent."""
        memory, self._memory = self._memory, None
        for y in chain(self._scored.values(), self.to_score):
            y.parent = None
        self._scored.clear()
        self.requested.clear()
        if memory is not None:
            try:
                self._drafting.drafter.finish(memory, outputs)
            except Exception as error:
                self._drafting.log_error("finish", error)
