"""LevelSearch: beam search level by level until a number of answers exist (`Patience`), as cheap as `StrictSearch`.

Beams rank by value, so a level needs only tuples for the k best unfinished children and for all finished ones; hypotheses are
created for those that enter the beam. In the order that relies on bounds two kinds of members are not scored: members that k
unfinished children precede; and, if so many are certain to finish at the next length that it is the last, members that could
finish there only after the n-th answer. `docs/algorithm.md` has the proof, `tests/search/test_level.py` the properties;
`engine/steps/native/level_searches.py` is a compiled copy with the same names.
"""

from __future__ import annotations

from bisect import insort
from math import inf
from typing import TYPE_CHECKING, Any

from .agenda import by_key
from .hypothesis import Hypothesis, Successors, logprob_of
from .policy import BaseSearch, BrokenLaw, clamp_rounding, exceeds
from .result import Answer, Result
from .stops import Patience
from .table_1 import Strategy

if TYPE_CHECKING:
    from .score import Score

Candidate = tuple[float, tuple[int, ...], int, Hypothesis, int]
"""A child, not created yet: its value, negated; its parent's tokens; its own token; the parent; its index j. Sorts by rank."""


class LevelSearch(BaseSearch):
    """The search of one input; implements `Search`. It calls its stop once per level, as `AnyOrderSearch` does."""

    @staticmethod
    def takes(strategy: Strategy, score: Score) -> bool:
        """Whether the strategy goes level by level until a number have finished, and beams rank by value."""
        usual = strategy.level_by_level and isinstance(strategy.stop, Patience) and strategy.finished == "leave"
        return usual and strategy.any_order and strategy.k < inf and score.exact("leave")

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.k = int(strategy.k)
        self.answers: list[Hypothesis] = []  # best first
        self.led_by_answer = False  # whether the first member of some beam was finished
        self._enough = strategy.stop.enough(strategy, self.score)  # type: ignore[attr-defined]
        self._partial = self.root
        self._begin([self.root])

    def _begin(self, level: list[Hypothesis]) -> None:
        """Start a level with these hypotheses, all of one length, by rank; without any the search is over."""
        self._level = level
        self._length = level[0].length if level else -1
        self._turn = 0  # index of the member whose turn it is
        self._going: list[Candidate] = []  # the k best unfinished candidates of the next length, by rank
        self._ended: list[Candidate] = []  # and the finished ones
        self._bar = inf  # candidates that cost more do not enter the next beam

    # -- what to score -------------------------------------------------------------------------------------------------------

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now, of one length: the needed one first, then the next in value."""
        chosen: list[Hypothesis] = []
        for y in self._level[self._turn :]:
            if y.successors is None:
                if chosen and self._needless(y):
                    break  # and so are those after it
                chosen.append(y)
                if len(chosen) >= m:
                    break
        return chosen

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        if self.policy.relies_on_bound:
            successors = clamp_rounding(successors)
        y.successors = successors
        self.rows += 1
        if y.length == self._length:
            self._add_children(y)
            self._advance()

    def _add_children(self, y: Hypothesis) -> None:
        """Add the children of `y` that are not preceded by k unfinished ones."""
        values, tokens = y.successors.values, y.successors.tokens  # type: ignore[union-attr]
        value, prefix, eos, going, bar = y.value, y.tokens, self.eos, self._going, self._bar
        all_end = y.length + 1 == self.complete
        known = len(going)
        for j, increment in enumerate(values):
            cost = -(value + increment)
            if cost > bar:
                break
            token = tokens[j]
            (self._ended if all_end or token in eos else going).append((cost, prefix, token, y, j))
        if len(going) > known:
            going.sort()
            del going[self.k :]
        best = sorted(going + self._ended) if y.length + 1 == self.context.n_max else going  # at n_max nothing goes on
        if len(best) >= self.k:
            self._bar = best[self.k - 1][0]

    # -- the next in order ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on to the next member that must be scored and is not: of this level or, when it is done, of the next."""
        while level := self._level:
            while self._turn < len(level) and not self._needless(y := level[self._turn]):
                if y.successors is None:
                    return
                self.calls += 1
                self._turn += 1
            self._begin(self._next_level())

    def _needless(self, y: Hypothesis) -> bool:
        """Whether better ones already show that neither `y` nor the members after it on this level need be scored."""
        return self.policy.prunes and (-y.value > self._bar or self._ends_before(y))

    def _ends_before(self, y: Hypothesis) -> bool:
        """Whether the next length is the last, and the n-th answer precedes every finished child that `y` could have."""
        finished = len(self.answers) + len(self._ended)
        last = y.length + 1
        if finished < self.n or (finished < self._enough and last < self.context.n_max):
            return False
        cost = -y.value
        sure = [each for each in sorted(self._going + self._ended)[: self.k] if each[0] < cost and self._is_end(each, last)]
        if last < self.context.n_max and len(self.answers) + len(sure) < self._enough:
            return False
        worth = self.score.final
        places = [answer.key for answer in self.answers]
        for each in sure:
            ending: float = each[3].successors.ending  # type: ignore[union-attr]
            places.append((-(worth(-each[0], last, self.context) + ending), last, (*each[1], each[2])))
        if len(places) < self.n:
            return False
        places.sort()
        return places[self.n - 1] < (-worth(y.value, last, self.context), y.length, y.tokens)

    def _is_end(self, each: Candidate, length: int) -> bool:
        return each[2] in self.eos or length == self.complete

    def _next_level(self) -> list[Hypothesis]:
        """The unfinished members of the next length; finished ones become answers. Empty if it is time to stop."""
        length, level = self._length + 1, []
        members = self._going
        if self._ended:
            members = sorted(self._going + self._ended)
            self.led_by_answer |= self._is_end(members[0], length)
        for rank, each in enumerate(members):
            if not self._is_end(each, length):
                level.append(self._child(each, False))
            elif rank < self.k:
                insort(self.answers, self._child(each, True), key=by_key)
        if level:
            self._partial = level[0]
        over = not level or length == self.context.n_max or self.strategy.stop.at_level(self, length)  # type: ignore[attr-defined]
        return [] if over else level

    def _child(self, each: Candidate, finished: bool) -> Hypothesis:
        cost, _, token, parent, j = each
        y = self.set_scores(Hypothesis(parent, token, -cost, logprob_of(parent, j), finished))
        if self.policy.relies_on_bound and exceeds(max(y.worth, y.bound), parent.bound):
            raise BrokenLaw.above_bound(parent, token, max(y.worth, y.bound), y.logprob - parent.logprob)
        if finished:
            y.worth += parent.successors.ending  # type: ignore[union-attr]
            y.key = (-y.worth, y.length, y.tokens)
        return y

    def best_unfinished(self, length: int) -> Hypothesis:
        """The first unfinished member of this length, which is the current one; called by stops."""
        return self._partial

    # -- the result ----------------------------------------------------------------------------------------------------------

    def result(self) -> Result:
        return self.make_result([Answer.of(y) for y in self.answers[: self.n]], self._partial)

    def dismantle(self) -> None:
        self.answers = []
        self._begin([])
