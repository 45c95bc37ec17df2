"""Search: what an engine drives, and which of the searches runs when (`Score.search` chooses).

They give the same answers and scores; `StepSearch` and `LevelSearch` may leave out calls that the last two make
(`tests/search/test_equal_searches.py`, `test_step.py`, `test_level.py`):

    StrictSearch     the common case, cheapest: best first, by a score that is its own bound, until n have finished
    StepSearch       best first until the step at which Hugging Face stops by default, by a score that rises with length
    LevelSearch      level by level, until so many have finished: Hugging Face's True, CTranslate2's stop, patience, greedy
    AnyOrderSearch   everything else: other orders, stops and scores, a heuristic, a queue of limited capacity, `max_calls`,
                     a trace, outputs that end without EOS
    on a device      in `bestfirst.engine`: all searches of a batch in kernels, where an engine holds the model on an accelerator
                     and its kernels can do what is asked for; the engine looks before it begins one of the others

`Groups` runs several of them for one input (diverse beam search). `RequiredWordsSearch` is a search of its own, for outputs
that must contain given words: `Decoding.search` begins it.
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
    """One input's search, as an engine drives it: while there is a frontier, score some of it and commit what was scored.

    What is committed in which order changes neither the result nor its `calls`.
    """

    root: Hypothesis
    rows: int  # hypotheses scored so far
    whole_levels: bool  # whether all that a frontier names is certain to be needed
    level_rows: int  # how many hypotheses of one length there may be to score

    @property
    def width(self) -> float:
        """How many successors of a hypothesis can matter: k and one for each EOS; infinite where nothing is pruned."""

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now: the needed one first. Empty when the search is over."""

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take what the model said of `y`."""

    def result(self) -> Result:
        """The answers so far; final once the frontier is empty."""

    def dismantle(self) -> None:
        """Take apart what refers to itself, so that its memory is free at once. The search cannot go on."""


def certified(search: Search) -> list[Answer]:
    """The answers, best first, that are sure to be the first of the result, for those who do not want to wait for the rest.

    They precede everything open, so a search for no more of them would stop here (`Answered`); and the best few of a longer list
    are the same. Level by level and without a guarantee there are none until the search is over. To be asked between two steps.
    `tests/search/test_certified.py` has the property.
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
