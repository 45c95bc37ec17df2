"""Baselines: every stopping rule of the field (those of the paper's Table 3 included) against step-synchronous references."""

from __future__ import annotations

import random

import pytest

from bestfirst import FunctionModel, decode
from bestfirst.scoring import LengthNormalized, LogProbability, Score
from bestfirst.search import Answered, beam, best_first_beam
from bestfirst.strategies import STOPS, HuggingFaceStep, ShortestFirstPruned, stopping
from reference import EOS
from scoring.references import hugging_face, step_synchronous
from scoring.setups import SCORES, outcome, setup
from toys import random_cases, random_toy

WITHOUT_DEAD_ENDS = ("ties", "peaked", "flat")  # Hugging Face fills a beam without hypotheses with impossible ones


def rules(made, k, n):
    """Each rule by its published definition, on a level in order of rank and the answers so far, best first."""

    def best(level, what):
        y = next(y for y in level if not y.finished)
        return what(y.value, y.length, made.context)

    def reach(value, length, context):
        bound, final = made.score.bound, made.score.final
        return max(bound(value, length, context), final(value, length, context))

    best_was_finished: list[bool] = []

    def ctranslate2(level, answers):
        best_was_finished.append(level[0].finished)
        return len(answers) >= n and any(best_was_finished) if made.score.value_only else len(answers) >= k

    return {
        "exhausted": lambda level, answers: False,
        "opennmt": lambda level, answers: len(answers) >= n and all(y.finished for y in level[:n]),
        "shrinking": lambda level, answers: len(answers) >= k,
        "huang": lambda level, answers: len(answers) >= n and best(level, reach) < -answers[n - 1].cost,
        "hf-true": lambda level, answers: len(answers) >= k,
        "hf-false": lambda level, answers: len(answers) >= k and best(level, made.score.final) <= -answers[k - 1].cost,
        "hf-never": lambda level, answers: len(answers) >= k and best(level, reach) < -answers[k - 1].cost,
        "patience": lambda level, answers: len(answers) >= 2 * k,
        "ctranslate2": ctranslate2,
    }


@pytest.mark.parametrize("name", STOPS)
def test_every_stopping_rule_equals_its_step_synchronous_reference(name, cases, tally):
    """The same answers and calls, for every row budget."""
    mismatches = searches = 0
    for case in random_cases(cases(120, full=2000), title=f"stop {name}"):
        rng = random.Random(case.seed)
        made = setup(case, SCORES[rng.choice(("logprob", "length-normalized", "length-reward", "gnmt"))])
        finished = "shrink" if name == "shrinking" else "leave" if name.startswith(("hf-", "ctranslate2")) else case.finished
        n = rng.randint(1, case.k)
        options = {"factor": 2} if name == "patience" else {}
        plan = stopping(beam(case.k, case.finished if name == "shrinking" else finished), name, **options)
        stop = rules(made, case.k, n)[name]
        reference = step_synchronous(made.toy, made.score, made.context, k=case.k, n=n, finished=finished, stop=stop)
        for ahead in (1, 2, case.k):
            search = made.search(plan, n, ahead=ahead)
            searches += 1
            # At equal scores two rules may stop at another step than the reference, with the same answers.
            tied = case.kind == "ties" and name in ("huang", "hf-never")
            mismatches += outcome(search) != reference.answers or (search.calls != reference.calls and not tied)
            assert search.result().exact == (name in ("exhausted", "huang", "hf-never"))
    tally("beam search's stops = step by step", searches, mismatches)
    assert mismatches == 0


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beam_search_with_hugging_faces_stops_equals_hugging_faces_beam_search(early_stopping, cases, tally):
    mismatches = 0
    numbers = cases(200, full=3000)
    for case in random_cases(numbers, title=f"hf {early_stopping}", kinds=WITHOUT_DEAD_ENDS):
        rng = random.Random(case.seed)
        alpha, n = rng.choice((-0.5, 0.0, 0.6, 1.0, 2.0)), rng.randint(1, case.k)
        made = setup(case, lambda _, alpha=alpha: LengthNormalized(alpha))
        theirs = hugging_face(case.toy, k=case.k, n_max=case.n_max, n=n, alpha=alpha, early_stopping=early_stopping)
        plan = stopping(beam(case.k), f"hf-{str(early_stopping).lower()}")
        ours = made.search(plan, n, ahead=case.k, accept_truncated=True)
        mismatches += outcome(ours) != theirs.answers
        mismatches += ours.calls != theirs.calls and not (case.kind == "ties" and early_stopping == "never")
    tally("level by level = Hugging Face", len(numbers), mismatches)
    assert mismatches == 0


@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_best_first_returns_hugging_faces_answers_with_fewer_calls(early_stopping, cases, tally):
    """The default (penalty 1, early_stopping=False) stops at a step, not at a bound; best-first finds it. Ties, n-best too."""
    mismatches = excess = calls = theirs_calls = 0
    numbers = cases(400, full=6000)
    for case in random_cases(numbers, title=f"hf best-first {early_stopping}", kinds=WITHOUT_DEAD_ENDS):
        rng = random.Random(case.seed)
        alpha, n = rng.choice((-0.5, 0.0, 0.6, 1.0, 1.0, 2.0)), rng.choice((1, rng.randint(1, case.k)))
        made = setup(case, lambda _, alpha=alpha: LengthNormalized(alpha))
        theirs = hugging_face(case.toy, k=case.k, n_max=case.n_max, n=n, alpha=alpha, early_stopping=early_stopping)
        plan = stopping(best_first_beam(case.k), f"hf-{str(early_stopping).lower()}")
        ours = made.search(plan, n, accept_truncated=True)
        ahead = made.search(plan, n, ahead=rng.choice((2, 3, 8)), accept_truncated=True)
        mismatches += outcome(ours) != theirs.answers or outcome(ahead) != theirs.answers
        mismatches += not ours.calls == ours.rows == ahead.calls
        excess += ours.calls > theirs.calls and case.kind != "ties"
        calls, theirs_calls = calls + ours.calls, theirs_calls + theirs.calls
    tally("best-first = Hugging Face", len(numbers), mismatches)
    assert (mismatches, excess) == (0, 0)
    assert calls < 0.9 * theirs_calls


class Falls(Score):
    """A token costs something; that the score never rises is not declared."""

    one_way = True

    def final(self, value, length, context):
        return value - length


class Bumpy(Score):
    """Rises and falls with length."""

    def final(self, value, length, context):
        return value + (0.0, 1.3, 0.2, 2.0, 0.7, 1.1)[length % 6]


@pytest.mark.parametrize("score", [Falls(), Bumpy()])
def test_hugging_faces_default_stop_with_scores_that_fall_with_length(score, cases):
    """`HuggingFaceStep` is for scores that rise; others go level by level, with the same answers from no more calls."""
    for case in random_cases(cases(400, full=3000), title=f"hf false {type(score).__name__}"):
        settings = {"beam": case.k, "nbest": case.k, "max_length": case.n_max, "score": score, "stop": "hf-false"}
        plain, ours = (
            decode(FunctionModel(case.toy, EOS), [None], strategy=strategy, **settings)[0] for strategy in ("beam", "best-first")
        )
        assert (ours.hypotheses, ours.status) == (plain.hypotheses, plain.status)
        assert ours.calls <= plain.calls


def test_early_stopping_true_with_pruned_levels_returns_hugging_faces_answers(cases, tally):
    """Hugging Face's `early_stopping=True` goes level by level; the pruned order returns its answers with fewer calls."""
    mismatches = excess = 0
    numbers = cases(200, full=3000)
    for case in random_cases(numbers, title="hf true pruned", kinds=WITHOUT_DEAD_ENDS):
        rng = random.Random(case.seed)
        alpha, n = rng.choice((-0.5, 0.0, 0.6, 1.0, 2.0)), rng.randint(1, case.k)
        made = setup(case, lambda _, alpha=alpha: LengthNormalized(alpha))
        theirs = hugging_face(case.toy, k=case.k, n_max=case.n_max, n=n, alpha=alpha, early_stopping=True)
        plan = stopping(best_first_beam(case.k), "hf-true")
        assert plan.order.relies_on_bound
        for ahead in (1, case.k):
            ours = made.search(plan, n, ahead=ahead, accept_truncated=True)
            mismatches += outcome(ours) != theirs.answers
            excess += ours.calls > theirs.calls
    tally("level by level, pruned = Hugging Face", 2 * len(numbers), mismatches)
    assert (mismatches, excess) == (0, 0)


def test_early_stopping_true_ends_when_bounds_prove_the_best_answers(cases):
    """The pool of k is not full, but no unfinished hypothesis can precede the best answer."""
    saved = 0
    for case in random_cases(cases(100, full=1000), title="hf true, known", kinds=("peaked",)):
        made = setup(case, lambda _: LengthNormalized(0.6))
        plan = stopping(beam(case.k), "hf-true").using(order=ShortestFirstPruned())
        ours = made.search(plan, 1, accept_truncated=True)
        to_the_full = made.search(plan, case.k + 1, accept_truncated=True)  # more than k answers are never proven earlier
        assert outcome(ours) == outcome(to_the_full)[:1]
        assert ours.calls <= to_the_full.calls
        saved += to_the_full.calls - ours.calls
    assert saved > 0


def test_results_do_not_depend_on_the_row_budget():
    """Nor do calls; under a rule that may depend on the order, nothing is scored ahead of its turn."""
    for seed in range(20):
        model = FunctionModel(random_toy("flat", 6, seed), EOS)
        for stop in ("hf-false", "hf-never", SecondAnswer()):
            one, many = (
                decode(model, [None], score=LengthNormalized(1.0), stop=stop, row_budget=rows, nbest=3)[0] for rows in (1, 64)
            )
            assert (one.hypotheses, one.calls, one.exact) == (many.hypotheses, many.calls, many.exact)
            assert one.exact == (stop == "hf-never")
            assert one.calls == one.rows
            assert isinstance(stop, str) or many.rows == many.calls


class SecondAnswer:
    """Stops at any two answers: the result depends on the order of scoring."""

    name = "second answer"
    exact = False

    def __call__(self, search, y):
        return len(search.answers) >= 2


def test_opennmts_stop_returns_beam_searchs_best_for_log_probability(cases):
    for case in random_cases(cases(200, full=2000), title="es"):
        made = setup(case, lambda rng: LogProbability())
        stopped = made.search(stopping(beam(case.k, case.finished), "opennmt"), 1, ahead=case.k)
        to_the_end = made.search(stopping(beam(case.k, case.finished), "exhausted"), 1, ahead=case.k)
        assert outcome(stopped) == outcome(to_the_end)
        assert stopped.calls <= to_the_end.calls


@pytest.mark.parametrize("name", [name for name in STOPS if name in ("huang", "opennmt", "shrinking")])
def test_a_stop_that_goes_level_by_level_refuses_best_first_search(name):
    with pytest.raises(ValueError, match="level by level, strategy 'best-first' does not; use strategy='beam'"):
        decode(FunctionModel(lambda prefix: [-1.0, -1.0], EOS), [None], stop=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": "sometimes"}, "unknown stop 'sometimes'; choose from exhausted, opennmt"),
        ({"stop": "hf-false", "finished": "keep"}, "'hf-false' is for finished='leave'"),
        ({"stop": "patience", "strategy": "beam", "stop_options": {"factor": 0}}, "factor must be a number above 0, got 0"),
        (
            {"stop": "huang", "strategy": "beam", "stop_options": {"factor": 2}},
            "stop 'huang' has no option 'factor'; only patience and ctranslate2 have one",
        ),
        ({"stop": "hf-false", "stop_options": {"factor": 2}}, "stop 'hf-false' has no option 'factor'"),
        ({"finished": "shrink"}, "finished='shrink' goes level by level"),
        ({"stop": Answered(), "strategy": "beam"}, r"Answered\(\) is a rule of best-first search, strategy 'beam' goes level"),
        ({"stop": HuggingFaceStep(), "strategy": "beam"}, r"HuggingFaceStep\(\) is a rule of best-first search"),
    ],
)
def test_invalid_stops_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        decode(FunctionModel(lambda prefix: [-1.0, -1.0], EOS), [None], **settings)
