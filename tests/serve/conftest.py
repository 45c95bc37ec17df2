"""Servers shared by the tests: one with ordinary limits, one with a small queue, one with few files and a short deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bestfirst
from serve.served import Served

GERMAN = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:  # one xdist worker, so that each server starts once
            item.add_marker(pytest.mark.xdist_group("serve"))


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    served = Served("--max-bytes", 1 << 19, "--max-items", 64, "--max-chars", 4000, "--deadline", 600)
    yield served
    served.stop()


@pytest.fixture(scope="session")
def narrow() -> Iterator[Served]:
    """Slow: it scores one row at a time. Its queue holds 6 texts, its cache the tokens of all. Requests need a token."""
    limits = ["--row-budget", 1, "--max-queue", 6, "--max-items", 6, "--deadline", 600, "--max-cache-tokens", 10_000_000]
    served = Served(*limits, BESTFIRST_TOKEN="open sesame")
    yield served
    served.stop()


@pytest.fixture(scope="session")
def frail() -> Iterator[Served]:
    """As slow as `narrow`, with 128 open files and a deadline of 3 seconds."""
    limits = ["--row-budget", 1, "--deadline", 3, "--max-cache-tokens", 10_000_000, "--allowed-host", "translate.example"]
    served = Served(*limits, files=128)
    yield served
    served.stop()


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return GERMAN.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def model() -> bestfirst.Model:
    return bestfirst.load()
