"""Many clients at once: no wrong answer, no lost request. For a minute, and timed: `python tests/serve/load.py --help`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bestfirst
from scale import FULL
from serve.conftest import GERMAN
from serve.load import Load

LOAD = Path(__file__).parent / "load.py"


def test_sixty_four_clients_get_the_answers_of_decode(server, model, lines):
    expected = bestfirst.decode(model, lines[:40], beam=5)
    answers = {line: (result.text, result.hypotheses[0].score) for line, result in zip(lines, expected, strict=False)}
    load = Load(server.url, lines[:40], {"beam": 5}, answers=answers)
    load.run(64, seconds=60 if FULL else 3)
    assert (load.wrong, load.lost, load.refused) == ([], [], 0)
    assert len(load.seconds) == load.sent >= 64
    assert server.health["queue"] == 0


def test_the_command(server):
    line = [sys.executable, str(LOAD), server.url, str(GERMAN), "--clients", "4", "--seconds", "1", "--alone", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 wrong, 0 lost, 0 refused (429)" in done.stdout
    assert "4 clients get" in done.stdout
