"""The certificate from beam search's beams equals `search/audit.py`'s; best-first search attains it on a real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf

import pytest

import bestfirst
from bench.conftest import ENGLISH, GERMAN, call
from bestfirst.scoring import LengthNormalized, LogProbability
from bestfirst.search import Strategy, beam, best_first_beam
from bestfirst.strategies import as_ctranslate2, stopping
from bestfirst_bench.certificate import FullBeams, StoppedBeams, certificate_for
from bestfirst_bench.row import Row
from search.audit import (
    Stopped,
    Tokens,
    World,
    best,
    ctranslate2_search,
    hugging_face_search,
    least,
    opennmt_search,
    patience_search,
)
from search.test_audit import Case


def test_the_certificate_equals_the_reference(cases, tally):
    """Random models, ties included, every score and both finished rules, n-best: two independent counts."""
    numbers = cases(300, full=8000)
    differing = []
    for seed in numbers:
        case = Case(seed)
        world, followed = case.world, FullBeams()
        rule = "keep" if world.keep else "leave"
        plan = beam(world.k, rule) if world.n <= world.k else stopping(beam(world.k, rule), "exhausted")
        case.search(plan, 1, trace=followed)
        stopped = FullBeams()  # stops as soon as the answers are certain
        case.search(stopping(beam(world.k, rule), "huang"), 1, trace=stopped)
        if not followed.least() == stopped.least() == len(least(world, case.whole)):
            differing.append(seed)
    tally("certificates of bench", len(numbers), len(differing))
    assert not differing, f"{len(differing)} of {len(numbers)}, such as {differing[:3]}"


STOPS = {
    "hf-false": lambda world, plain: hugging_face_search(world, False),
    "hf-true": lambda world, plain: hugging_face_search(world._replace(n=1), True),
    "patience": lambda world, plain: patience_search(world, 1.6),
    "ctranslate2": lambda world, plain: ctranslate2_search(world, 1.6, plain),
    "opennmt": lambda world, plain: opennmt_search(world),
    "shrinking": lambda world, plain: patience_search(world, 1.0, shrinks=True),
}
BEST_FIRST = ("hf-false", "hf-true", "patience", "ctranslate2")


def with_stop(plan: Strategy, stop: str, case: Case) -> Strategy:
    if stop == "ctranslate2":
        return as_ctranslate2(plan, case.score, case.world.n, 1.6)
    return stopping(plan, stop, **({"factor": 1.6} if stop == "patience" else {}))


def worlds_that_differ_below(world: World, y: Tokens) -> Iterator[World]:
    """Worlds that differ only below `y`: nothing is there, or a chain of cost 0, alone or beside what was there."""
    for length in range(len(y), world.n_max + 1):
        chain = (*y, *[NEW] * (length - len(y) - 1), world.eos) if length > len(y) else y
        for beside in (False, True):

            def increments(prefix: Tokens, chain: Tokens = chain, beside: bool = beside) -> tuple[float, ...]:
                on_chain = prefix == chain[: len(prefix)] and len(prefix) < len(chain)
                if prefix[: len(y)] != y or (beside and not (on_chain and len(prefix) >= len(y)) and NEW not in prefix[len(y) :]):
                    return world.increments(prefix)
                found = [*world.increments(prefix)] if beside and prefix == y else []
                found += [-inf] * (NEW + 1 - len(found))
                if on_chain:
                    found[chain[len(prefix)]] = 0.0
                return tuple(found)

            yield world._replace(increments=increments)


NEW = 9  # a token that no world has


@pytest.mark.parametrize("stop", STOPS)
def test_the_certificate_under_a_stop_is_a_lower_bound(stop, cases, tally):
    """Below each counted prefix, some continuations would change the answers, so every exact search must score it.

    With ties, still no search makes fewer calls.
    """
    counted = faults = met = 0
    numbers = cases(60, full=4000)
    for seed in numbers:
        case = Case(seed)
        world, rule = case.world, "keep" if case.world.keep else "leave"
        if world.keep and stop != "opennmt":
            continue
        plan, followed = with_stop(beam(world.k, rule), stop, case), StoppedBeams()
        result = case.search(plan, 1, trace=followed).result()
        needed = followed.needed()
        answers = [(each.tokens, each.score) for each in result.hypotheses]
        counted += len(needed)
        ours = case.search(with_stop(best_first_beam(world.k), stop, case), 1).result() if stop in BEST_FIRST else result
        faults += len(needed) > ours.calls
        met += len(needed) == ours.calls
        if case.kind == "ties" or world.n_max > 5:
            continue
        for y in needed:
            changed: Iterator[Stopped] = (
                STOPS[stop](other, case.score.value_only) for other in worlds_that_differ_below(world, y.tokens)
            )
            faults += all(best(each.answers, world.n) == answers for each in changed)
    tally(f"prefixes that {stop} needs", counted, faults)
    assert faults == 0
    assert counted > 0
    assert met > 0


def test_which_stops_have_an_exact_certificate_and_which_a_lower_bound():
    plain, rises = LogProbability(), LengthNormalized(1.0)
    proven = {"hf-false": (plain,), "opennmt": (plain,), "hf-never": (plain, rises), "huang": (plain, rises)}
    for stop in ("hf-never", "huang", "exhausted", "hf-false", "hf-true", "opennmt", "patience", "shrinking"):
        for score in (plain, rises):
            known = score in proven.get(stop, (plain, rises) if stop == "exhausted" else ())
            assert certificate_for(stopping(beam(3), stop), score, 1) is (FullBeams if known else StoppedBeams)
    assert certificate_for(best_first_beam(3), plain, 1) is None


def test_every_line_of_the_stops_table_has_a_certificate(tmp_path, capsys):
    command = ["bench", "paper", GERMAN, ENGLISH, "--table", "stops", "--beam", "3", "--limit", "3"]
    assert call(*command, "--rows", tmp_path / "rows.jsonl", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 20
    assert all(line["over_least"] >= 1 for line in lines)
    assert all(line["over_least"] == 1 for line in lines if line["least_proven"] and "/" in line["search"])
    assert {line["search"] for line in lines if not line["least_proven"]} > {"hf-true", "best-first/hf-false"}
    assert call(*command, "--rows", tmp_path / "rows.jsonl") == 0
    assert " >= " in (printed := capsys.readouterr().out)
    assert " <= " in printed


def test_best_first_search_attains_the_certificate_on_the_embedded_model(rows_file):
    rows = [Row.load(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]
    plain = [row for row in rows if not row.setting.alone and not row.setting.decoding.score_options]
    least = {(row.setting.beam, row.line): row.least for row in plain if row.setting.search == "beam"}
    ours = {(row.setting.beam, row.line): row.calls for row in plain if row.setting.search == "best-first"}
    assert len(ours) == 12
    assert ours == least


def test_calls_equal_the_certificate_under_hugging_faces_default_stop():
    """Lines of which 3, 1, 6 and 3 members used to be scored that an answer found later precedes."""
    model, text = bestfirst.load(), GERMAN.read_text(encoding="utf-8").splitlines()
    lines = [text[i] for i in (5, 13, 29, 33)]
    settings = {"beam": 5, "length_penalty": 1.0, "stop": "hf-false", "max_length": lambda length: 2 * length + 10}
    followed = [StoppedBeams() for _ in lines]
    stopped = bestfirst.decode(model, lines, strategy="beam", trace=followed.__getitem__, **settings)
    ours = bestfirst.decode(model, lines, **settings)
    assert [result.hypotheses for result in ours] == [result.hypotheses for result in stopped]
    assert [result.calls for result in ours] == [each.least() for each in followed]


def test_rows_hold_the_certificate_only_where_it_is_known(rows_file):
    for line in rows_file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        of_beam = row["setting"]["search"] in ("beam", "es", "shrinking", "early")
        assert (row["least"] is not None) == (of_beam and not row["setting"]["alone"])
        assert row["least_proven"] == (row["setting"]["search"] != "shrinking")
