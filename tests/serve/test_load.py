"""Many clients at once: no wrong answer, no lost request. For a minute, and timed: `python tests/serve/load.py --help`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bestfirst
from scale import FULL
from serve.conftest import GERMAN
from serve.load import Crowd, Load
from serve.served import PATIENCE, Served, until

LOAD = Path(__file__).parent / "load.py"


def test_sixty_four_clients_get_the_answers_of_decode(server, model, lines):
    expected = bestfirst.decode(model, lines[:40], beam=5)
    answers = {line: (result.text, result.hypotheses[0].score) for line, result in zip(lines, expected, strict=False)}
    load = Load(server.url, lines[:40], {"beam": 5}, answers=answers)
    load.run(64, seconds=60 if FULL else 3)
    assert (load.wrong, load.lost, load.refused) == ([], [], 0)
    assert len(load.seconds) == load.sent >= 64
    assert server.health["queue"] == 0


def test_greedy_clients_and_such_that_do_not_read_cost_the_others_little(server, lines):
    """A small factor, in forward passes for each answer; `load.py --greedy 10 --unread 20` has the figures in seconds."""
    alone, beside = (Load(server.url, lines[:40], {"beam": 5}) for _ in range(2))
    by_themselves = passes_each(server, alone, seconds=30 if FULL else 4)
    crowd = Crowd(server.url, lines, texts=64)
    crowd.start(greedy=3, unread=4)
    until(lambda: server.health["queue"] > 64)
    among_others = passes_each(server, beside, seconds=30 if FULL else 6)
    crowd.stop()
    until(lambda: server.health["queue"] == server.health["in_flight"] == 0)
    assert (beside.wrong, beside.lost, beside.refused) == ([], [], 0)
    assert among_others < 4 * by_themselves


def passes_each(server: Served, load: Load, seconds: float) -> float:
    """Forward passes of the engine for each answer to one of 16 clients."""
    before = passes(server)
    load.run(16, seconds)
    return (passes(server) - before) / len(load.seconds)


def passes(server: Served) -> float:
    return float(re.search(r"^bestfirst_steps_total (.*)$", server.get("/metrics").body.decode(), re.MULTILINE)[1])


def test_the_command(server):
    line = [sys.executable, str(LOAD), server.url, str(GERMAN), "--clients", "4", "--seconds", "1", "--alone", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 wrong, 0 lost, 0 refused (429)" in done.stdout
    assert "4 clients get" in done.stdout
