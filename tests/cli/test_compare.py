"""`bestfirst compare`: every strategy's output, score, calls and time."""

from __future__ import annotations

import json

from bestfirst.strategies import STRATEGIES
from cli.process import only_line

TEXT = "Ich habe [bold]keine[/bold] Ahnung."  # must not be read as markup


def test_json_has_every_strategy(call):
    ended = call("compare", "--json", "--max-calls", 5, "--beam", 4, "Guten Morgen!", TEXT)
    assert (ended.code, ended.stderr) == (0, "")
    first, second = map(json.loads, ended.out.splitlines())
    assert (first["text"], second["text"]) == ("Guten Morgen!", TEXT)
    rows = {row["strategy"]: row for row in first["strategies"]}
    assert tuple(rows) == STRATEGIES
    assert rows["best-first"]["output"] == rows["beam"]["output"] == "Good morning."
    assert rows["best-first"]["score"] == rows["beam"]["score"]
    assert rows["best-first"]["calls"] < rows["beam"]["calls"]
    assert rows["best-first"]["exact"] is True
    assert (rows["breadth-first"]["status"], rows["breadth-first"]["calls"]) == ("budget", 5)
    assert all(row["milliseconds"] > 0 for row in rows.values())


def test_the_table_marks_strategies_out_of_budget(call):
    ended = call("compare", "--max-calls", 5, TEXT)
    assert (ended.code, ended.stderr) == (0, "")
    title, _, heading, _, *rows = ended.out.splitlines()
    assert title.strip() == TEXT
    assert heading.split() == ["strategy", "output", "score", "calls", "ms", "equals"]
    by_strategy = {row.split()[0]: row for row in rows if row.strip()}
    assert tuple(by_strategy) == STRATEGIES
    assert "out of budget" in by_strategy["breadth-first"]
    assert "beam search, k = 5" in by_strategy["best-first"]
    assert "\x1b" not in ended.out


def test_a_failing_text_is_reported_once_and_the_others_are_compared(call):
    ended = call("compare", "--json", "--max-calls", 5, "Haus " * 600, "Guten Morgen!")
    assert ended.code == 1
    assert only_line(ended.stderr).startswith("text 1: the input has 601 tokens")
    statuses = [{row["status"] for row in json.loads(line)["strategies"]} for line in ended.out.splitlines()]
    assert statuses == [{"error"}, {"complete", "budget"}]
