"""Mutual information (the paper, section 5): the transformation that makes it exact, its language model, inexact variants."""

from __future__ import annotations

from math import exp, inf, log

import pytest

from bestfirst import FunctionModel, Model, Query, Scored, decode
from bestfirst.scoring import Diverse, MutualInformation
from bestfirst.search import Context
from reference import EOS
from scoring.references import step_synchronous
from scoring.setups import setup
from toys import random_cases, random_toy


def pmi(model, language_model, tokens, weight, epsilon, whole_sequence=False):
    """The paper's Eq. 12, written out."""
    own = sum(model(tokens[:i])[token] for i, token in enumerate(tokens))
    lm = [language_model(tokens[:i])[token] for i, token in enumerate(tokens)]
    floor = log(epsilon) if epsilon > 0 else -inf
    clipped = max(sum(lm), floor) if whole_sequence else sum(max(logprob, floor) for logprob in lm)
    return own - weight * clipped


class Recurrent(Model):
    """A model whose state is the prefix that it has read, so that it can assert the state."""

    def __init__(self, toy):
        self.toy = toy
        self.eos = {EOS}
        self.asked = 0

    def start(self, source):
        return ()

    def score(self, batch: list[Query]) -> list[Scored]:
        self.asked += len(batch)
        assert all(query.state == query.prefix[:-1] for query in batch)
        return [Scored(self.toy(query.prefix), query.prefix) for query in batch]


@pytest.mark.parametrize("whole_sequence", [False, True])
@pytest.mark.parametrize("strategy", ["best-first", "beam"])
def test_scores_equal_the_papers_equation_for_mutual_information(strategy, whole_sequence, cases):
    for case in random_cases(cases(60, full=500), title="pmi", kinds=("peaked", "flat")):
        language_model = random_toy("peaked", case.vocabulary, f"{case.seed} lm")
        score = MutualInformation(Recurrent(language_model), 0.4, 0.01, whole_sequence)
        result = decode(
            Recurrent(case.toy), [None], strategy=strategy, score=score, beam=case.k, nbest=3, max_length=case.n_max, row_budget=7
        )[0]
        for answer in result.hypotheses:
            expected = pmi(case.toy, language_model, answer.tokens, 0.4, 0.01, whole_sequence)
            assert answer.score == pytest.approx(expected)
            assert answer.logprob == pytest.approx(sum(case.toy(answer.tokens[:i])[t] for i, t in enumerate(answer.tokens)))
        assert result.exact == (strategy == "beam" or not whole_sequence)


def test_decode_is_exact_with_any_model_as_language_model(cases, tally):
    mismatches = 0
    numbers = cases(60, full=500)
    for case in random_cases(numbers, title="pmi decode"):
        made = setup(case, lambda rng: MutualInformation(FunctionModel(lambda prefix: [], EOS), 0.5, exp(-2)))
        lm = random_toy("ties" if case.kind == "ties" else "peaked", case.vocabulary, f"{case.seed} language model")
        score = MutualInformation(Recurrent(lm), 0.5, exp(-2))
        settings = {"beam": case.k, "nbest": case.n, "max_length": case.n_max, "finished": case.finished}
        result = decode(Recurrent(case.toy), [None], score=score, **settings)[0]
        reference = step_synchronous(made.toy, score, Context(case.n_max), k=case.k, n=case.n, finished=case.finished)
        mismatches += [(answer.tokens, answer.score) for answer in result.hypotheses] != reference.answers
        assert result.calls <= reference.calls
    tally("exact best-first = beam search, mutual-information by decode", len(numbers), mismatches)
    assert mismatches == 0


def test_calls_of_the_language_model_are_counted_separately():
    translator, language_model = Recurrent(random_toy("flat", 6, 1)), Recurrent(random_toy("flat", 6, 2))
    score = MutualInformation(language_model, 0.05, 0.02)
    result = decode(translator, [None], score=score, row_budget=1)[0]  # with more, a row is scored again as a check
    assert result.lm_calls == result.calls > 0
    assert translator.asked == language_model.asked == result.rows
    assert decode(translator, [None])[0].lm_calls == 0
    assert decode(translator, [None], score=Diverse(2, 1.0, score), strategy="beam", beam=4)[0].lm_calls > 0


def test_whole_sequence_clips_once_and_is_searched_in_strict_order():
    """Its bound holds, but beams cannot be ranked by it: seldom wrong, not exact, nothing scored ahead."""
    wrong = 0
    for case in random_cases(range(150), title="whole", kinds=("peaked", "flat")):
        made = setup(case, lambda rng: MutualInformation(FunctionModel(lambda prefix: [], EOS), 1.0, 1e-3, whole_sequence=True))
        reference = step_synchronous(made.toy, made.score, made.context, k=case.k, n=1, finished="leave")
        language_model = FunctionModel(random_toy("peaked", case.vocabulary, f"{case.seed} language model"), EOS)
        score = MutualInformation(language_model, 1.0, 1e-3, whole_sequence=True)
        few, many = (
            decode(FunctionModel(case.toy, EOS), [None], score=score, beam=case.k, max_length=case.n_max, row_budget=rows)[0]
            for rows in (1, 50)
        )
        assert few == many, "the same for every row budget"
        assert not few.exact
        wrong += [(answer.tokens, answer.score) for answer in few.hypotheses] != reference.answers
    assert wrong <= 2


def test_only_beam_search_accepts_epsilon_0():
    model, language_model = random_toy("flat", 5, 1), random_toy("peaked", 5, 2)
    score = MutualInformation(FunctionModel(language_model, EOS), 0.3, 0.0)
    answer = decode(FunctionModel(model, EOS), [None], score=score, strategy="beam", finished="keep")[0].hypotheses[0]
    assert answer.score == pytest.approx(pmi(model, language_model, answer.tokens, 0.3, 0.0))
    for method in ("exact", "stopping", "heuristic"):
        with pytest.raises(ValueError, match="epsilon = 0 leaves mutual information without a bound; use strategy='beam'"):
            decode(FunctionModel(model, EOS), [None], score=score, method=method)


def test_a_token_that_the_model_excludes_is_never_generated():
    model = FunctionModel(lambda prefix: [-0.5, -1.0, -inf], EOS)
    language_model = FunctionModel(lambda prefix: [-0.1, -2.0, -inf], EOS)
    for epsilon, strategy in ((0.01, "best-first"), (0.0, "beam")):
        score = MutualInformation(language_model, 1.0, epsilon)
        result = decode(model, [None], score=score, strategy=strategy, beam=3, nbest=9, max_length=4)[0]
        assert result.hypotheses
        assert all(2 not in answer.tokens for answer in result.hypotheses)


@pytest.mark.parametrize(
    ("language_model", "message"),
    [
        (FunctionModel(lambda prefix: [-1.0] * 7, EOS), "the language model's vocabulary has 7 tokens, the model's 5"),
        (None, "score 'mutual-information' needs a language model, got None"),
        (FunctionModel(lambda prefix: [-1.0] * 5, 3), r"the language model ends sequences with \[3\], the model with \[0\]"),
    ],
)
def test_a_missing_or_incompatible_language_model_is_refused(language_model, message):
    with pytest.raises(ValueError, match=message):
        decode(FunctionModel(random_toy("flat", 5, 1), EOS), [None], score=MutualInformation(language_model, 0.1, 0.1))


def test_without_clipping_a_token_that_the_language_model_excludes_raises():
    model = FunctionModel(lambda prefix: [-0.5, -1.0], EOS)
    score = MutualInformation(FunctionModel(lambda prefix: [0.0, -inf], EOS), 1.0, 0.0)
    with pytest.raises(
        ValueError, match=r"the score of \[1\] is inf: check the models' scores there, or choose an epsilon above 0"
    ):
        decode(model, [None], score=score, strategy="beam")


def test_a_weight_of_zero_or_an_epsilon_of_one_is_log_probability():
    toy = random_toy("flat", 5, 8)
    plain = decode(FunctionModel(toy, EOS), [None], nbest=3)[0]
    for weight, epsilon in ((0.0, 0.5), (0.7, 1.0)):
        score = MutualInformation(FunctionModel(random_toy("flat", 5, 9), EOS), weight, epsilon)
        assert score.monotonic
        assert decode(FunctionModel(toy, EOS), [None], score=score, nbest=3)[0].hypotheses == plain.hypotheses
