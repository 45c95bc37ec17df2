"""Reads trace files (JSONL, see `bestfirst.search.trace`), damaged ones as far as possible, and reports their problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..search.trace import FORMAT, VERSION

Events = list[dict[str, Any]]
LABELS = ("line", "input")  # fields that tell the inputs of a file apart
NOTHING = type(None)
NUMBER = (int, float)
BORN = {"parent": (int, NOTHING), "length": int, "score": NUMBER, "logprob": NUMBER}
FIELDS: dict[str, dict[str, Any]] = {  # by event: its required fields and their types
    "begin": {"strategy": str},
    "push": {"id": int, **BORN},
    "refuse": {"id": int, **BORN, "at": int},
    **{kind: {"id": int} for kind in ("pop", "draft", "prune", "evict", "finish")},
    "result": {"answers": list, "calls": int, "rows": int},
    "text": {"texts": list},
}
ELEMENTS: dict[str, Any] = {"answers": int, "called": int, "texts": (str, NOTHING)}  # of lists
OPTIONAL: dict[str, Any] = {**dict.fromkeys(LABELS, (int, str)), **dict.fromkeys(ELEMENTS, (list, NOTHING)), "drafted": int}


class TraceFile(NamedTuple):
    """The searches of each input of a file, by its label (None without), and the file's problems, a sentence each."""

    searches: dict[Any, list[Events]]
    problems: list[str]


def read(path: str | Path) -> TraceFile:
    """Read a trace file. Raises OSError if it cannot be opened, ValueError if there is no search in it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        content = read_lines(file, repr(str(path)))
    if not content.searches:
        raise ValueError(f"there is no search in {str(path)!r}; write one with 'bestfirst translate --trace' or 'view --json'")
    return content


def read_lines(lines: Iterable[str], name: str) -> TraceFile:
    """As `read`, from an iterable of lines; `name` stands for the file in the messages."""
    problems: list[str] = []
    searches = _by_input(_events(lines, name, problems))
    for label, of_input in searches.items():
        if not problems and any(events[-1]["event"] not in ("result", "text") for events in of_input):
            of = "" if label is None else f" of line {label}" if isinstance(label, int) else f" of {label}"
            problems.append(f"the search{of} in {name} has no end: the file is cut off, or the search was interrupted")
    return TraceFile(searches, problems)


def split(recorded: Iterable[Mapping[str, Any]]) -> list[Events]:
    """The separate searches of events that were recorded together, such as those of diverse groups."""
    return [events for searches in _by_input(recorded).values() for events in searches]


def _by_input(recorded: Iterable[Mapping[str, Any]]) -> dict[Any, list[Events]]:
    inputs: dict[Any, Events] = {}
    for event in map(dict, recorded):
        inputs.setdefault(next((event[name] for name in LABELS if name in event), None), []).append(event)
    return {label: searches for label, events in inputs.items() if (searches := _searches(events))}


def _searches(recorded: Events) -> list[Events]:
    """The searches of one input, told apart by their `begin` events and the ids of their hypotheses. Events of unknown hypotheses
    are dropped."""
    searches: list[Events] = []
    search_of: dict[int, Events] = {}  # by the id of a hypothesis
    begun: Events | None = None  # the latest search, until its root is pushed
    ended: list[Events] = []  # the searches that have a result, but no texts yet
    for event in recorded:
        kind = event["event"]
        if kind == "begin":
            searches.append(begun := [event])
        elif kind == "result":
            search = next((search_of.get(number) for number in (*event["answers"], *(event.get("called") or ()))), None)
            if search is None:  # it names no hypothesis: it is of the search that has no result yet
                search = next((each for each in searches if each[-1]["event"] != "result"), None)
            if search is not None:
                search.append({**event, "answers": [number for number in event["answers"] if search_of.get(number) is search]})
                ended.append(search)
        elif kind == "text":
            for each in ended:
                each.append(event)
            ended = []
        elif kind == "push" and event["parent"] is None and (begun is not None or event["id"] not in search_of):
            if event["id"] in search_of:  # another trace, which numbers its hypotheses anew
                search_of = {}
            if begun is None:
                searches.append(begun := [])
            search_of[event["id"]] = begun
            begun.append(event)
            begun = None
        else:
            born = kind in ("push", "refuse") and event["id"] not in search_of
            search = search_of.get(event["parent" if born else "id"])
            if search is not None:
                search_of[event["id"]] = search
                search.append(event)
    return searches


def _events(lines: Iterable[str], name: str, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the valid events of a file. Unknown kinds of events are skipped, as of a newer version; another version, lines that
    are not JSON and other values go to `problems`."""
    lost: list[int] = []
    bad: list[int] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            lost.append(number)
            continue
        header = isinstance(value, dict) and value.get("format") == FORMAT
        version = value.get("version") if header else None
        if (header or number == 1) and version != VERSION and not any("version" in problem for problem in problems):
            problems.append(_other_version(name, version))
        kind = value.get("event") if isinstance(value, dict) else None
        if header or (isinstance(kind, str) and kind not in FIELDS):
            continue
        if isinstance(kind, str) and _has_types(value, FIELDS[kind]):
            yield value
        else:
            bad.append(number)
    if lost and lost == [number]:
        problems.append(f"{name} ends in the middle of line {number}; what is before it is shown")
    elif lost:
        problems.append(f"{len(lost)} lines of {name} are no JSON, the first is line {lost[0]}; the others are shown")
    if bad:
        problems.append(f"{len(bad)} lines of {name} are no events of a search, the first is line {bad[0]}; the others are shown")


def _other_version(name: str, version: Any) -> str:
    if version is None:
        return f"{name} has no format version in its first line; what can be read is shown"
    if isinstance(version, int) and version > VERSION:
        return f"{name} has format version {version}, newer than {VERSION}, which this bestfirst knows; what it knows is shown"
    return f"{name} has the unknown format version {version!r}; what can be read is shown"


def _has_types(event: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether an event has these fields, and they, its optional fields and the elements of its lists are of the right types."""
    return (
        all(isinstance(event.get(name), types) for name, types in fields.items())
        and all(isinstance(event[name], types) for name, types in OPTIONAL.items() if name in event)
        and all(isinstance(each, types) for name, types in ELEMENTS.items() for each in event.get(name) or ())
    )
