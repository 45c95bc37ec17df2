"""The command that times `generate` with and without, on a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bestfirst.integrations.compare import main

LINES = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def run(*arguments):
    command = [sys.executable, "-m", "bestfirst.integrations.compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_setting_gives_the_same_text(tmp_path):
    few = tmp_path / "few.de"
    few.write_text("\n".join(LINES.read_text(encoding="utf-8").splitlines()[:5]) + "\n", encoding="utf-8")
    done = run(few, "--repeat", 1, "--batch-size", 3, "--num-beams", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["setting"] for line in found] == ["defaults", "early_stopping=True", "never, penalty 0"]
    assert all(line["same"] == line["of"] == 5 for line in found)
    assert all(0 < line["calls"] <= line["rows"] and line["ratio"] > 0 for line in found)


def test_bad_input_is_one_clear_line(tmp_path, capsys):
    empty = tmp_path / "empty.de"
    empty.touch()
    asked = {
        (tmp_path / "missing.de",): "missing.de",
        (empty,): "no lines in",
        (LINES, "--num-beams", 0): "--num-beams must be at least 1, got 0",
        (LINES, "--model", tmp_path): "has no config.json",
    }
    for arguments, message in asked.items():
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        told = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2
        assert message in told
