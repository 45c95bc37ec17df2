"""StepSearch: best-first search under Hugging Face's default stop (`early_stopping=False`), for scores that rise with length.

Beams rank by value, and hypotheses come in order of value, so beams fill from the top, as in `StrictSearch`. Two things differ.
The search is over when the step at which Hugging Face stops is known, or the n best answers. And a member whose continuations all
fall off a longer beam is *set aside* until the longer lengths are searched: by then most of these cannot be an answer before the
n-th and are *left out*, which means never scored. `docs/algorithm.md` has the proof, `tests/search/test_step.py` the properties;
`engine/steps/native/step_searches.py` is a compiled copy with the same names.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify
from math import inf
from typing import TYPE_CHECKING, Any

from .hypothesis import Hypothesis, Successors, logprob_of
from .result import Answer
from .strict import NextChild, Progress, StrictSearch, tokens_of
from .table_1 import BestFirst, Strategy

if TYPE_CHECKING:
    from .score import Score

Found = tuple[float, int, tuple[int, ...], float]
"""An answer: its score, negated; its length; its tokens; its log-probability. Sorts best first."""


class StepProgress(Progress):
    """The state of a search, with what is known of the step and of what is set aside."""

    __slots__ = ("aside", "attains", "away", "best", "found", "full", "hidden", "next", "off", "over", "shorter", "step")

    def __init__(self) -> None:
        super().__init__()
        self.best: list[float] = [0.0]  # by length, the value of the best unfinished hypothesis, as far as it is known
        self.found: list[Found] = []  # the answers, best first
        self.hidden: dict[int, float] = {}  # by length, the greatest score that an answer below what was left out can have
        self.step = inf  # the step at which Hugging Face stops, if known: no longer answer counts
        self.full = 0  # the greatest length with k unfinished members
        self.over = False  # whether the n best answers or the step are known, apart from what is set aside
        self.aside: list[Hypothesis] = []  # set aside, by value: all their continuations fall off a longer beam
        self.off = 0  # the greatest length at which these fall off
        self.attains = -inf  # the best score that an answer below them can have
        self.shorter = False  # whether it is the turn of what is set aside and of lengths below `off`
        self.away: list[NextChild] = []  # the cursors of the lengths whose turn it is not
        self.next: Hypothesis | None = None  # during `shorter`, the first of the longer ones

    def copy(self) -> StepProgress:
        other: StepProgress = super().copy()  # type: ignore[assignment]
        other.best, other.found, other.hidden = self.best[:], self.found[:], self.hidden.copy()
        other.step, other.full, other.over, other.off, other.attains = self.step, self.full, self.over, self.off, self.attains
        other.aside, other.shorter, other.away, other.next = self.aside[:], self.shorter, self.away[:], self.next
        return other

    def switch(self) -> None:
        """Exchange the queue for the other one (`away`): from the shorter lengths to the longer ones, or back."""
        self.heap, self.away, self.shorter = self.away, self.heap, not self.shorter
        heapify(self.heap)


class StepSearch(StrictSearch):
    """The search of one input under Hugging Face's `early_stopping=False`; implements `Search`."""

    keeps_children = True

    @staticmethod
    def takes(strategy: Strategy, score: Score) -> bool:
        """Whether beams and bounds rank by value. Rising scores that need attention or a language model are not supported."""
        usual = type(strategy.order) is BestFirst and strategy.finished == "leave" and strategy.k < inf
        rises = score.one_way and not score.monotonic and score.needs <= {"source_length"}
        return usual and rises and strategy.any_order

    def __init__(self, strategy: Strategy, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.enough = int(max(self.n, self.k))  # answers that stop Hugging Face: k, or n where more than k are requested
        self._progress: StepProgress = StepProgress()
        self._leaves_out = True  # False once the search had to begin again

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take the successors of `y`. If the end is not `_certain`, begin again from what is scored, and leave nothing out."""
        super().commit(y, successors)
        if self._needed is None and self._leaves_out and not self._certain(self._progress):
            self._leaves_out = False
            self._progress, self._needed = StepProgress(), self.root
            self._advance()
        if self._needed is None:
            self.answers = [Answer(tokens, -cost, logprob) for cost, _, tokens, logprob in self._counted(self._progress)]

    # -- the next in order ---------------------------------------------------------------------------------------------------

    def _pop(self, progress: StepProgress) -> Hypothesis | None:  # type: ignore[override]
        """As `StrictSearch._pop`, but goes to the shorter lengths once they may count for the step, or the longer are over."""
        while True:
            if not progress.shorter:
                y = super()._pop(progress)
                if not progress.aside or (y is not None and progress.attains < self._rival(progress, y)):
                    return y
                progress.next, progress.answers = y, 0
                progress.switch()
            while progress.aside:
                if not self._left_out(progress, y := progress.aside.pop(0)):
                    return y
            y, next_ = super()._pop(progress), progress.next
            if y is not None and (next_ is None or y.value >= next_.value):
                return y
            progress.switch()
            progress.aside, progress.attains = ([], -inf) if y is None else ([y], self._final(y.value, progress.off))
            if next_ is None or not self._ends(progress, next_):
                return next_

    def _rival(self, progress: StepProgress, y: Hypothesis) -> float:
        """The score that an answer must reach to count for the step that is decided at the turn of `y`."""
        first = progress.unfinished[y.length] == 1
        return self._final(y.value, y.length if first else len(progress.best))

    def _finish(self, progress: StepProgress, parent: Hypothesis, j: int, value: float) -> None:  # type: ignore[override]
        """A finished hypothesis came to the front: it is an answer if there is a slot for it at its own length."""
        length = parent.length + 1
        if progress.members[length] >= self.k:
            return
        self._enter(progress, length, value)
        self._find(progress, parent, j, value)

    def _find(self, progress: StepProgress, parent: Hypothesis, j: int, value: float) -> None:
        """Add an answer, unless it is known already or its length has lost members to what was left out."""
        length = parent.length + 1
        if length in progress.hidden:  # it comes after the n-th answer, and might lose its slot to what was left out
            return
        tokens = (*parent.tokens, parent.successors.tokens[j])  # type: ignore[union-attr]
        answer = (-self._final(value, length), length, tokens, logprob_of(parent, j))
        at = bisect_left(progress.found, answer)
        if progress.found[at : at + 1] != [answer]:
            progress.found.insert(at, answer)

    def _hopeless(self, progress: StepProgress, y: Hypothesis) -> bool:  # type: ignore[override]
        """Whether `y`, at its turn, need not be scored: the search is over, or no continuation of it matters."""
        if not progress.shorter and self._ends(progress, y):
            return True
        if y.length == len(progress.best):
            progress.best.append(y.value)
        if progress.unfinished[y.length] >= self.k:
            progress.full = max(progress.full, y.length)
        some_longer_is_full = progress.full > y.length or len(progress.members) > self.n_max
        return some_longer_is_full and self._left_out(progress, y)

    def _left_out(self, progress: StepProgress, y: Hypothesis) -> bool:
        """Whether all continuations of `y` fall off a beam and come after the n-th answer; if only the first, it is set aside."""
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
        if not self._leaves_out:
            return False
        attains = self._final(value, free[-1])
        behind = len(progress.found) >= self.n and progress.found[self.n - 1][:3] <= (-attains, y.length, y.tokens)
        w = progress.next if progress.shorter else None
        may_stop = w is not None and progress.unfinished[w.length] == 1 and attains >= self._final(w.value, w.length)
        if may_stop or not behind:
            return not progress.shorter and self._set_aside(progress, y, attains, at)
        for at in free:
            progress.hidden.setdefault(at, self._final(value, at))
        return True

    def _set_aside(self, progress: StepProgress, y: Hypothesis, attains: float, off: int) -> bool:
        """Set `y` aside with the cursors of lengths below `off`, where its continuations fall off: longer lengths go on first."""
        progress.aside.append(y)
        progress.attains, progress.off = max(progress.attains, attains), off
        progress.away += [each for each in progress.heap if each[1] < off]
        progress.heap[:] = [each for each in progress.heap if each[1] >= off]
        heapify(progress.heap)
        return True

    # -- when it is over -----------------------------------------------------------------------------------------------------

    def _ends(self, progress: StepProgress, y: Hypothesis) -> bool:
        """Whether, before it is the turn of `y`, the n best answers are certain or the step is known."""
        self._find_equals(progress, y)
        found = progress.found
        if len(found) < self.n:
            return False
        progress.step = self._step(progress, y.value, y.length)
        certain = found[self.n - 1][:3] < (-self._final(y.value, self.n_max), y.length, y.tokens)
        progress.over = progress.step < inf or certain
        progress.answers = self.n if progress.over else 0
        return progress.over

    def _find_equals(self, progress: StepProgress, y: Hypothesis) -> None:
        """Add the answers of the same value and length as `y` that have a slot and follow it only by their tokens. They count at
        its turn: if they make Hugging Face stop, it does so before it scores `y`."""
        heap, same, slots = progress.heap, (-y.value, y.length), self.k - progress.members[y.length]
        if not heap or heap[0][:2] != same or slots <= 0:
            return
        equals: list[NextChild] = []
        for *key, serial, parent, j in heap:
            values = parent.successors.values if tuple(key) == same else ()  # type: ignore[union-attr]
            while j < len(values) and parent.value + values[j] == y.value:
                equals.append((*same, serial, parent, j))
                j += 1
        for _, _, _, parent, j in sorted(equals, key=tokens_of)[: int(slots)]:
            if parent.successors.tokens[j] in self.eos:  # type: ignore[union-attr]
                self._find(progress, parent, j, y.value)

    def _step(self, progress: StepProgress, value: float, length: int) -> float:
        """The step at which Hugging Face stops, or inf if what precedes an open one of this value and length does not decide it.

        `HuggingFaceStep` has the argument. Only two steps are tried here: smaller ones were ruled out at earlier turns.
        """
        found, last = progress.found, len(progress.best) - 1
        if len(found) < self.enough:
            return inf
        answer = -found[self.enough - 1][0]
        best = progress.best[last]
        rival = self._final(best, last)
        if answer >= rival:
            in_time = [each for each in found if each[1] <= last]
            answer_in_time = -in_time[self.enough - 1][0] if len(in_time) >= self.enough else -inf
            if answer_in_time > rival or (answer_in_time == rival and (value < best or length >= last)):
                return last
        # Equal scores decide it if the open one is itself the best of its length, and no shorter one could still finish there.
        rival = -inf if value == -inf else self._final(value, last + 1)
        return last + 1 if answer > rival or (answer == rival and length > last) else inf

    def _counted(self, progress: StepProgress) -> list[Found]:
        """The n best answers of at most as many tokens as the step."""
        step = progress.step if progress.over else self._step(progress, -inf, 0)
        return [each for each in progress.found if each[1] <= step][: self.n]

    def _certain(self, progress: StepProgress) -> bool:
        """Whether no answer below what was left out or set aside could have stopped Hugging Face before the longest result."""
        longest = max((each[1] for each in self._counted(progress)), default=0)
        for step, value in enumerate(progress.best[:longest]):
            rival = self._final(value, step) if step else inf
            hidden = max((score for at, score in progress.hidden.items() if at <= step), default=-inf)
            if hidden >= rival or sum(each[0] <= -rival for each in progress.found if each[1] <= step) >= self.enough:
                return False
        return True

    def _final(self, value: float, length: int) -> float:
        return self.score.final(value, length, self.context)
