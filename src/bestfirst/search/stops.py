"""Choice point (2) of Algorithm 2: when to stop. A rule is called before the hypothesis whose turn it is gets scored.

Best-first search stops by `Answered`. The others are the field's rules for beam search; these are called once per level, so their
outcome does not depend on the order of scoring within it. `bestfirst.strategies` adds the rules of Hugging Face and CTranslate2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .any_order import AnyOrderSearch
    from .hypothesis import Hypothesis
    from .score import Score
    from .table_1 import Strategy


class Stop(Protocol):
    """A stopping rule. `exact`: under it the result is still that of beam search run to the end.

    Optional attributes: `best_first = True`, that the rule compares by score, and so goes with no level-by-level order;
    `depends_on_past = False` claims that the rule stops with the same result whatever was scored ahead of
    its turn (without it, nothing is scored ahead); a method `counted(search)` returns the answers that count, if not all do;
    `own_search` names a cheaper search than `AnyOrderSearch` for this rule.
    """

    name: str
    exact: bool

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        """Whether to stop instead of scoring `y`, the first open hypothesis in the order."""


class Answered:
    """The n best answers precede all open hypotheses: the paper's `Q.peek().last() = EOS`, n times (Table 1, columns 2, 3).

    Compares an answer's key, which is by score, with the agenda's: only for orders by bound or score, not for `ShortestFirst`.
    """

    name = "answered"
    best_first = True
    exact = True
    depends_on_past = False

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return len(search.answers) >= search.n and search.answers[search.n - 1].key < y.key


class Exhausted:
    """Never stops: the search ends when no unfinished hypothesis is left (Table 1, column 1: all of Q ends in EOS)."""

    name = "exhausted"
    exact = True
    depends_on_past = False

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return False


class Unreachable:
    """No open hypothesis can reach the n-th answer: the paper's criterion for scores that are not monotonic (Eq. 6, with U).

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
    """A rule for beam search: called when all hypotheses of a length are known and none of them has been scored."""

    name = "level"
    exact = False
    depends_on_past = False
    level_by_level = True

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        level_begun = len(search.agenda.beams) > y.length + 1
        return not level_begun and self.at_level(search, y.length)

    @abstractmethod
    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        """Whether to stop instead of scoring the hypotheses of this length."""


def settled(search: AnyOrderSearch, length: int, n: float) -> bool:
    """Whether the n-th answer precedes all that the unfinished hypotheses of this length are or can reach; ties as in `Answered`.

    A stop at equal scores would sometimes save beam search a call that best-first search makes. After a bound was seen to be
    broken (additive scores that rise), no bound is relied on.
    """
    y = search.best_unfinished(length)
    return search.bound_holds and len(search.answers) >= n and search.answers[int(n) - 1].key < (-y.reach, y.length, y.tokens)


class NeverStop(LevelStop):
    """No unfinished hypothesis can beat the k-th answer: Hugging Face's `early_stopping="never"`."""

    name = "hf-never"
    exact = True

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return settled(search, length, max(search.n, search.strategy.k))


class OptimalStop(LevelStop):
    """No unfinished hypothesis can beat the n-th answer: optimal stopping (Huang et al. 2017; our reading).

    Written there for a bounded length reward; with the score's own bound it holds for every score.
    """

    name = "huang"
    exact = True

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return settled(search, length, search.n)


class TopFinished(LevelStop):
    """The best hypothesis of the beam is finished: OpenNMT's early stop, the paper's ES. For n answers: so are the n best.

    With a monotonic score it returns beam search's best answer. A rule does not know the score, so it does not claim to be exact.
    """

    name = "opennmt"

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        best = search.agenda.beams[length].members[: search.n]
        return len(search.answers) >= search.n and all(y.finished for y in best)


class Patience(LevelStop):
    """There are `factor` times k answers (Kasai et al. 2022). With factor 1, first come, first served: Hugging Face's True.

    In an order that relies on bounds it also stops once no unfinished hypothesis can precede the n-th answer: the n best are then
    final, however many answers follow. A subclass that counts otherwise overrides `enough`.
    """

    name = "patience"

    def __init__(self, factor: float = 1.0, name: str | None = None) -> None:
        if not 0 < factor < inf:
            raise ValueError(f"the patience factor must be a number above 0, got {factor}")
        self.factor = float(factor)
        self.name = name or self.name

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        return len(search.answers) >= self.enough(search.strategy, search.score) or self.known(search, length)

    def enough(self, strategy: Strategy, score: Score) -> float:
        """The number of answers that ends the search; infinite if their number does not matter."""
        return self.factor * strategy.k

    def known(self, search: AnyOrderSearch, length: int) -> bool:
        """Whether bounds already determine which answers are the n best."""
        if not search.policy.prunes or len(search.answers) < search.n:
            return False
        y = search.best_unfinished(length)
        return search.answers[search.n - 1].key < (-y.bound, y.length, y.tokens)
