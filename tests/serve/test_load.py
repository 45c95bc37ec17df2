"""Many clients at once: no wrong answer, no lost request. For longer runs with timings: `python tests/serve/load.py --help`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bestfirst
from scale import FULL
from serve.conftest import GERMAN
from serve.load import Load, UnfairClients
from serve.served import PATIENCE, Served, wait_until

LOAD = Path(__file__).parent / "load.py"


def test_sixty_four_clients_get_the_answers_of_decode(server, model, lines):
    expected = bestfirst.decode(model, lines[:40], beam=5)
    answers = {line: (result.text, result.hypotheses[0].score) for line, result in zip(lines, expected, strict=False)}
    load = Load(server.url, lines[:40], {"beam": 5}, answers=answers)
    load.run(64, seconds=60 if FULL else 3)
    assert (load.wrong, load.lost, load.refused) == ([], [], 0)
    assert len(load.seconds) == load.sent >= 64
    assert server.health["queue"] == 0


def test_greedy_and_unread_clients_slow_the_others_little(server, lines):
    """By a small factor in forward passes per answer; `load.py --greedy 10 --unread 20` measures it in seconds."""
    alone, beside = (Load(server.url, lines[:40], {"beam": 5}) for _ in range(2))
    by_themselves = passes_per_answer(server, alone, seconds=30 if FULL else 4)
    unfair = UnfairClients(server.url, lines, texts=64)
    unfair.start(greedy=3, unread=4)
    wait_until(lambda: server.health["queue"] > 64)
    among_others = passes_per_answer(server, beside, seconds=30 if FULL else 6)
    unfair.stop()
    wait_until(lambda: server.health["queue"] == server.health["in_flight"] == 0)
    assert (beside.wrong, beside.lost, beside.refused) == ([], [], 0)
    assert among_others < 4 * by_themselves


def passes_per_answer(server: Served, load: Load, seconds: float) -> float:
    """Forward passes of the engine per answer, with 16 clients."""
    before = total_passes(server)
    load.run(16, seconds)
    return (total_passes(server) - before) / len(load.seconds)


def total_passes(server: Served) -> float:
    return float(re.search(r"^bestfirst_steps_total (.*)$", server.get("/metrics").body.decode(), re.MULTILINE)[1])


def test_the_load_command_reports_no_wrong_and_no_lost_answers(server):
    line = [sys.executable, str(LOAD), server.url, str(GERMAN), "--clients", "4", "--seconds", "1", "--alone", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 wrong, 0 lost, 0 refused (429)" in done.stdout
    assert "4 clients get" in done.stdout
