"""What models of one's own cost is measured on models that find the same, whatever their scores are given as."""

from __future__ import annotations

import bestfirst
from bestfirst_bench import own_models


def test_the_same_lstm_is_compared():
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
