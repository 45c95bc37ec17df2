"""Traces that are read back: whole, of other versions, cut off, damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bestfirst
from bestfirst.page import RecordedTree, read
from bestfirst.page.recorded_tree import draw
from bestfirst.page.trace_file import read_lines, split
from bestfirst.search import HEADER, Trace, best_first_beam
from toys import Case, random_cases, run


def lines_of(*traces: Trace) -> list[str]:
    return [json.dumps(event) + "\n" for event in [HEADER, *(event for trace in traces for event in trace.events)]]


def toy_trace(seed: int = 0, **labels: object) -> Trace:
    trace = Trace(**labels)
    run(Case("peaked", 6, seed, 3, 7, 2, "keep").toy, best_first_beam(3, "keep"), 7, n=2, trace=trace)
    return trace


def test_what_was_written_is_read_back():
    trace = toy_trace()
    found = read_lines(lines_of(trace), "it")
    assert (found.trouble, list(found.searches)) == ([], [None])
    assert found.searches[None] == [trace.events]


def test_inputs_that_share_a_file_are_told_apart_however_they_are_mixed():
    first, second = toy_trace(1, line=3).events, toy_trace(2, line=8).events
    mixed = [event for pair in zip(first, second, strict=False) for event in pair]
    mixed += first[len(second) :] + second[len(first) :]
    found = read_lines([json.dumps(event) for event in [HEADER, *mixed]], "it")
    assert list(found.searches) == [3, 8]
    assert (found.searches[3], found.searches[8], found.trouble) == ([first], [second], [])


def test_a_file_without_its_first_line_is_named_and_shown():
    events = toy_trace().events
    found = read_lines([json.dumps(event) for event in events], "'headless'")
    assert found.trouble == ["'headless' has no format version in its first line; what can be read is shown"]
    assert found.searches[None] == [events]


def test_a_newer_version_is_named_and_what_is_known_of_it_shown():
    lines = lines_of(toy_trace())
    lines[0] = json.dumps({**HEADER, "version": 3})
    lines.insert(3, json.dumps({"event": "entangle", "id": 1}))
    found = read_lines(lines, "'new'")
    assert found.trouble == ["'new' has format version 3, newer than 2, which this bestfirst knows; what it knows is shown"]
    assert found.searches[None] == [toy_trace().events]


def test_a_file_cut_off_anywhere_is_shown_as_far_as_it_goes(tmp_path):
    whole = "".join(lines_of(toy_trace(5)))
    path = tmp_path / "cut.jsonl"
    for end in range(300, len(whole) - 300, 97):
        path.write_text(whole[:end], encoding="utf-8")
        found = read(path)
        (said,) = found.trouble
        assert "ends in the middle of line" in said or "has no end" in said
        told = RecordedTree(found.searches[None][0])
        assert told.rows == whole[:end].count('"pop", "id": ') - (whole[:end].endswith('"pop", "id": '))  # or fewer digits


def test_damage_in_the_middle_costs_only_what_it_hit():
    lines = lines_of(toy_trace(5))
    lines[4] = "{not json\n"
    lines[6] = '["a list"]\n'
    lines[7] = '{"event": "push", "id": "seven", "parent": null}\n'
    lines.insert(9, '{"event": "pop", "id": 999}\n')
    found = read_lines(lines, "'it'")
    assert found.trouble == [
        "1 lines of 'it' are no JSON, the first is line 5; the others are shown",
        "2 lines of 'it' are no events of a search, the first is line 7; the others are shown",
    ]
    assert RecordedTree(found.searches[None][0]).nodes


BORN = {"parent": None, "length": 0, "score": 0.0, "logprob": 0.0}
RESULT = {"event": "result", "answers": [0], "calls": 1, "rows": 1}


@pytest.mark.parametrize(
    "damaged",
    [
        {**RESULT, "answers": [{}]},
        {**RESULT, "answers": [], "called": 5},
        {**RESULT, "called": [[]]},
        {"event": "push", "line": {}, "id": 1, **BORN},
        {"event": "pop", "id": 0, "texts": 5},
        {"event": "text", "texts": [7]},
        {"event": "text", "texts": ["so"], "drafted": "x"},
    ],
)
def test_an_event_whose_parts_are_of_another_type_is_left_out(damaged):
    sound = [{"event": "begin", "strategy": "beam"}, {"event": "push", "id": 0, **BORN}, RESULT]
    where = 4 if damaged["event"] == "text" else 3
    lines = [json.dumps(event) for event in [HEADER, *sound]]
    found = read_lines([*lines[:where], json.dumps(damaged), *lines[where:]], "'it'")
    assert found.trouble == [f"1 lines of 'it' are no events of a search, the first is line {where + 1}; the others are shown"]
    assert found.searches[None] == [sound]
    draw([RecordedTree(sound)])


def test_only_what_enters_a_beam_or_is_refused_introduces_a_hypothesis():
    sound = [{"event": "begin", "strategy": "beam"}, {"event": "push", "id": 0, **BORN}, RESULT]
    lines = [json.dumps(event) for event in [HEADER, *sound]]
    lines[3:3] = ['{"event": "pop", "id": 9, "parent": 0}', '{"event": "pop", "id": 9, "parent": []}']
    found = read_lines(lines, "it")
    assert found.searches[None] == [sound]
    RecordedTree(found.searches[None][0])


@pytest.mark.parametrize("content", ["", "\n\n", "hello\n", json.dumps(HEADER), '{"event": "pop", "id": 3}\n', "\xff\xfe"])
def test_a_file_without_a_search_is_an_error_in_one_line(tmp_path, content):
    path = tmp_path / "nothing.jsonl"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"there is no search in '.*nothing.jsonl'; write one with") as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_diverse_groups_are_searches_of_their_own():
    model = bestfirst.FunctionModel(lambda prefix: [-1.0, -1.5, -2.0, -2.5], eos=0)
    from bestfirst.scoring import Diverse

    (result,) = bestfirst.decode(model, [None], strategy="beam", beam=4, score=Diverse(2, 0.5), max_length=4, trace=True)
    parts = split(result.trace.events)
    assert len(parts) == 2
    assert all(RecordedTree(events).result is not None for events in parts)
    assert sum(RecordedTree(events).rows for events in parts) == result.rows + 1  # the empty output counts once, for both


def test_what_cannot_be_viewed_says_so(tmp_path: Path):
    model = bestfirst.FunctionModel(lambda prefix: [-1.0, -1.5], eos=0)
    (result,) = bestfirst.decode(model, [None])
    assert result.trace is None
    with pytest.raises(ValueError, match="this result has no trace; decode with trace=True"):
        bestfirst.view(result)
    with pytest.raises(ValueError, match="there is nothing to view"):
        bestfirst.view()
    with pytest.raises(ValueError, match="this trace has no events"):
        bestfirst.view(Trace())
    with pytest.raises(FileNotFoundError):
        bestfirst.view(tmp_path / "nowhere")


def test_random_traces_survive_the_way_through_a_file(cases, tally):
    numbers = cases(24, full=400)
    for case in random_cases(numbers, title="reading"):
        trace = Trace(input=1)
        run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, trace=trace)
        assert read_lines(lines_of(trace), "it").searches[1] == [trace.events]
    tally("traces read back", len(numbers), 0)
