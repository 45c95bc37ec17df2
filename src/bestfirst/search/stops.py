"""Choice point 2 of Algorithm 2: when to stop. A rule is asked before a hypothesis that is on its turn is scored.

Best-first search stops by `Answered`. The others are the field's rules for beam search, each of them asked once a level, so that
it does not matter how a level was scored. `bestfirst.strategies` has those that only Hugging Face or CTranslate2 know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .any_order import AnyOrderSearch
    from .hypothesis import Hypothesis
    from .level import LevelSearch


class Stop(Protocol):
    """A stopping rule. `exact`: under it the result is still that of beam search run to the end.

    A rule with an attribute `depends_on_past = False` claims that it stops with the same result whatever was scored ahead of its
    turn; with any other, nothing is. One that does not count all answers has a method `counted(search)`, which returns those.
    One for which there is a cheaper search than `AnyOrderSearch` names it as `own_search`.
    """

    name: str
    exact: bool

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        """Whether to stop instead of scoring `y`, the first open hypothesis in the order."""


class Answered:
    """The n best answers precede everything open: the paper's `Q.peek().last() = EOS`, n times (Table 1, columns 2 and 3)."""

    name = "answered"
    exact = True
    depends_on_past = False

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return len(search.answers) >= search.n and search.answers[search.n - 1].key < y.key


class Exhausted:
    """Nothing unfinished is left (Table 1, column 1: all of Q ends in EOS)."""

    name = "exhausted"
    exact = True
    depends_on_past = False

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return False


class Unreachable:
    """No open hypothesis can reach the n-th answer: the paper's criterion for scores that are not monotonic (Eq. 7, with U).

    The paper pairs it with the order of the scores themselves (`BestScore`); that is not exact (`docs/scores.md`).
    """

    name = "unreachable"
    exact = False
    depends_on_past = True

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        if len(search.answers) < search.n:
            return False
        answer = search.answers[search.n - 1].worth
        return all(z.bound <= answer for z in search.agenda.in_order())


# -- level by level --------------------------------------------------------------------------------------------------------


class LevelStop(ABC):
    """A rule for beam search: asked when all hypotheses of a length are known and none of them is scored."""

    name = "level"
    exact = False
    depends_on_past = False
    level_by_level = True

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        begun = len(search.agenda.beams) > y.length + 1
        return not begun and self.at_level(search, y.length)

    @abstractmethod
    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        """Whether to stop instead of going on from this length."""


def settled(search: AnyOrderSearch, length: int, n: float) -> bool:
    """Whether the n-th answer precedes all that the unfinished ones of this length have or can reach, ties as in `Answered`.

    A stop at equal scores would sometimes spare beam search a call that best-first search makes. Once a bound was seen to be
    broken (additive scores that rise), none is relied on.
    """
    y = search.best_unfinished(length)
    return search.bound_holds and len(search.answers) >= n and search.answers[int(n) - 1].key < (-y.reach, y.length, y.tokens)


class NeverStop(LevelStop):
    """Nothing unfinished can beat the k-th answer: Hugging Face's `early_stopping="never"`."""

    name = "hf-never"
    exact = True

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return settled(search, length, max(search.n, search.strategy.k))


class OptimalStop(LevelStop):
    """Nothing unfinished can beat the n-th answer: optimal stopping (Huang et al. 2017; our reading).

    Written there for a bounded length reward; with the score's own bound it holds for every score.
    """

    name = "huang"
    exact = True

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return settled(search, length, search.n)


class TopFinished(LevelStop):
    """The best hypothesis of the beam is finished: OpenNMT's early stop, the paper's ES. For n answers: so are the n best.

    With a monotonic score it returns beam search's best; it cannot know the score, so it makes no claim.
    """

    name = "opennmt"

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        best = search.agenda.beams[length].members[: search.n]
        return len(search.answers) >= search.n and all(y.finished for y in best)


class Patience(LevelStop):
    """There are `factor` times k answers (Kasai et al. 2022). At 1, first come, first served: Hugging Face's True.

    In an order that relies on bounds it stops as well once nothing unfinished can come before the n-th answer: the n best are
    then what they will be, however many follow. A subclass with a count of its own has its own `enough`.
    """

    name = "patience"

    def __init__(self, factor: float = 1.0, name: str | None = None) -> None:
        if not 0 < factor < inf:
            raise ValueError(f"the patience factor must be a number above 0, got {factor}")
        self.factor = factor
        self.name = name or self.name

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return len(search.answers) >= self.enough(search) or self.known(search, length)

    def enough(self, search: AnyOrderSearch | LevelSearch) -> float:
        """How many answers end it; infinite where it is not their number that does."""
        return self.factor * search.strategy.k

    def known(self, search: AnyOrderSearch, length: int) -> bool:
        """Whether bounds tell already which answers are the n best."""
        if not search.policy.prunes or len(search.answers) < search.n:
            return False
        y = search.best_unfinished(length)
        return search.answers[search.n - 1].key < (-y.bound, y.length, y.tokens)
