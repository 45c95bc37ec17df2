"""Drafts: hypotheses that are scored before anybody knows whether the search will come to them, in one pass with their parents.

What was scored waits under its tokens until the search names a hypothesis with the same ones; so results and `calls` are those
without it (`tests/engine/test_drafts.py`). How much is guessed follows how often such guesses were right, and what a row costs:
where a step costs as much as r rows before it has one, and n inputs share it, a guess pays that is right with a probability of at
least 1 / (1 + r / n).
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
from ..search import AnyOrderSearch, Hypothesis, LevelSearch, Result, Search, StrictSearch, Successors, Trace
from .model_record import Gains, Rates

if TYPE_CHECKING:
    from ..settings import Budget
    from .engine import Job

SELDOM, TRIED = 32, 2  # steps after which something is tried again that did not pay, and how many rows of it
PLENTY = 12  # where a step costs so many rows before it has one, guesses are made for what is scored ahead, too

Commit = Callable[[list[Hypothesis], list[Any]], None]

_log = logging.getLogger(__name__)


def most_inputs(budget: Budget) -> int:
    """How many inputs may share a step that has drafts: as many as the rows that a step costs before it has one."""
    return budget.free if budget.alone is None else budget.alone - 1


class Drafted(Hypothesis):
    """A guessed prefix. `successors`: what the model said of it."""

    __slots__ = ("kind", "trust")

    def __init__(self, parent: Hypothesis, token: int, kind: Hashable, trust: float) -> None:
        super().__init__(parent, token, 0.0, 0.0, False)
        self.kind = kind
        self.trust = trust  # in its kind, while nothing is known of it


@dataclass
class TimedInputs:
    """Inputs that came together and are timed: of a `kind`, when they came, and tokens of their outputs so far."""

    kind: Hashable
    begun: float
    tokens: int = 0


class Drafting:
    """A drafter at work in an engine, and how far it is trusted. `end`: the tokens after which nothing comes."""

    def __init__(self, drafter: Drafter, rates: Rates, gains: Gains, end: frozenset[int]) -> None:
        self.drafter = drafter
        self.rates = rates
        self.gains = gains
        self.end = end
        self._complained = False
        self._said: set[str] = set()
        self._timed: TimedInputs | None = None

    def pays(self, jobs: Sequence[Job], budget: Budget, *, alone: bool, measured: bool) -> bool:
        """Whether inputs that come together are to be drafted for, if they are `alone` in an engine that is faster without: they
        are few, and if the budget was `measured`, not given, it took less time (`Gains`)."""
        self._timed = None
        if not alone or any(job.decoding.allowed is not None for job in jobs):
            return False
        if len(jobs) > (most := most_inputs(budget)):
            self._say("%d inputs at a time, and a step costs as much as %d rows before it has one", len(jobs), most)
            return False
        if not measured or not self.drafter.optional:
            return True
        try:
            outlook = Counter(self.drafter.outlook(job.source) for job in jobs).most_common(1)[0][0]
        except Exception as error:
            self.complain("outlook", error)
            return False
        self._timed = TimedInputs((len(jobs), jobs[0].decoding.beam, jobs[0].decoding.objective.name, outlook), thread_time())
        pay = self.gains.pay(self._timed.kind)
        if not pay:
            self._say("inputs like these take longer with them")
        return pay

    def took(self, result: Result, *, last: bool, drafted: bool) -> None:
        """One of those inputs is over, whether or not it was drafted for, or the last of them."""
        if self._timed is None:
            return
        self._timed.tokens += 1 + max((len(each.tokens) for each in (*result.hypotheses[:1], result.partial) if each), default=0)
        if last:
            self.gains.note(self._timed.kind, drafted, (thread_time() - self._timed.begun) / self._timed.tokens)

    def _say(self, why: str, *given: object) -> None:
        """Once, why nothing is drafted."""
        if why not in self._said:
            self._said.add(why)
            _log.info(f"no drafts: {why}", *given)

    def begin(self, job: Job, search: Search) -> Drafts | None:
        """Ready for an input; None where nothing can be drafted for it."""
        if not isinstance(search, (StrictSearch, LevelSearch, AnyOrderSearch)):
            return None
        return self.follow(job)

    def follow(self, job: Job) -> Drafts | None:
        """An input of which the drafter is told, whether or not anything is drafted for it."""
        if job.decoding.allowed is not None:
            return None
        try:
            return Drafts(self, self.drafter.start(job.source), job.n_max, job.trace)
        except Exception as error:
            self.complain("start", error)
            return None

    def fill(
        self, plan: Sequence[tuple[Drafts, Sequence[Hypothesis]]], room: int, budget: Budget, inputs: int, vocabulary: int
    ) -> None:
        """Fill up a step of so many inputs with what may come after their rows, as far as it is likely enough to pay."""
        before_rows = most_inputs(budget)
        for drafts, work in plan:
            drafts.now = []
            if not work or room < 1 or inputs > before_rows or not self._worth_asking():
                continue
            least, most = 1 / (1 + before_rows / inputs), min(room, MAX_DRAFT_TOKENS)
            if self.rates.idle % SELDOM == 0:
                least, most = 0.0, min(room, TRIED)
            try:
                rows = work if before_rows >= PLENTY else work[:1]
                drafts.now = drafts.likeliest(rows, most, least, vocabulary)
            except Exception as error:  # of the drafter, or of what is made of what it said
                self.complain("guess", error)
            drafts.drafted += len(drafts.now)
            room -= len(drafts.now)
            if drafts.now:
                self.rates.idle = 0

    def _worth_asking(self) -> bool:
        """Ever less often, the longer nothing was worth it."""
        idle = self.rates.idle = self.rates.idle + 1
        return idle <= 4 or idle % min(SELDOM, idle // 4) == 0

    def note(self, y: Drafted, right: bool) -> None:
        """What came of a guess."""
        self.rates.note(y.kind, right, y.trust)

    def complain(self, method: str, error: Exception) -> None:
        """Once, of what a drafter raised: it must not cost the result."""
        log, self._complained = _log.debug if self._complained else _log.warning, True
        log("no drafts: %s.%s raised %s: %s", type(self.drafter).__name__, method, type(error).__name__, error)


class Drafts:
    """Of one input: what is guessed, and what was scored and not asked for yet."""

    def __init__(self, drafting: Drafting, memory: Any, n_max: int, trace: Trace | None) -> None:
        self._drafting = drafting
        self._memory = memory
        self._n_max = n_max
        self._trace = trace
        self._waiting: dict[tuple[int, ...], Drafted] = {}
        self._fresh: list[Drafted] = []  # of these, what nobody has had a chance to ask for
        self.now: list[Drafted] = []  # to be scored in this step; parents come first
        self.asked: list[Hypothesis] = []  # by the search, so far
        self.drafted = 0
        self.accepted = 0

    @property
    def unused(self) -> int:
        """Rows that the search has not asked for."""
        return self.drafted - self.accepted

    # -- what to score ---------------------------------------------------------------------------------------------------

    def likeliest(self, work: Sequence[Hypothesis], room: int, least: float, vocabulary: int) -> list[Drafted]:
        """What may come after these rows, the likeliest of it: each with a probability of at least `least`."""
        rates, drafter = self._drafting.rates, self._drafting.drafter
        nodes: dict[tuple[int, ...], tuple[float, int, Any, float]] = {}  # by tokens: how likely, length, kind and trust in it
        asked = drafter.guess_all(self._memory, [y.tokens for y in work], room)
        for rank, (y, guesses) in enumerate(zip(work, asked, strict=False)):
            for continuation in guesses:
                tokens, likely = y.tokens, 1.0
                for token, kind in continuation:
                    good = type(token) is int and 0 <= token < vocabulary and token not in self._drafting.end
                    trust, kind = drafter.trust(kind), (rank > 0, kind)
                    likely *= rates.rate(kind, trust)
                    if not good or likely < least or len(tokens) + 1 >= self._n_max:
                        break
                    tokens = (*tokens, token)
                    if likely > nodes.get(tokens, (-1.0,))[0]:
                        nodes[tokens] = (likely, len(tokens), kind, trust)
        best = sorted(nodes, key=lambda tokens: (-nodes[tokens][0], nodes[tokens][1]))[:room]
        known: dict[tuple[int, ...], Hypothesis] = {y.tokens: y for y in work}
        out: list[Drafted] = []
        for tokens in best:
            out.append(Drafted(known[tokens[:-1]], tokens[-1], *nodes[tokens][2:]))
            known[tokens] = out[-1]
        return out

    def scored(self, found: Sequence[Any]) -> None:
        """What the model said of this step's drafts: `Successors`, or why there are none."""
        for y, successors in zip(self.now, found, strict=True):
            if isinstance(successors, Successors):
                y.successors = successors
                self._waiting[y.tokens] = y
                self._fresh.append(y)
        self.now = []

    def give_up(self, error: Exception) -> None:
        """The model fails on prefixes that it would never write: nothing more is drafted for this input."""
        _log.info("no drafts: the model raised %s: %s", type(error).__name__, error)
        self.now, self._n_max = [], 0

    # -- what is asked for -----------------------------------------------------------------------------------------------

    def named(self, search: Search, m: int, commit: Commit) -> list[Hypothesis]:
        """The frontier of a search, once it has taken what was drafted and is its turn now."""
        going = True
        while going:
            while self._waiting and self._take(search.frontier(1), commit):
                pass  # what is needed, before any of it is taken for what is scored ahead
            work = search.frontier(m)
            going = bool(self._waiting) and self._take(work, commit, search.whole_levels)
        for y in self._fresh:
            if y.tokens in self._waiting and y.parent.tokens not in self._waiting:  # type: ignore[union-attr]
                self._drafting.note(y, False)
        self._fresh.clear()
        return work

    def _take(self, work: Sequence[Hypothesis], commit: Commit, whole: bool = False) -> bool:
        """Commit what was drafted of these; whether there was anything."""
        taken = [y for y in work if y.tokens in self._waiting]
        known = [self._waiting.pop(y.tokens) for y in taken]
        for y, drafted in zip(taken, known, strict=True):
            y.state = drafted.state
            # What would have been scored ahead anyway saves no step.
            self._drafting.note(drafted, whole or y is work[0])
        self.accepted += len(taken)
        if taken:
            commit(taken, [drafted.successors for drafted in known])
        for y in taken if self._trace is not None else ():
            self._trace.note("draft", y)  # type: ignore[union-attr]
        return bool(taken)

    # -- what came of it -------------------------------------------------------------------------------------------------

    def count(self, result: Result, needed: Iterable[tuple[int, ...]]) -> None:
        """Tell a result what it cost, and the drafter what it was and what it took."""
        result.drafted, result.accepted = self.drafted, self.accepted
        result.rows += self.unused
        try:
            self._drafting.drafter.needed(self._memory, needed)
        except Exception as error:
            self._drafting.complain("needed", error)
        self.finish([answer.tokens for answer in result.hypotheses])

    def finish(self, outputs: Sequence[tuple[int, ...]]) -> None:
        """The input is over; to be called again is nothing."""
        memory, self._memory = self._memory, None
        for y in chain(self._waiting.values(), self.now):
            y.parent = None
        self._waiting.clear()
        self.asked.clear()
        if memory is not None:
            try:
                self._drafting.drafter.finish(memory, outputs)
            except Exception as error:
                self._drafting.complain("finish", error)
