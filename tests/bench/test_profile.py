"""bench profile: the real command on a few sentences; its parts sum to the total time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="only compiled steps are profiled")

LINES = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bestfirst", "bench", "profile", str(LINES), "--limit", "6", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)


def test_the_parts_sum_to_the_time_and_the_products_are_above_the_floor():
    for _ in range(5):  # the floor is timed separately: if the machine was slower then, try again
        done = profile("--beam", "3", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
        assert all(seconds >= 0 for seconds in found["parts"].values())
        if found["floor"] <= found["row_products"]:
            break
    assert found["floor"] <= found["row_products"] <= found["row"]
    assert found["multiply_adds"] == 3 * (6 * 256 * 256 + 2 * 256 * 1024) + 256 * 6001


def test_a_table_is_printed_without_json():
    done = profile()
    assert done.returncode == 0, done.stderr
    assert "attention to ancestors" in done.stdout
    assert "floor" in done.stdout
