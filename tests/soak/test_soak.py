"""A small part of the soak tests: `make soak` runs more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scale import FULL
from serve.served import ENVIRONMENT

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("part", [["kills", "--kills", "6"], ["damage", "--damage", "10"], ["requests", "--requests", "300"]])
def test_a_small_soak_finds_nothing_wrong(part: list[str]):
    only, count, number = part
    line = [sys.executable, "-m", "soak", "--seed", "1", "--only", only, count, str(int(number) * (10 if FULL else 1))]
    done = subprocess.run(line, cwd=TESTS, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was wrong\n")
