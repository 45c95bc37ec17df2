"""Models for the tests of `generate`, built once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from bestfirst import load
from bestfirst.integrations import crossover
from engine.builders import ARCHITECTURES


@pytest.fixture(scope="session")
def small() -> Callable[[str], Any]:
    """`small("marian")`: a small model of this architecture."""
    return cache(lambda name: ARCHITECTURES[name].build())


@pytest.fixture(scope="session")
def embedded() -> Any:
    """The embedded translator."""
    return load()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, and no warnings of transformers about deliberately odd settings."""
    level, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers")
        yield
    transformers.logging.set_verbosity(level)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def never_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed: the engine runs."""
    monkeypatch.setattr(crossover, "measure", lambda *_: 2.0)
