"""Trace files: the searches of a JSONL file, and what is wrong with it. Whatever can be read is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..search.trace import FORMAT, VERSION

Events = list[dict[str, Any]]
LABELS = ("line", "input")  # what tells inputs apart that share a file
NOTHING = type(None)
NUMBER = (int, float)
BORN = {"parent": (int, NOTHING), "length": int, "score": NUMBER, "logprob": NUMBER}
FIELDS: dict[str, dict[str, Any]] = {  # what each event must have, and of which type
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
    """What a file holds: the searches of each input, by its label (None without), and complaints, one sentence each."""

    searches: dict[Any, list[Events]]
    trouble: list[str]


def read(path: str | Path) -> TraceFile:
    """Read a file of traces. Raises OSError if there is none, ValueError if nothing in it can be shown."""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = read_lines(file, repr(str(path)))
    if not found.searches:
        raise ValueError(f"there is no search in {str(path)!r}; write one with 'bestfirst translate --trace' or 'view --json'")
    return found


def read_lines(lines: Iterable[str], name: str) -> TraceFile:
    """As `read`, of lines that are at hand; `name` is what complaints call them."""
    trouble: list[str] = []
    searches = _by_input(_sound(_parsed(lines, name, trouble), name, trouble))
    for label, found in searches.items():
        if not trouble and any(events[-1]["event"] not in ("result", "text") for events in found):
            of = "" if label is None else f" of line {label}" if isinstance(label, int) else f" of {label}"
            trouble.append(f"the search{of} in {name} has no end: the file is cut off, or the search was interrupted")
    return TraceFile(searches, trouble)


def split(recorded: Iterable[Mapping[str, Any]]) -> list[Events]:
    """The searches among events that were recorded together, as those of diverse groups are."""
    return [events for searches in _by_input(recorded).values() for events in searches]


def _by_input(recorded: Iterable[Mapping[str, Any]]) -> dict[Any, list[Events]]:
    inputs: dict[Any, Events] = {}
    for event in map(dict, recorded):
        inputs.setdefault(next((event[name] for name in LABELS if name in event), None), []).append(event)
    return {label: searches for label, events in inputs.items() if (searches := _searches(events))}


def _searches(recorded: Events) -> list[Events]:
    """Those of one input, told apart by where one begins, and by the ids of its hypotheses. An event about a hypothesis that
    none introduced is left out."""
    searches: list[Events] = []
    home: dict[int, Events] = {}  # by id
    begun: Events | None = None  # the latest, until it has a root
    ended: list[Events] = []
    for event in recorded:
        kind = event["event"]
        if kind == "begin":
            searches.append(begun := [event])
        elif kind == "result":
            its = next((home.get(number) for number in (*event["answers"], *(event.get("called") or ()))), None)
            if its is None:  # it names no hypothesis: it is of the search that has no result yet
                its = next((each for each in searches if each[-1]["event"] != "result"), None)
            if its is not None:
                its.append({**event, "answers": [number for number in event["answers"] if home.get(number) is its]})
                ended.append(its)
        elif kind == "text":
            for each in ended:
                each.append(event)
            ended = []
        elif kind == "push" and event["parent"] is None and (begun is not None or event["id"] not in home):
            if event["id"] in home:  # another trace, which numbers its hypotheses anew
                home = {}
            if begun is None:
                searches.append(begun := [])
            home[event["id"]] = begun
            begun.append(event)
            begun = None
        else:
            born = kind in ("push", "refuse") and event["id"] not in home
            its = home.get(event["parent" if born else "id"])
            if its is not None:
                home[event["id"]] = its
                its.append(event)
    return searches


def _parsed(lines: Iterable[str], name: str, trouble: list[str]) -> Iterator[tuple[int, Any]]:
    """The objects of a file, with their line numbers; complains of a format that is not today's, and of what is no JSON."""
    lost: list[int] = []
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
        if (header or number == 1) and version != VERSION and not any("version" in said for said in trouble):
            trouble.append(_other_version(name, version))
        if not header:
            yield number, value
    if lost and lost == [number]:
        trouble.append(f"{name} ends in the middle of line {number}; what is before it is shown")
    elif lost:
        trouble.append(f"{len(lost)} lines of {name} are no JSON, the first is line {lost[0]}; the others are shown")


def _other_version(name: str, version: Any) -> str:
    if version is None:
        return f"{name} has no format version in its first line; what can be read is shown"
    if isinstance(version, int) and version > VERSION:
        return f"{name} has format version {version}, newer than {VERSION}, which this bestfirst knows; what it knows is shown"
    return f"{name} has the unknown format version {version!r}; what can be read is shown"


def _sound(objects: Iterable[tuple[int, Any]], name: str, trouble: list[str]) -> Iterator[dict[str, Any]]:
    """The events among them that are as they should be. Of events that no version of today knows nothing is said."""
    odd: list[int] = []
    for number, value in objects:
        kind = value.get("event") if isinstance(value, dict) else None
        fields = FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is None and isinstance(kind, str):
            continue
        if fields is None or not _typed(value, fields):
            odd.append(number)
        else:
            yield value
    if odd:
        trouble.append(f"{len(odd)} lines of {name} are no events of a search, the first is line {odd[0]}; the others are shown")


def _typed(event: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether an event has these fields, and all that is read of it is of its type."""
    return (
        all(isinstance(event.get(name), types) for name, types in fields.items())
        and all(isinstance(event[name], types) for name, types in OPTIONAL.items() if name in event)
        and all(isinstance(each, types) for name, types in ELEMENTS.items() for each in event.get(name) or ())
    )
