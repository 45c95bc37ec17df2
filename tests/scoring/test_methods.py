"""The paper's two methods for scores that are not monotonic (section 5): `stopping` and `heuristic`, neither exact."""

from __future__ import annotations

import json
import subprocess
import sys
from math import log

import pytest

from bestfirst import FunctionModel, decode
from bestfirst.scoring import BoundedLengthReward, LengthNormalized, LengthReward, LogProbability, MutualInformation
from bestfirst.search import METHODS, BestScore, Context, best_first_beam, by_method
from bestfirst.search.table_1 import paper_heuristic
from reference import EOS
from scoring import mismatches
from scoring.references import step_synchronous
from scoring.setups import outcome, setup
from toys import RULES, random_cases, random_toy

MODEL = FunctionModel(random_toy("flat", 5, 3), EOS)
LANGUAGE_MODEL = FunctionModel(random_toy("peaked", 5, 4), EOS)


@pytest.mark.parametrize(
    ("score", "u"),
    [
        (LengthReward(0.8), lambda length, c: 0.8 * max(c.n_max - length, 0)),
        (BoundedLengthReward(0.8, 1.5), lambda length, c: 0.8 * max(1.5 * c.source_length - length, 0)),
        (MutualInformation(LANGUAGE_MODEL, 0.05, 0.02), lambda length, c: -0.05 * log(0.02) * (c.n_max - length)),
    ],
)
def test_heuristic_h_equals_the_upper_bound_u_of_the_papers_equations(score, u, cases):
    for case in random_cases(cases(20, full=200), title="h"):
        made = setup(case, lambda rng: score)
        made.context = Context(n_max=case.n_max + 9, source_length=4)
        search = made.search(best_first_beam(case.k, "leave"), 1)
        for beam in search.agenda.beams:
            for y in beam.members:
                if not y.finished:
                    assert paper_heuristic(y, made.context) == pytest.approx(u(y.length, made.context))


def test_where_r_x_exceeds_n_max_the_bound_is_clamped():
    context = Context(n_max=6, source_length=50)
    assert BoundedLengthReward(1.0, 2.0).bound(-3.0, 2, context) == LengthReward(1.0).bound(-3.0, 2, context) == 3.0
    results = decode(MODEL, [(1,) * 3, (1,) * 50], score=BoundedLengthReward(1.0, 2.0), max_length=6)
    assert [(result.status, result.exact) for result in results] == [("complete", True)] * 2


@pytest.mark.parametrize("finished", RULES)
@pytest.mark.parametrize("method", ["stopping", "heuristic"])
@pytest.mark.parametrize("score", [LengthReward(1.0), MutualInformation(LANGUAGE_MODEL, 0.3, 5e-4)])
def test_the_papers_stopping_and_heuristic_methods_are_not_exact(method, score, finished, cases):
    wrong = 0
    for case in random_cases(cases(100, full=1000), title="paper", kinds=("peaked", "flat")):
        made = setup(case, lambda rng: score)
        search = made.search(by_method(best_first_beam(case.k, finished), method, score), 1, ahead=3)
        reference = step_synchronous(made.toy, score, made.context, k=case.k, n=1, finished=finished)
        wrong += outcome(search) != reference.answers
        assert not search.result().exact
        assert search.calls == search.rows
        for answer in search.result().hypotheses:  # scores are reported without h
            found = next(y for y in search.answers if y.tokens == answer.tokens)
            assert answer.score == score.final(found.value, found.length, made.context)
    assert wrong > 0


def test_the_mismatches_script_prints_the_error_rates():
    command = [sys.executable, mismatches.__file__, "--cases", "10"]
    lines = [json.loads(line) for line in subprocess.check_output([*command, "--json"], text=True).splitlines()]
    assert all(line["wrong"]["exact"] == 0 and line["calls"]["exact"] <= line["beam_calls"] for line in lines)
    assert sum(line["wrong"]["stopping"] for line in lines) > 0
    assert sum(line["wrong"]["heuristic"] for line in lines) > 0
    table = subprocess.check_output(command, text=True)
    assert all(line["score"] in table for line in lines)
    bad = subprocess.run([*command[:2], "--cases", "0"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "--cases must be at least 1, got 0" in bad.stderr
    assert mismatches.mismatch_rates(1, seed=5, beams=(2,))[0].cases == 1


def test_for_a_monotonic_score_all_methods_are_algorithm_2():
    for method in METHODS:
        for score in (LogProbability(), LengthNormalized(-0.5)):
            result = decode(MODEL, [None], score=score, method=method, row_budget=1)[0]
            assert result == decode(MODEL, [None], score=score, row_budget=1)[0]
            assert result.exact


def test_unknown_and_conflicting_methods_are_refused():
    plan = by_method(best_first_beam(4), "heuristic", LengthReward(1.0))
    assert isinstance(plan.order, BestScore)
    with pytest.raises(ValueError, match="unknown method 'fast'; choose from exact, stopping, heuristic"):
        decode(MODEL, [None], method="fast")
    with pytest.raises(ValueError, match="strategy 'beam' is another; use 'best-first'"):
        decode(MODEL, [None], score=LengthReward(1.0), strategy="beam", method="stopping")
    with pytest.raises(ValueError, match="method='stopping' has a stopping rule of its own; leave stop='hf-false' out"):
        decode(MODEL, [None], score=LengthReward(1.0), stop="hf-false", method="stopping")
