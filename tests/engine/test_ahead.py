"""How many rows a single input scores ahead depends on how often such rows were needed; results and calls do not."""

from __future__ import annotations

from pathlib import Path

import pytest

import bestfirst
from bestfirst.engine.model_record import SpeculationRates, record_of
from bestfirst.settings import Budget

LINES = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:12]


@pytest.mark.parametrize(("needed", "rows"), [((1, 1, 1, 1), 10), ((1, 1, 0, 0), 3), ((0, 0, 0, 0), 2)])
def test_rows_beyond_the_free_ones_are_scored_ahead_only_if_such_rows_were_needed(needed, rows):
    """A rank that was never tried is assumed to be as useful as the one before."""
    ahead = SpeculationRates()
    for _ in range(40):
        ahead.learn("kind", [(rank, bool(one)) for rank, one in enumerate(needed, 1)])
    assert ahead.rows("kind", most=10, alone=2) == rows
    assert ahead.rows("kind", most=2, alone=2) == 2
    assert ahead.rows("another", most=10, alone=3) == 10  # the rate of an unknown kind, 0.4, is more than 1 / 3
    assert ahead.rows("another", most=10, alone=2) == 2


def test_answers_and_calls_do_not_depend_on_the_learned_rates(monkeypatch):
    model = bestfirst.load()
    monkeypatch.setattr(record_of(model), "budget", Budget(96, free=96, alone=4))  # a typical measurement, on any machine
    monkeypatch.setattr(record_of(model), "ahead", SpeculationRates())

    def decoded(**settings):
        results = [bestfirst.decode(model, [line], beam=10, nbest=2, **settings)[0] for line in LINES]
        return [(result.hypotheses, result.calls, result.exact) for result in results], [result.rows for result in results]

    first, rows = decoded()
    second, fewer = decoded()
    assert first == second == decoded(row_budget=1)[0]
    assert sum(fewer) < sum(rows) < sum(decoded(row_budget=96)[1])
