"""StepSearch: strict order by value, until the step at which Hugging Face stops by default, for scores that rise with length.

Beams rank by value, so in order of value they fill from the top, as in `StrictSearch`. What differs is when the search is over,
and that a member whose continuations all fall off a longer beam, and can be no answer before the n-th until then, is left out.
`docs/algorithm.md` has the proof, `tests/search/test_step.py` the properties.
"""

from __future__ import annotations

from bisect import insort
from math import inf
from typing import Any

from .hypothesis import Hypothesis, Successors
from .objective import Objective
from .result import Answer
from .strict import Progress, StrictSearch, logprob_of
from .table_1 import BestFirst, Strategy

Found = tuple[float, int, tuple[int, ...], float]
"""An answer: its score, negated; its length; its tokens; its log-probability. Sorts best first."""


class StepProgress(Progress):
    """What tells the step, besides."""

    __slots__ = ("best", "found", "full", "hidden", "step")

    def __init__(self) -> None:
        super().__init__()
        self.best: list[float] = [0.0]  # by length, the value of the best unfinished hypothesis, of the lengths it is known of
        self.found: list[Found] = []
        self.hidden: dict[int, float] = {}  # by length, the greatest score of an answer below what was left out
        self.step = inf  # no longer answer counts
        self.full = 0  # the greatest length, the last one aside, of which there are k unfinished

    def copy(self) -> StepProgress:
        other: StepProgress = super().copy()  # type: ignore[assignment]
        other.best, other.found, other.hidden = self.best[:], self.found[:], self.hidden.copy()
        other.step, other.full = self.step, self.full
        return other


class StepSearch(StrictSearch):
    """One input's search at Hugging Face's `early_stopping=False`."""

    remembers = True

    @staticmethod
    def takes(strategy: Strategy, score: Objective) -> bool:
        """Whether beams and bounds rank by value. A score that asks for attention or a language model goes the other way."""
        usual = type(strategy.order) is BestFirst and strategy.finished == "leave" and strategy.k < inf
        rises = getattr(score, "one_way", False) and not score.monotonic and score.needs <= {"source_length"}
        return usual and rises and strategy.heuristic is None and strategy.queue_capacity is None

    def __init__(self, strategy: Strategy, *, score: Objective, **settings: Any) -> None:
        super().__init__(strategy, score=score, **settings)
        self.score, self.context = score, settings["context"]
        self.enough = int(max(self.n, self.k))  # of n, where more are asked for than Hugging Face collects
        self._progress: StepProgress = StepProgress()
        self._leaves_out = True

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take what the model said of `y`; if that was needed, go on to the next that is."""
        super().commit(y, successors)
        if self._needed is None and self._leaves_out and not self._certain(self._progress):
            self._leaves_out = False
            self._progress, self._needed = StepProgress(), self.root
            self._advance()
        if self._needed is None:
            self.answers = [Answer(tokens, -cost, logprob) for cost, _, tokens, logprob in self._counted(self._progress)]

    # -- whose turn it is ----------------------------------------------------------------------------------------------------

    def _finish(self, progress: StepProgress, parent: Hypothesis, j: int, value: float) -> None:  # type: ignore[override]
        length = parent.length + 1
        if progress.members[length] >= self.k:
            return
        self._enter(progress, length, value)
        if length not in progress.hidden:  # else it comes after the n-th answer, and what was left out may displace it
            tokens = (*parent.tokens, parent.successors.tokens[j])  # type: ignore[union-attr]
            insort(progress.found, (-self._final(value, length), length, tokens, logprob_of(parent, j)))

    def _hopeless(self, progress: StepProgress, y: Hypothesis) -> bool:  # type: ignore[override]
        """Whether `y`, on its turn, need not be scored: the search is over, or nothing that matters can come of it."""
        if self._over(progress, y):
            progress.answers = self.n
            return True
        if y.length == len(progress.best):
            progress.best.append(y.value)
        if progress.unfinished[y.length] >= self.k:
            progress.full = max(progress.full, y.length)
        some_longer_is_full = progress.full > y.length or len(progress.members) > self.n_max
        return some_longer_is_full and self._left_out(progress, y)

    def _left_out(self, progress: StepProgress, y: Hypothesis) -> bool:
        """Whether every continuation of `y` falls off a beam, and none can be an answer before the n-th until then."""
        members, unfinished, kth, value, k = progress.members, progress.unfinished, progress.kth, y.value, self.k
        free: list[int] = []
        for at in range(y.length + 1, len(members)):
            if unfinished[at] >= k and progress.last[at] > value:
                break
            if members[at] < k or kth[at] <= value:
                free.append(at)
        else:
            return not free and len(members) > self.n_max
        if not free:
            return True
        if not self._leaves_out or len(progress.found) < self.n:
            return False
        if progress.found[self.n - 1][:3] > (-self._final(value, free[-1]), y.length, y.tokens):
            return False
        for at in free:
            progress.hidden.setdefault(at, self._final(value, at))
        return True

    # -- when it is over -----------------------------------------------------------------------------------------------------

    def _over(self, progress: StepProgress, y: Hypothesis) -> bool:
        """Whether it is settled before `y` has its turn what the n best answers are, or the step."""
        found = progress.found
        if len(found) < self.n:
            return False
        progress.step = self._step(progress, y.value, y.length)
        return progress.step < inf or found[self.n - 1][:3] < (-self._final(y.value, self.n_max), y.length, y.tokens)

    def _step(self, progress: StepProgress, value: float, length: int) -> float:
        """The step at which Hugging Face stops, if what precedes an open hypothesis of this value and length settles it.

        `HuggingFaceStep` has the argument. No step before the two that are looked at here is it: that was known at earlier turns.
        """
        found, last = progress.found, len(progress.best) - 1
        if len(found) < self.enough:
            return inf
        answer = -found[self.enough - 1][0]
        best = progress.best[last]
        rival = self._final(best, last)
        if answer >= rival:
            there = [each for each in found if each[1] <= last]
            answer_there = -there[self.enough - 1][0] if len(there) >= self.enough else -inf
            if answer_there > rival or (answer_there == rival and (value < best or length >= last)):
                return last
        # Equal scores settle it if the open one is itself the best of its length, and no shorter one could still finish there.
        rival = -inf if value == -inf else self._final(value, last + 1)
        return last + 1 if answer > rival or (answer == rival and length > last) else inf

    def _counted(self, progress: StepProgress) -> list[Found]:
        """The n best answers of at most as many tokens as the step."""
        step = progress.step if progress.answers else self._step(progress, -inf, 0)
        return [each for each in progress.found if each[1] <= step][: self.n]

    def _certain(self, progress: StepProgress) -> bool:
        """Whether no answer below what was left out could have stopped Hugging Face before the longest of the n best."""
        longest = max((each[1] for each in self._counted(progress)), default=0)
        for step, value in enumerate(progress.best[:longest]):
            hidden = max((score for at, score in progress.hidden.items() if at <= step), default=-inf)
            if hidden > -inf and hidden >= self._final(value, step):
                there = [-each[0] for each in progress.found if each[1] <= step]
                if len(there) < self.enough or there[self.enough - 1] < hidden:
                    return False
        return True

    def _final(self, value: float, length: int) -> float:
        return self.score.final(value, length, self.context)
