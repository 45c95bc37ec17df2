"""The model of these tests, and the recorded searches and pages, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bestfirst
from bestfirst.search import Result

TEXT = "Wie melkt man eine Kuh?"


@pytest.fixture(scope="session")
def model() -> Any:
    return bestfirst.load()


@pytest.fixture(scope="session")
def searched(model: Any) -> Callable[..., Result]:
    """`searched(5, "beam")`: the result of that search, with its trace; the same object every time."""
    cache: dict[object, Result] = {}

    def search(k: int, strategy: str = "best-first", **settings: Any) -> Result:
        key = (k, strategy, *sorted(settings.items()))
        if key not in cache:
            (cache[key],) = bestfirst.decode(
                model, [TEXT], beam=k, strategy=strategy, trace=True, **{"row_budget": 1, **settings}
            )
        return cache[key]

    return search


@pytest.fixture(scope="session")
def page_of(searched: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """`page_of(5)`: best-first and beam search with this beam, side by side, as a file."""
    folder = tmp_path_factory.mktemp("pages")

    def save(k: int) -> Path:
        path = folder / f"{k}.html"
        return path if path.exists() else bestfirst.view(searched(k), searched(k, "beam")).save(path)

    return save
