"""Scores of a user's model, of any type, are summed in float64, and the best tokens of all rows are found at once."""

from __future__ import annotations

from math import inf, nan

import numpy
import pytest
import torch

import bestfirst
from bestfirst import FunctionModel, Model, Scored, decode
from bestfirst.engine.tree_scorer import _top_tokens
from bestfirst.models import score_arrays
from bestfirst.models.score_arrays import stack_alike, top_k_list, top_k_matrix, top_k_rows

FORMS = {
    "list": list,
    "tuple": tuple,
    "float32": lambda row: numpy.array(row, dtype=numpy.float32),
    "float64": numpy.array,
    "float16": lambda row: numpy.array(row, dtype=numpy.float16),
    "torch": torch.tensor,
    "bfloat16": lambda row: torch.tensor(row, dtype=torch.bfloat16),
    "half": lambda row: torch.tensor(row, dtype=torch.float16),
    "gradient": lambda row: torch.tensor(row, requires_grad=True),
}


def rounded(form: str, row: list[float]) -> list[float]:
    """The numbers of a row after conversion to this type."""
    made = FORMS[form](row)
    return made.detach().double().tolist() if isinstance(made, torch.Tensor) else [float(value) for value in made]


def chain(prefix: tuple[int, ...], size: int = 600) -> list[float]:
    """A peaked distribution over many tokens, which ends after more than twenty."""
    weights = numpy.random.default_rng([7, *prefix[-2:]]).gumbel(size=size) * 2
    weights[0] = 30.0 if len(prefix) > 24 else -5.0
    return (weights - numpy.logaddexp.reduce(weights)).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_type_are_summed_in_float64(form):
    """In half precision the sum of 26 numbers differs, so that another answer is the best."""
    (result,) = decode(FunctionModel(lambda prefix: FORMS[form](chain(prefix)), eos=0), [None], beam=4, nbest=2, max_length=30)
    plain = FunctionModel(lambda prefix: rounded(form, chain(prefix)), eos=0)
    assert result.hypotheses == decode(plain, [None], beam=4, nbest=2, max_length=30)[0].hypotheses
    best = result.hypotheses[0]
    steps = [rounded(form, chain(best.tokens[:i]))[token] for i, token in enumerate(best.tokens)]
    assert best.score == sum(steps)
    assert type(best.score) is type(best.logprob) is float
    assert len(best.tokens) > 20


@pytest.mark.parametrize("score", ["logprob", bestfirst.LengthNormalized(0.6), bestfirst.GNMT(1.0)])
def test_scores_are_plain_floats(score):
    model = FunctionModel(lambda prefix: torch.tensor([-1, -2, -3]), eos=0)  # whole numbers, even
    (result,) = decode(model, [None], beam=2, nbest=2, score=score)
    assert {type(number) for answer in result.hypotheses for number in (answer.score, answer.logprob)} == {float}


def test_top_k_of_a_matrix_equals_top_k_of_its_rows(cases):
    for case in cases(300, full=3000):
        rng = numpy.random.default_rng(case)
        rows, size, width = (int(rng.integers(1, most)) for most in (5, 400, 30))
        scores = rng.standard_normal((rows, size)).astype(rng.choice(["float32", "float64"]))
        if case % 2:
            scores = scores.round()  # many are equal
        if case % 3 == 0:
            scores[rng.random((rows, size)) < 0.8] = -inf
        expected = [top_k_list(row, "", width) for row in scores.tolist()]
        assert top_k_matrix(scores, width) == expected


def test_rows_of_any_type_are_scored_in_one_batch():
    for form in ("list", "float32", "bfloat16"):
        asked = []

        class Batched(Model):
            eos = 0

            def start(self, source):
                return source

            def score(self, batch, form=form, asked=asked):
                asked.append(len(batch))
                return [Scored(FORMS[form](chain((query.state, *query.prefix), 40)), query.state) for query in batch]

        results = decode(Batched(), range(12), beam=3, max_length=6)
        expected = [decode(FunctionModel(lambda s, p, f=form: rounded(f, chain((s, *p), 40)), 0), [i], beam=3, max_length=6)
                    for i in range(12)]  # fmt: skip
        assert [r.hypotheses for r in results] == [r.hypotheses for (r,) in expected]
        assert max(asked) >= 12


def test_rows_of_one_array_are_stacked_without_a_copy():
    scores = numpy.arange(24.0).reshape(4, 6)
    for rows in ([*scores], [*scores.T], [*scores[::2]], [scores[1]] * 3):
        found = stack_alike(rows, "scores")
        assert (found == numpy.stack(rows)).all()
        assert numpy.shares_memory(found, scores)
        assert not found.flags.writeable
    for rows in ([scores[0], scores[2], scores[3]], [scores[0].copy(), scores[1]], [*numpy.eye(3)][::2]):
        assert (stack_alike(rows, "scores") == numpy.stack(rows)).all()


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_of_any_type_become_one_array(form, monkeypatch):
    """Row by row, lists used to take three times as long as arrays, for the same model."""
    monkeypatch.setattr(score_arrays, "top_k_list", None)
    rows = [chain((i,), 100) for i in range(8)]
    found = top_k_rows([FORMS[form](row) for row in rows], [""] * 8, 5)
    assert found == [top_k_list(rounded(form, row), "", 5) for row in rows]


def test_an_invalid_row_is_named_among_many():
    rows = [[-1.0] * 100 for _ in range(8)]
    rows[5][3] = "x"
    with pytest.raises(ValueError, match="row 5 must be a row of numbers, got a list with 'x'"):
        top_k_rows(rows, [f"row {i}" for i in range(8)], 5)
    rows[5][3] = nan
    assert [values[0] != values[0] for values, _ in top_k_rows(rows, [""] * 8, 5)] == [i == 5 for i in range(8)]


@pytest.mark.parametrize("form", [numpy.asarray, torch.from_numpy])
def test_of_equal_scores_the_smaller_tokens_are_kept(form, cases):
    for seed in cases(100, full=5000):
        rng = numpy.random.default_rng(seed)
        size = int(rng.integers(1, 3000))
        width = int(rng.integers(1, min(size, 60) + 1))
        scores = rng.integers(0, rng.integers(2, 200), (4, size)).astype(numpy.float32)
        scores[rng.random(scores.shape) < rng.choice([0, 0.9])] = -numpy.inf
        kept = numpy.sort(numpy.asarray(_top_tokens(form(scores), width)), 1)
        expected = numpy.sort(numpy.argsort(-scores, 1, kind="stable")[:, :width], 1)
        possible = numpy.take_along_axis(scores, expected, 1) > -numpy.inf
        for row, all_possible in enumerate(possible.all(1)):
            assert set(expected[row][possible[row]]) <= set(kept[row])
            assert not all_possible or (kept[row] == expected[row]).all()
