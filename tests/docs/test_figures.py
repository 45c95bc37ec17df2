"""The README's table and picture show the committed measurements, and these can be measured again."""

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
    module = sys.modules["calls"] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_measured_table(calls):
    assert calls.table(calls.read()) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_picture_shows_the_measured_numbers(calls):
    assert (ROOT / "docs" / "figures" / "calls.svg").read_text(encoding="utf-8") == calls.draw(calls.read())


@pytest.mark.parametrize(("finished", "k"), [("leave", 10), ("keep", 5)])
def test_calls_measured_again_are_those_committed(calls, finished, k):
    (row,) = [row for row in calls.read() if (row.finished, row.k) == (finished, k)]
    again, _ = calls.measure(finished, k, "best-first")
    assert again == pytest.approx(row.best_first, rel=0.01)  # near-ties may be decided differently on another machine
