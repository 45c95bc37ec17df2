"""Search: the protocol that an engine drives, and the implementations. `Score.search` chooses which one runs.

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

from bisect import bisect_left
from dataclasses import replace
from typing import Protocol

from .agenda import by_key
from .any_order import AnyOrderSearch
from .hypothesis import Hypothesis, Successors
from .result import Answer, Result
from .stops import Answered
from .strict import StrictSearch


class Search(Protocol):
    """The search of one input, as an engine drives it: while there is a frontier, score some of it and commit what was scored.

    The order in which scored hypotheses are committed changes neither the result nor its `calls`.
    """

    root: Hypothesis
    rows: int  # hypotheses scored so far, speculation included
    whole_levels: bool  # whether all hypotheses of a frontier are certain to be needed
    level_rows: int  # the most hypotheses of one length that there may be to score

    @property
    def width(self) -> float:
        """How many successors of a hypothesis can matter: k plus one for each EOS; infinite where nothing is pruned."""

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now, the needed one first. Empty when the search is over."""

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take the model's successors of `y`, a hypothesis of a frontier."""

    def result(self) -> Result:
        """The answers so far; final once the frontier is empty."""

    def dismantle(self) -> None:
        """Break reference cycles, so that memory is freed at once. The search cannot go on."""


def certified(search: Search) -> list[Answer]:
    """The answers, best first, that are certain to be the first of the result: for streaming them before the rest is known.

    They precede every open hypothesis, so a search for only that many would stop here (`Answered`). The list is empty level by
    level, under another stop (for `StepSearch`, until the end), without a guarantee, and for `Groups` and `RequiredWordsSearch`.
    Call it between two steps. Tested by `tests/search/test_certified.py`.
    """
    if isinstance(search, StrictSearch):
        return [replace(answer) for answer in search.answers]
    if not isinstance(search, AnyOrderSearch):
        return []
    if not (search.strategy.any_order and search.policy.guaranteed and isinstance(search.strategy.stop, Answered)):
        return []
    y = search.needed()
    if search.out_of_budget:
        return []
    last = search.n if y is None else min(search.n, bisect_left(search.answers, y.key, key=by_key))
    return [Answer.of(answer) for answer in search.answers[:last]]
