"""The cost of user-defined models is measured on one LSTM, with the same results for all forms of scores."""

from __future__ import annotations

import bestfirst
from bestfirst_bench import own_models


def test_the_lstm_gives_the_same_results_for_all_forms_of_scores():
    found = [bestfirst.decode(own_models.Lstm(form), range(4), beam=3, max_length=5, accept_truncated=True, row_budget=8)
             for form in own_models.FORMS.values()]  # fmt: skip
    outputs = [[([(y.tokens, y.score) for y in result.hypotheses], result.calls) for result in results] for results in found]
    assert outputs[0] == outputs[1] == outputs[2]


def test_times_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(own_models, "WIDE", 50)
    own_models.main(turns=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("an LSTM, seconds: lists ")
    assert "slowest over fastest" in lines[0]
    assert lines[1].startswith("a row of 50,000, ms: lists ")
