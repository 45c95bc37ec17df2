"""The first commands of a new user: `make demo`, and `make` alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *args], cwd=ROOT, capture_output=True, text=True, check=False)


def test_demo_translates_and_shows_the_saving():
    """In the environment that runs this test, which is taken as up to date (`-o`)."""
    done = make("demo", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.base")
    assert done.returncode == 0, done.stderr
    assert "Where is the station?" in done.stdout
    assert "out of budget" in done.stdout  # breadth-first, one of the strategies compared
    assert "bestfirst|best-first|k:10|" in done.stderr
    assert done.stderr.count("saved ") == 1  # beam search saves nothing against itself
    assert "bestfirst view 'Wie melkt man eine Kuh?' -o search.html" in done.stdout
    assert "of 200 translations are the same" in done.stdout
    same = int(done.stdout.split("of 200 translations")[0].split()[-1])
    assert same >= 198  # near-ties


def test_make_without_a_target_lists_the_targets():
    done = make()
    assert done.returncode == 0
    for target in ("demo", "test", "test-base", "test-full", "lint", "format", "kernels", "figures", "docs", "clean"):
        assert f"make {target} " in done.stdout


def test_a_missing_interpreter_is_named_in_the_error(tmp_path):
    done = make("install", f"VENV={tmp_path / 'venv'}", "PYTHON=python-of-nowhere")
    assert done.returncode == 2
    assert "no 'python-of-nowhere' on PATH; choose an interpreter: make PYTHON=python3.12" in done.stderr
