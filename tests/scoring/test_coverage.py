"""GNMT's coverage penalty: from the model's attention, applied when a hypothesis finishes, exact under `leave`."""

from __future__ import annotations

import random
from math import log

import pytest

from bestfirst import FunctionModel, Model, Query, Scored, decode
from bestfirst.scoring import GNMT, Coverage, LogProbability
from reference import EOS
from toys import random_toy

SOURCE = (1, 2, 3)


class Attending(Model):
    """A toy model with random attention after every prefix."""

    eos = (EOS,)

    def __init__(self, toy):
        self.toy = toy
        self.attended = 0

    def start(self, source):
        return len(source)

    def score(self, batch: list[Query]) -> list[Scored]:
        return [Scored(self.toy(query.prefix), query.state) for query in batch]

    def attend(self, batch: list[Query]) -> list[Scored]:
        self.attended += len(batch)
        return [answer._replace(attention=attention_of(query)) for query, answer in zip(batch, self.score(batch), strict=True)]


def attention_of(query: Query) -> list[float]:
    rng = random.Random(f"look {query.prefix}")
    weights = [rng.random() ** 4 for _ in range(query.state)]
    return [weight / sum(weights) for weight in weights]


def gnmt_with_coverage(toy, tokens, alpha, beta):
    """Wu et al. 2016, Eq. 14, written out."""
    attentions = [attention_of(Query(len(SOURCE), tokens[:j])) for j in range(len(tokens))]
    penalty = beta * sum(log(min(sum(column), 1.0)) for column in zip(*attentions, strict=True))
    return sum(toy(tokens[:j])[token] for j, token in enumerate(tokens)) / ((5 + len(tokens)) / 6) ** alpha + penalty


def test_scores_equal_gnmts_equation_14_and_best_first_equals_beam_search():
    for seed in range(40):
        toy = random_toy("peaked", 5, seed)
        score, settings = Coverage(0.5, GNMT(0.6)), {"beam": 4, "nbest": 3, "max_length": 7}
        result = decode(Attending(toy), [SOURCE], score=score, **settings)[0]
        beam = decode(Attending(toy), [SOURCE], score=score, strategy="beam", stop="exhausted", **settings)[0]
        assert result.hypotheses == beam.hypotheses
        assert result.exact
        assert result.calls <= beam.calls
        for answer in result.hypotheses:
            assert answer.score == pytest.approx(gnmt_with_coverage(toy, answer.tokens, 0.6, 0.5))


def test_attention_is_requested_only_for_coverage():
    model = Attending(random_toy("peaked", 5, 1))
    decode(model, [SOURCE])
    assert model.attended == 0
    result = decode(model, [SOURCE], score=Coverage(0.5), row_budget=1)[0]  # in larger batches, a row is scored again as a check
    assert model.attended == result.rows > 0


def test_coverage_needs_attention_and_is_not_plain():
    assert Coverage(0.1, GNMT(0.6)).needs == {"attention"}
    assert Coverage(0.0, LogProbability(2.0)).plain is False


def test_a_source_token_without_attention_has_a_large_but_finite_penalty():
    import numpy

    assert Coverage(1.0).ending(numpy.array([0.0, 2.0])) == pytest.approx(log(1e-10))


def test_coverage_refuses_keep_and_models_without_attention():
    with pytest.raises(ValueError, match="too late for finished='keep'; use 'leave'"):
        decode(Attending(random_toy("flat", 5, 1)), [SOURCE], score=Coverage(0.5), finished="keep")
    with pytest.raises(ValueError, match="FunctionModel gives no attention, which a coverage penalty needs"):
        decode(FunctionModel(random_toy("flat", 5, 1), EOS), [SOURCE], score=Coverage(0.5))
