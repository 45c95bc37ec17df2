"""The number of random cases to run, the seeds of random generators, and the counts at the end of the session."""

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
    # Without a GPU the kernels run in Triton's interpreter; the variable must be set before the first import of Triton.
    os.environ["TRITON_INTERPRET"] = "1"

_searches: Counter[str] = Counter()
_mismatches: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the global generators, so that unseeded draws of a test and its fixtures do not depend on earlier tests."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def cases() -> Callable[..., range]:
    """`cases(300, full=2000)`: the numbers of the random cases to run, in a normal run and at full scale."""
    return lambda normal, full: range(full if FULL else normal)


@pytest.fixture(scope="session")
def tally() -> Callable[[str, int, int], None]:
    """`tally("property searches", 300, 0)` adds 300 searches and 0 mismatches to the counts of this title."""

    def note(title: str, searches: int, mismatches: int) -> None:
        _searches[title] += searches
        _mismatches[title] += mismatches

    return note


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser per test process: a second one at the same time cannot be driven."""
    from page.browser import browser

    with browser() as launched:
        yield launched


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist: send the counts to the controller
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
