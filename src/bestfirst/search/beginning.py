"""begin: the search that does what is asked for."""

from __future__ import annotations

from typing import Any

from .groups import Driven
from .objective import Objective
from .search import Search
from .strategy import Strategy
from .strict import StrictSearch

SPECIAL = ("ends", "max_calls", "trace")  # what only `Search` can do


def begin(strategy: Strategy, *, score: Objective, **settings: Any) -> Driven:
    """`StrictSearch` in the common case; `Search`, which can do everything, for all others."""
    if not StrictSearch.takes(strategy, score) or any(settings.get(wish) is not None for wish in SPECIAL):
        return Search(strategy, score=score, **settings)
    return StrictSearch(strategy, score=score, **{name: wish for name, wish in settings.items() if name not in SPECIAL})
