"""Masks are measured on forking hypotheses, and all installed libraries allow the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestfirst_bench import masks


def test_times_are_printed_and_masks_are_equal(capsys):
    pytest.importorskip("llguidance")
    masks.main(str(Path(__file__).parents[1] / "data" / "tatoeba-200.en"), "4", turns=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if "not installed" not in line]
    assert lines[0].startswith("llguidance: made in ")
    assert len({line.split("; ")[1] for line in lines}) == 1
