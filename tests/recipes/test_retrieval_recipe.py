"""The retrieval recipe ranks the right items first and reports exact results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_most_queries_find_their_item_first():
    data = ROOT / "tests" / "data"
    line = [sys.executable, str(ROOT / "recipes" / "retrieval" / "retrieve.py"), data / "tatoeba-200.de", data / "tatoeba-200.en"]
    done = subprocess.run(
        [*line, "--beam", "10", "--limit", "20", "--peer"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    hits = {n: float(share) for n, share in re.findall(r"hits at (\d+): ([\d.]+) %", done.stdout)}
    assert hits["1"] >= 75
    assert hits["10"] >= hits["1"]
    assert "exact: True" in done.stdout
