"""begin: the search that does what is asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .groups import Driven
from .hypothesis import Context
from .objective import Objective
from .search import Search
from .strategy import Strategy
from .strict import StrictSearch


def begin(strategy: Strategy, *, score: Objective, eos: Collection[int], context: Context, n: int = 1, **special: Any) -> Driven:
    """`StrictSearch` in the common case; `Search`, which can do everything, for all others and for `special` wishes."""
    if StrictSearch.takes(strategy, score) and all(wish is None or wish is False for wish in special.values()):
        return StrictSearch(strategy, score=score, eos=eos, context=context, n=n)
    return Search(strategy, score=score, eos=eos, context=context, n=n, **special)
