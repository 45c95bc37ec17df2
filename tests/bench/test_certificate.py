"""The certificate from beam search's beams is that of the search's own tests; best-first search meets it on a real model."""

from __future__ import annotations

import json

from bestfirst.search import beam
from bestfirst.strategies import stopping
from bestfirst_bench.certificate import FullBeams
from bestfirst_bench.row import Row
from search.audit import least
from search.test_audit import Case


def test_it_is_the_references(cases, tally):
    """Random models, ties included, every score and both rules, for the n best: two independent countings."""
    numbers = cases(300, full=8000)
    wrong = []
    for seed in numbers:
        case = Case(seed)
        world, followed = case.world, FullBeams()
        rule = "keep" if world.keep else "leave"
        plan = beam(world.k, rule) if world.n <= world.k else stopping(beam(world.k, rule), "exhausted")
        case.search(plan, 1, trace=followed)
        if followed.least() != len(least(world, case.whole)):
            wrong.append(seed)
    tally("certificates of bench", len(numbers), len(wrong))
    assert not wrong, f"{len(wrong)} of {len(numbers)}, such as {wrong[:3]}"


def test_best_first_search_makes_no_call_more_on_the_embedded_model(rows_file):
    rows = [Row.load(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]
    plain = [row for row in rows if not row.setting.alone and not row.setting.decoding.score_options]
    least = {(row.setting.beam, row.line): row.least for row in plain if row.setting.search == "beam"}
    ours = {(row.setting.beam, row.line): row.calls for row in plain if row.setting.search == "best-first"}
    assert len(ours) == 12
    assert ours == least


def test_it_is_saved_where_it_is_known_only(rows_file):
    for line in rows_file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        of_beam = row["setting"]["search"] == "beam"
        assert (row["least"] is not None) == (of_beam and not row["setting"]["alone"])
