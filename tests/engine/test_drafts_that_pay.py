"""Drafts where they pay, compiled searches elsewhere: drafters learn the outputs of both, and answers are the same."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import bestfirst
from bestfirst.engine import threads
from bestfirst.engine.compiled_engine import CompiledSearch
from bestfirst.engine.model_record import DraftGains, record_of
from engine.test_drafts import Malicious, Oracle, outcome

LINES = Path(__file__).parents[1].joinpath("data", "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:60]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(threads, "_configured", 1)


@pytest.fixture
def model():
    loaded = bestfirst.load()
    record_of(loaded).gains.clear()
    return loaded


def decode(model, lines, **asked):
    stats = bestfirst.Stats()
    results = bestfirst.decode(model, lines, stats=stats, **asked)
    return results, (stats.steps, stats.rows, stats.calls, stats.drafted, stats.in_flight, stats.cache_tokens)


@pytest.mark.parametrize("asked", [{}, {"row_budget": 16}, {"length_penalty": 1.0, "stop": "hf-false"}], ids=str)
def test_a_batch_too_full_for_drafts_equals_the_run_without(model, asked, caplog):
    caplog.set_level(logging.INFO, "bestfirst")
    plain = decode(model, LINES, **asked)
    for draft in (*bestfirst.drafting.DRAFTERS, Oracle(), Malicious(0), bestfirst.SmallerModel(bestfirst.load())):
        assert decode(model, LINES, draft=draft, **asked) == plain
    assert plain[1][3] == 0
    assert "no drafts: 60 inputs at a time" in caplog.text


@pytest.mark.parametrize("asked", [{}, {"nbest": 3}, {"length_penalty": 1.0, "stop": "hf-false"}, {"finished": "keep"}], ids=str)
@pytest.mark.parametrize("together", [60, 1])
def test_a_repeated_input_takes_one_step_and_no_extra_row(model, asked, together):
    """Whether or not the earlier search was compiled."""
    earlier, budget = bestfirst.EarlierOutputs(), {"row_budget": 128}
    lines = LINES[:60:together] if together > 1 else LINES[:4]
    for first in range(0, len(LINES) if together > 1 else 4, together):
        bestfirst.decode(model, LINES[first : first + together], draft=earlier, row_budget=2, **asked)
    for line in lines:
        (plain,) = bestfirst.decode(model, [line], **asked, **budget)
        for _ in range(2):  # in the first, the drafter's acceptance is still unknown
            (again,) = bestfirst.decode(model, [line], draft=earlier, **asked, **budget)
        assert outcome(again) == outcome(plain)
        assert (again.steps, again.rows) == (1, again.calls)


def test_searches_are_compiled_where_drafts_take_longer(model, monkeypatch):
    begun = []
    begin = CompiledSearch.__init__
    monkeypatch.setattr(CompiledSearch, "__init__", lambda self, *given: begun.append(self) or begin(self, *given))
    plain = [bestfirst.decode(model, [line])[0] for line in LINES[:12]]
    for pays in (False, True):
        begun.clear()
        monkeypatch.setattr(DraftGains, "pay", lambda self, kind, pays=pays: pays)
        drafted = [bestfirst.decode(model, [line], draft="source")[0] for line in LINES[:12]]
        assert [outcome(result) for result in drafted] == [outcome(result) for result in plain]
        assert len(begun) == (0 if pays else 12)
    begun.clear()
    monkeypatch.setattr(DraftGains, "pay", lambda self, kind: False)
    small = bestfirst.SmallerModel(bestfirst.load())  # always drafts
    bestfirst.decode(model, LINES[:1], draft=small)
    bestfirst.decode(model, LINES[:1], draft="source", row_budget=16)  # a given row budget means that rows are free
    assert not begun
    allowed = bestfirst.Trie([[5, 6], [5, 7]])
    bestfirst.decode(model, LINES[:1], draft="source", row_budget=16, allowed=allowed)  # nothing is drafted under a trie
    assert len(begun) == 1


def test_the_choice_follows_the_latest_times():
    gains, drafted = DraftGains(), []
    for i in range(200):
        pay = gains.pay("like this")
        drafted.append(pay)
        gains.note("like this", pay, (0.5 if i > 120 else 1.5) if pay else 1.0)
    assert drafted[:4] == [True, False, True, False]  # alternately at first
    assert sum(drafted[4:120]) == 116 // DraftGains.RETRY
    assert sum(drafted[140:]) >= 58
    assert gains.pay("other inputs")


def test_earlier_outputs_expect_drafts_to_pay_for_repeated_inputs():
    earlier, model = bestfirst.EarlierOutputs(capacity=2), bestfirst.load()
    read = model.reader(None)
    for line in LINES[:3]:
        bestfirst.decode(model, [line], draft=earlier)
    assert [earlier.outlook(read(line)) for line in LINES[:4]] == [False, True, True, False]  # it remembers two
