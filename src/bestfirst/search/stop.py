"""Choice point 2 of Algorithm 2: when to stop. A rule is asked before a hypothesis that is on its turn is scored.

Best-first search stops by `Answered`. The others are the field's rules for beam search, each of them asked once a level, so that
it does not matter how a level was scored; `HuggingFaceStep` is one of them found best-first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .hypothesis import Hypothesis, Key
    from .search import Search


class Stop(Protocol):
    """A stopping rule. `exact`: under it the result is still that of beam search run to the end.

    A rule with an attribute `depends_on_past = False` claims that it stops with the same result whatever was scored ahead of its
    turn; with any other, nothing is. One that does not count all answers has a method `counted(search)`, which returns those.
    """

    name: str
    exact: bool

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        """Whether to stop instead of scoring `y`, the first open hypothesis in the order."""
        ...


class Answered:
    """The n best answers precede everything open: the paper's `Q.peek().last() = EOS`, n times (Table 1, columns 2 and 3)."""

    name = "answered"
    exact = True
    depends_on_past = False

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        return len(search.answers) >= search.n and search.answers[search.n - 1] < y.key


class Exhausted:
    """Nothing unfinished is left (Table 1, column 1: all of Q ends in EOS)."""

    name = "exhausted"
    exact = True
    depends_on_past = False

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        return False


class Unreachable:
    """No open hypothesis can reach the n-th answer: the paper's criterion for scores that are not monotonic (Eq. 7, with U).

    The paper pairs it with the order of the scores themselves (`BestScore`); that is not exact (`docs/scores.md`).
    """

    name = "unreachable"
    exact = False
    depends_on_past = True

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        if len(search.answers) < search.n:
            return False
        answer = search.answers[search.n - 1][3].worth
        return all(z.bound <= answer for z in search.agenda.in_order())


class HuggingFaceStep:
    """Hugging Face's `early_stopping=False`, its default, found best-first: the same answers, fewer calls.

    Its beam search ends with the first step t at which the best unfinished hypothesis of length t is worth no more than the k-th
    answer of at most t tokens. Nothing open has a greater value than `y`, so what precedes `y` settles t: the best of a length is
    known if its value is no less than that of `y`; where it is less, it stays so, and `y` at that length is the most it could be
    worth. Answers that pass the test have a greater value than `y`, too, so they stay; what is still open can only finish below
    them. All this looks at what precedes `y` alone, so it does not matter what was scored ahead; longer answers that were found
    that way do not count. Needs best-first order, `leave`, and a score that rises with length for a fixed value; a monotonic one
    stops exactly.
    """

    name = "hf-false"
    exact = False
    depends_on_past = False

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        return _ANSWERED(search, y) or self._step(search, y.value, y.length) is not None

    def _step(self, search: Search, value: float, length: int) -> int | None:
        """The step at which Hugging Face stops, if what precedes an open hypothesis of this value and length settles it."""
        enough = int(max(search.n, search.strategy.k))
        if search.score.monotonic or len(search.answers) < enough:
            return None
        answers = [z[3] for z in search.answers]
        first = sorted(z.length for z in answers)[enough - 1]  # no shorter step has so many answers
        if _best_value(search, first - 1) < value:
            return None  # the best of a length is no better than that of a shorter one: all of those are known, or none here
        for t in range(first, min(len(search.agenda.beams), search.context.n_max) + 1):
            best = _best_value(search, t)
            known = best >= value
            answer = [z for z in answers if z.length <= t][enough - 1].worth
            rival = search.score.final(best if known else value, t, search.context)
            # An equal one that is open and shorter could still finish at this step, and precede the k-th answer in the order.
            if answer > rival or (answer == rival and known and (value < best or length >= t)):
                return t
            if not known:
                return None
        return None

    def counted(self, search: Search) -> list[Key]:
        """The answers that Hugging Face had found by then."""
        y = search.first()
        step = self._step(search, -inf, 0) if y is None else self._step(search, y.value, y.length)
        return search.answers if step is None else [z for z in search.answers if z[3].length <= step]


_ANSWERED = Answered()


def _best_value(search: Search, length: int) -> float:
    """The value of the best unfinished hypothesis of this length that is known."""
    beams = search.agenda.beams
    return next((z[3].value for z in beams[length].members if not z[3].finished), -inf) if length < len(beams) else -inf


def _kth_answer(search: Search) -> Hypothesis | None:
    """The worst of the k answers that Hugging Face collects, once there are so many; of n, where more are asked for."""
    enough = max(search.n, search.strategy.k)
    return search.answers[int(enough) - 1][3] if len(search.answers) >= enough else None


def _settled(search: Search, length: int, n: float) -> bool:
    """Whether the n-th answer precedes all that the unfinished ones of this length have or can reach, ties as in `Answered`.

    A stop at equal scores would sometimes spare beam search a call that best-first search makes. Once a bound was seen to be
    broken (additive scores that rise), none is relied on.
    """
    y = search.best_unfinished(length)
    return search.bound_holds and len(search.answers) >= n and search.answers[int(n) - 1][:3] < (-y.reach, y.length, y.tokens)


# -- level by level --------------------------------------------------------------------------------------------------------


class LevelStop(ABC):
    """A rule for beam search: asked when all hypotheses of a length are known and none of them is scored."""

    name = "level"
    exact = False
    depends_on_past = False
    level_by_level = True

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        begun = len(search.agenda.beams) > y.length + 1
        return not begun and self.at_level(search, y.length)

    @abstractmethod
    def at_level(self, search: Search, length: int) -> bool:
        """Whether to stop instead of going on from this length."""


class NeverStop(LevelStop):
    """Nothing unfinished can beat the k-th answer: Hugging Face's `early_stopping="never"`."""

    name = "hf-never"
    exact = True

    def at_level(self, search: Search, length: int) -> bool:
        return _settled(search, length, max(search.n, search.strategy.k))


class OptimalStop(LevelStop):
    """Nothing unfinished can beat the n-th answer: optimal stopping (Huang et al. 2017; our reading).

    Written there for a bounded length reward; with the score's own bound it holds for every score.
    """

    name = "huang"
    exact = True

    def at_level(self, search: Search, length: int) -> bool:
        return _settled(search, length, search.n)


class TopFinished(LevelStop):
    """The best hypothesis of the beam is finished: OpenNMT's early stop, the paper's ES. For n answers: so are the n best.

    With a monotonic score it returns beam search's best; it cannot know the score, so it makes no claim.
    """

    name = "opennmt"

    def at_level(self, search: Search, length: int) -> bool:
        members = search.agenda.beams[length].members
        return len(search.answers) >= search.n and all(member[3].finished for member in members[: search.n])


class Patience(LevelStop):
    """There are `factor` times k answers (Kasai et al. 2022). At 1, first come, first served: Hugging Face's True."""

    name = "patience"

    def __init__(self, factor: float = 1.0, name: str = "patience") -> None:
        if not 0 < factor < inf:
            raise ValueError(f"the patience factor must be a number above 0, got {factor}")
        self.factor = factor
        self.name = name

    def at_level(self, search: Search, length: int) -> bool:
        return len(search.answers) >= self.factor * search.strategy.k


class BestIsWorse(LevelStop):
    """The best unfinished hypothesis, as long as it is, does not beat the k-th answer: Hugging Face's False."""

    name = "hf-false"

    def at_level(self, search: Search, length: int) -> bool:
        answer = _kth_answer(search)
        return answer is not None and search.best_unfinished(length).worth <= answer.worth
