"""The tree of a trace agrees with the search that was recorded: every fate and every reason."""

from __future__ import annotations

import random

import pytest

import bestfirst
from bestfirst.page import RecordedTree
from bestfirst.page.recorded_tree import FATES
from bestfirst.search import Trace, beam, best_first_beam
from toys import Case, random_cases, run


def run_and_record(case: Case, strategy, **settings):
    trace = Trace()
    done = run(case.toy, strategy, case.n_max, n=case.n, trace=trace, **settings)
    return done, RecordedTree(trace.events)


def tokens_of(y) -> tuple[int, ...]:
    return () if y.parent is None else (*tokens_of(y.parent), int(y.piece))


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("level_by_level", [False, True])
def test_fates_agree_with_the_search(cases, tally, level_by_level, ahead):
    numbers = cases(40, full=800)
    for case in random_cases(numbers, title=f"fates {level_by_level} {ahead}"):
        strategy = (beam if level_by_level else best_first_beam)(case.k, case.finished)
        done, tree = run_and_record(case, strategy, choose=lambda search: search.frontier(ahead))
        search, result = done.search, done.result
        members = {z.tokens: z for each in search.agenda.beams for z in each.members}
        assert (tree.calls, tree.rows) == (result.calls, result.rows)
        assert [tokens_of(y) for y in tree.answers] == [answer.tokens for answer in result.hypotheses]
        assert sum(tree.counts().values()) == len(tree.nodes)
        for y in tree.nodes.values():
            tokens = tokens_of(y)
            z = members.get(tokens)
            if y.fate == "returned":
                assert tokens in {answer.tokens for answer in result.hypotheses}
            elif y.fate == "finished":
                assert z is not None
                assert z.on_beam
            elif y.fate == "expanded":
                assert z is not None
                assert z.successors is not None
            elif y.fate == "pending":
                assert z is not None
                assert z.successors is None
            elif y.why["why"] == "limit":
                assert y.length == case.n_max
            elif y.why["why"] != "hopeless":
                assert z is None or not z.on_beam
    tally("fates told", len(numbers), 0)


def test_a_full_length_has_as_many_better_hypotheses_as_stated(cases, tally):
    """For the reason "length 7 was full: 10 better", there were as many, and they were better."""
    numbers = cases(60, full=800)
    for case in random_cases(numbers, title="why"):
        done, tree = run_and_record(case, best_first_beam(case.k, case.finished))
        for y in tree.nodes.values():
            if y.why.get("why") != "full":
                continue
            assert y.why["better"] == case.k
            assert y.why["at"] == y.length or (case.finished == "keep" and y.finished and y.why["at"] > y.length)
            beam_there = done.search.agenda.beams[y.why["at"]].members
            rivals = beam_there if y.finished or case.finished == "keep" else [z for z in beam_there if not z.finished]
            better = [z for z in rivals if (-z.worth, z.length, z.tokens) < (-y.score, y.length, tokens_of(y))]
            assert len(better) >= case.k, (case, tokens_of(y))
    tally("reasons told", len(numbers), 0)


def test_called_lists_the_prefixes_of_strict_order_when_more_rows_were_scored():
    rng = random.Random(1)
    more = 0
    for seed in range(40):
        case = Case("peaked", 6, seed, k=4, n_max=8, n=1, finished=rng.choice(("keep", "leave")))
        strict = run(case.toy, best_first_beam(case.k, case.finished), case.n_max)
        _, tree = run_and_record(case, best_first_beam(case.k, case.finished), choose=lambda search: search.frontier(4))
        called = {tokens_of(tree.nodes[number]) for number in tree.result["called"]}
        assert called == set(strict.prefixes)
        more += tree.rows > tree.calls
    assert more > 10


def test_a_trace_records_the_whole_agenda(searched):
    """The paper's agenda: tracing is not lazy, and records every child that a beam admitted."""
    tree = RecordedTree(searched(5).trace.events)
    first = [y for y in tree.nodes.values() if y.length == 1]
    assert len([y for y in first if y.fate != "pruned"]) == 5
    assert tree.about["source"] == "Wie melkt man eine Kuh?"
    assert [answer.text for answer in searched(5).hypotheses] == tree.texts
    assert tree.answers[0].text == searched(5).text


def test_tracing_changes_no_result(searched, model):
    for strategy in ("best-first", "beam", "a-star-beam", "greedy"):
        for settings in ({}, {"nbest": 3, "finished": "keep"}, {"queue_capacity": 4}):
            if strategy == "greedy" and "nbest" in settings:
                continue
            (plain,) = bestfirst.decode(model, ["Wie melkt man eine Kuh?"], beam=5, strategy=strategy, row_budget=1, **settings)
            assert searched(5, strategy, **settings) == plain


def test_evicted_hypotheses_are_recorded_with_the_capacity(searched):
    tree = RecordedTree(searched(5, queue_capacity=4).trace.events)
    evicted = [y for y in tree.nodes.values() if y.fate == "evicted"]
    assert evicted
    assert all(y.why == {"capacity": 4} for y in evicted)
    assert tuple(tree.counts()) == FATES


def test_drafted_rows_are_marked(tmp_path):
    earlier = bestfirst.EarlierOutputs()
    for _ in range(2):
        (result,) = bestfirst.decode(bestfirst.load(), ["Guten Morgen!"], draft=earlier, row_budget=32, trace=True)
    tree = RecordedTree(result.trace.events)
    assert tree.drafted == result.drafted > 0
    assert sum(y.drafted for y in tree.nodes.values()) == result.accepted > 0
    assert all(y.popped is not None for y in tree.nodes.values() if y.drafted)
