"""Search: what an engine drives, and the implementations. `Score.search` chooses which one runs.

All give the same answers and scores; `StepSearch` and `LevelSearch` may save calls that the last two make
(`tests/search/test_equal_searches.py`, `test_step.py`, `test_level.py`):

    StrictSearch     the common case, cheapest: best first, by a score that is its own bound, until n have finished
    StepSearch       best first until the step at which Hugging Face stops by default, by a score that rises with length
    LevelSearch      level by level, until a number have finished: Hugging Face's True, CTranslate2's stop, patience, greedy
    AnyOrderSearch   everything else: other orders, stops and scores, a heuristic, a queue of limited capacity, `max_calls`,
                     a trace, outputs that end without EOS
    on a device      in `bestfirst.engine`: all searches of a batch in kernels. The engine checks first whether it holds the
                     model on an accelerator and its kernels support the settings; otherwise it runs one of the others

`Groups` runs several of them for one input (diverse beam search). `RequiredWordsSearch` is a separate search, for outputs that
must contain given words; `Decoding.search` starts it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from .hypothesis import Hypothesis, Successors
from .result import Answer, Result


class Search(Protocol):
    """The search of one input, as an engine drives it: while there is a frontier, score some of it and commit what was scored.

    The order in which scored hypotheses are committed changes neither the result nor its `calls`.
    """

    root: Hypothesis
    rows: int  # hypotheses scored so far, speculation included
    whole_levels: bool  # whether all hypotheses of a frontier are certain to be needed
    level_rows: int  # the most hypotheses of one length that there may be to score
    width: float
    """How many successors of a hypothesis can matter: k plus one for each EOS; infinite where nothing is pruned."""

    @property
    def roots(self) -> list[Hypothesis]:
        """The roots of the trees that are searched."""
        return [self.root]

    @abstractmethod
    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now, the needed one first. Empty when the search is over."""

    @abstractmethod
    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take the model's successors of `y`, a hypothesis of a frontier."""

    def certified(self) -> list[Answer]:
        """The answers, best first, that are certain to be the first of the result: for streaming them before the rest is known.

        They precede every open hypothesis, so a search for only that many would stop here (`Answered`). The list is empty level
        by level, under another stop (for `StepSearch`, until the end), without a guarantee, and for all searches that do not
        say otherwise. Call it between two steps. Tested by `tests/search/test_certified.py`.
        """
        return []

    @abstractmethod
    def result(self) -> Result:
        """The answers so far; final once the frontier is empty."""

    @abstractmethod
    def dismantle(self) -> None:
        """Break reference cycles, so that memory is freed at once. The search cannot go on."""


class WholeLevels(Search):
    """Searches of one input that get a level at a time: successors are kept until those of the whole level are known."""

    whole_levels = True

    def __init__(self, searches: Sequence[Any]) -> None:
        self.searches = searches
        self.root = searches[0].root
        self.rows = 0
        self.level_rows = sum(search.level_rows for search in searches)
        self._level: list[Hypothesis] = [self.root]
        self._scored: dict[Hypothesis, Successors] = {}

    @property
    def roots(self) -> list[Hypothesis]:
        return [search.root for search in self.searches]

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses of the current level that are not scored yet; empty when the search is over."""
        return [y for y in self._level if y not in self._scored][:m]

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Keep the successors of `y`; after the last of a level, go on to the next level."""
        self._scored[y] = successors
        self.rows += 1
        if len(self._scored) == len(self._level):
            self._level = self._next_level(self._scored)
            self._scored = {}

    @abstractmethod
    def _next_level(self, scored: dict[Hypothesis, Successors]) -> list[Hypothesis]:
        """Commit a level with its successors to the searches, and return the next."""

    def dismantle(self) -> None:
        for search in self.searches:
            search.dismantle()
