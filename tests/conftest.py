"""Random cases: how many to run, of which numbers, and at the end of the session how many were run."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scale import FULL

if not os.path.exists("/dev/nvidiactl"):
    # Without a GPU its kernels run in Triton's interpreter, which must be known before anything imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"

_searches: Counter[str] = Counter()
_mismatches: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test or a fixture of it draws without a seed of its own is the same alone, after any others and every time."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def cases() -> Callable[..., range]:
    """`cases(300, full=2000)`: the numbers of the random cases to run, fewer in a normal run than at full scale."""
    return lambda normal, full: range(full if FULL else normal)


@pytest.fixture(scope="session")
def tally() -> Callable[[str, int, int], None]:
    """`tally("property searches", 300, 0)`: so many were run, so many were wrong; added up under each title."""

    def note(title: str, searches: int, mismatches: int) -> None:
        _searches[title] += searches
        _mismatches[title] += mismatches

    return note


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one browser of a test process: a second one beside it cannot be driven."""
    from page.browser import browser

    with browser() as launched:
        yield launched


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist: hand the counts over
        session.config.workeroutput["tally"] = (dict(_searches), dict(_mismatches))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    searches, mismatches = getattr(node, "workeroutput", {}).get("tally", ({}, {}))
    _searches.update(searches)
    _mismatches.update(mismatches)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _searches:
        terminalreporter.section(f"random cases ({'full' if FULL else 'normal'} scale)")
        for title, count in sorted(_searches.items()):
            terminalreporter.write_line(f"{title}: {count} ({_mismatches[title]} mismatches)")
