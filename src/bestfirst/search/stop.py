"""Choice point 2 of Algorithm 2: when to stop. A rule is asked before a hypothesis that is on its turn is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .hypothesis import Hypothesis
    from .search import Search


class Stop(Protocol):
    """A stopping rule. `exact`: under it the result is still that of beam search run to the end."""

    name: str
    exact: bool

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        """Whether to stop instead of scoring `y`, the first open hypothesis in the order."""
        ...


class Answered:
    """The n best answers precede everything open: the paper's `Q.peek().last() = EOS`, n times (Table 1, columns 2 and 3)."""

    name = "answered"
    exact = True

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        return len(search.answers) >= search.n and search.answers[search.n - 1] < y.key


class Exhausted:
    """Nothing unfinished is left (Table 1, column 1: all of Q ends in EOS)."""

    name = "exhausted"
    exact = True

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        return False


class NeverStop:
    """Nothing unfinished can beat the k-th answer, asked level by level: Hugging Face's `early_stopping="never"`."""

    name = "never"
    exact = True

    def __call__(self, search: Search, y: Hypothesis) -> bool:
        enough = max(search.n, int(search.strategy.k))
        return len(search.answers) >= enough and search.best_reach(y.length) <= search.answers[enough - 1][3].worth
