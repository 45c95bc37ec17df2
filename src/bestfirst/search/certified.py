"""Certified answers: what of a result is sure before the search is over, for those who do not want to wait for the rest."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from .groups import Driven
from .result import Answer
from .search import Search
from .stop import Answered
from .strict import StrictSearch


def certified(search: Driven) -> list[Answer]:
    """The answers, best first, that are sure to be the first of the result.

    They precede everything open, so a search for no more of them would stop here (`Answered`); and the best few of a longer list
    are the same. Level by level and without a guarantee there are none until the search is over. To be asked between two steps.
    `tests/scheduler/test_certified.py` has the property.
    """
    if isinstance(search, StrictSearch):
        return [replace(answer) for answer in search.answers]
    if not isinstance(search, Search):
        return []
    if not (search.strategy.any_order and search.guaranteed and isinstance(search.strategy.stop, Answered)):
        return []
    y = search.needed()
    if search.out_of_budget:
        return []
    last = search.n if y is None else min(search.n, bisect_left(search.answers, y.key))
    return [Answer.of(key[3]) for key in search.answers[:last]]
