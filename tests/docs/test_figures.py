"""The numbers of the README's table and picture are the committed measurements, and those can be measured again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def calls() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calls", ROOT / "docs" / "figures" / "calls.py")
    module = sys.modules["calls"] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_table_that_was_measured(calls):
    assert calls.table(calls.read()) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_picture_is_drawn_from_the_same_numbers(calls):
    assert (ROOT / "docs" / "figures" / "calls.svg").read_text(encoding="utf-8") == calls.draw(calls.read())


@pytest.mark.parametrize(("finished", "k"), [("leave", 10), ("keep", 5)])
def test_calls_can_be_measured_again(calls, finished, k):
    (row,) = [row for row in calls.read() if (row.finished, row.k) == (finished, k)]
    again, _ = calls.measure(finished, k, "best-first")
    assert again == pytest.approx(row.best_first, rel=0.01)  # near-ties may fall otherwise on another machine
