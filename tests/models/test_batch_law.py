"""The batch law: a model whose scores depend on the rest of the batch is detected."""

from __future__ import annotations

import numpy
import pytest
import torch

from bestfirst import Stats, decode
from models.ducks import Duck, bigram
from strict import no_warnings


class Neighbourly(Duck):
    """Its scores depend on the longest prefix of the batch, as without a padding mask."""

    def score(self, batch):
        longest = max(len(prefix) for _, prefix in batch)
        return [
            (row if len(query.prefix) == longest else row[::-1].copy(), state)
            for query, (row, state) in zip(batch, super().score(batch), strict=True)
        ]


def test_a_model_whose_scores_depend_on_the_batch_is_detected():
    with pytest.warns(RuntimeWarning, match=r"Neighbourly.score gives token \d after .* alone and .* in a batch of \d+: its .*"
                      r"exact=False; .*row_budget=1") as caught:  # fmt: skip
        results = decode(Neighbourly(), range(100), beam=4, max_length=8, row_budget=16)
    assert len([each for each in caught if each.category is RuntimeWarning]) == 1
    assert not any(result.exact for result in results[-50:])
    with no_warnings():
        alone = decode(Neighbourly(), range(10), beam=4, max_length=8, row_budget=1)
    assert all(result.exact for result in alone)
    assert [result.hypotheses for result in alone] == [r.hypotheses for r in decode(Duck(), range(10), beam=4, max_length=8)]


def test_a_batch_independent_model_is_rarely_checked_again():
    asked = []

    class Counted(Duck):
        def score(self, batch):
            asked.append(len(batch))
            return super().score(batch)

    stats = Stats()
    with no_warnings():
        results = decode(Counted(), range(400), beam=4, max_length=8, row_budget=16, stats=stats)
    assert all(result.exact for result in results)
    assert 1 <= sum(asked) - stats.rows <= 4 + numpy.log2(stats.steps) / 2


def test_rounding_of_half_precision_is_tolerated():
    class Half(Duck):
        def score(self, batch):
            noise = 1e-3 * (len(batch) > 1)
            answers = super().score(batch)
            return [
                (torch.tensor(row + noise * (row.argmax() != numpy.arange(5)), dtype=torch.bfloat16), s) for row, s in answers
            ]

    with no_warnings():
        assert all(result.exact for result in decode(Half(), range(30), beam=3, max_length=6))


def test_states_may_be_overwritten_in_greedy_search():
    """Greedy search uses every state once, so the spot check of the batch law does not score it again."""

    class InPlace(Duck):
        def start(self, source):
            return [source]

        def score(self, batch):
            for state, prefix in batch:
                state.extend(prefix[-1:])
            return [(bigram(state[0], tuple(state[1:])), state) for state, _ in batch]

    greedy = decode(InPlace(), range(20), beam=1, max_length=8)
    assert [r.hypotheses for r in greedy] == [r.hypotheses for r in decode(Duck(), range(20), beam=1, max_length=8)]
