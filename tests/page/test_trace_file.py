"""Trace files that are read back: whole, of other versions, truncated, damaged."""

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


def test_a_written_trace_is_read_back_unchanged():
    trace = toy_trace()
    found = read_lines(lines_of(trace), "it")
    assert (found.problems, list(found.searches)) == ([], [None])
    assert found.searches[None] == [trace.events]


def test_interleaved_inputs_of_a_file_are_separated():
    first, second = toy_trace(1, line=3).events, toy_trace(2, line=8).events
    mixed = [event for pair in zip(first, second, strict=False) for event in pair]
    mixed += first[len(second) :] + second[len(first) :]
    found = read_lines([json.dumps(event) for event in [HEADER, *mixed]], "it")
    assert list(found.searches) == [3, 8]
    assert (found.searches[3], found.searches[8], found.problems) == ([first], [second], [])


def test_a_file_without_a_header_is_read_with_a_warning():
    events = toy_trace().events
    found = read_lines([json.dumps(event) for event in events], "'headless'")
    assert found.problems == ["'headless' has no format version in its first line; what can be read is shown"]
    assert found.searches[None] == [events]


def test_a_newer_version_is_read_as_far_as_known_with_a_warning():
    lines = lines_of(toy_trace())
    lines[0] = json.dumps({**HEADER, "version": 3})
    lines.insert(3, json.dumps({"event": "entangle", "id": 1}))
    found = read_lines(lines, "'new'")
    assert found.problems == ["'new' has format version 3, newer than 2, which this bestfirst knows; what it knows is shown"]
    assert found.searches[None] == [toy_trace().events]


def test_a_truncated_file_is_read_up_to_its_end_with_a_warning(tmp_path):
    whole = "".join(lines_of(toy_trace(5)))
    path = tmp_path / "cut.jsonl"
    for end in range(300, len(whole) - 300, 97):
        path.write_text(whole[:end], encoding="utf-8")
        found = read(path)
        (said,) = found.problems
        assert "ends in the middle of line" in said or "has no end" in said
        tree = RecordedTree(found.searches[None][0])
        assert tree.rows == whole[:end].count('"pop", "id": ') - (whole[:end].endswith('"pop", "id": '))  # or fewer digits


def test_damaged_lines_alone_are_skipped_and_counted():
    lines = lines_of(toy_trace(5))
    lines[4] = "{not json\n"
    lines[6] = '["a list"]\n'
    lines[7] = '{"event": "push", "id": "seven", "parent": null}\n'
    lines.insert(9, '{"event": "pop", "id": 999}\n')
    found = read_lines(lines, "'it'")
    assert found.problems == [
        "1 lines of 'it' are no JSON, the first is line 5; the others are shown",
        "2 lines of 'it' are no events of a search, the first is line 7; the others are shown",
    ]
    assert RecordedTree(found.searches[None][0]).nodes


ROOT_NODE = {"parent": None, "length": 0, "score": 0.0, "logprob": 0.0}
RESULT = {"event": "result", "answers": [0], "calls": 1, "rows": 1}


@pytest.mark.parametrize(
    "damaged",
    [
        {**RESULT, "answers": [{}]},
        {**RESULT, "answers": [], "called": 5},
        {**RESULT, "called": [[]]},
        {"event": "push", "line": {}, "id": 1, **ROOT_NODE},
        {"event": "pop", "id": 0, "texts": 5},
        {"event": "text", "texts": [7]},
        {"event": "text", "texts": ["so"], "drafted": "x"},
    ],
)
def test_an_event_with_a_field_of_another_type_is_skipped(damaged):
    sound = [{"event": "begin", "strategy": "beam"}, {"event": "push", "id": 0, **ROOT_NODE}, RESULT]
    where = 4 if damaged["event"] == "text" else 3
    lines = [json.dumps(event) for event in [HEADER, *sound]]
    found = read_lines([*lines[:where], json.dumps(damaged), *lines[where:]], "'it'")
    assert found.problems == [f"1 lines of 'it' are no events of a search, the first is line {where + 1}; the others are shown"]
    assert found.searches[None] == [sound]
    draw([RecordedTree(sound)])


def test_only_push_and_refuse_events_introduce_a_hypothesis():
    sound = [{"event": "begin", "strategy": "beam"}, {"event": "push", "id": 0, **ROOT_NODE}, RESULT]
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


def test_diverse_groups_are_split_into_searches_of_their_own():
    model = bestfirst.FunctionModel(lambda prefix: [-1.0, -1.5, -2.0, -2.5], eos=0)
    from bestfirst.scoring import Diverse

    (result,) = bestfirst.decode(model, [None], strategy="beam", beam=4, score=Diverse(2, 0.5), max_length=4, trace=True)
    parts = split(result.trace.events)
    assert len(parts) == 2
    assert all(RecordedTree(events).result is not None for events in parts)
    assert sum(RecordedTree(events).rows for events in parts) == result.rows + 1  # the empty hypothesis counts once, for both


def test_results_without_a_trace_and_missing_files_cannot_be_viewed(tmp_path: Path):
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


def test_random_traces_survive_being_written_and_read(cases, tally):
    numbers = cases(24, full=400)
    for case in random_cases(numbers, title="reading"):
        trace = Trace(input=1)
        run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, trace=trace)
        assert read_lines(lines_of(trace), "it").searches[1] == [trace.events]
    tally("traces read back", len(numbers), 0)
