"""Trace files: the searches of a JSONL file, and what is wrong with it. Whatever can be read is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    "pop": {"id": int},
    "draft": {"id": int},
    "prune": {"id": int},
    "evict": {"id": int},
    "finish": {"id": int},
    "result": {"answers": list, "calls": int, "rows": int},
    "text": {"texts": list},
}
ELEMENTS: dict[str, Any] = {"answers": int, "called": int, "texts": (str, NOTHING)}  # of lists
OPTIONAL: dict[str, Any] = {**dict.fromkeys(LABELS, (int, str)), **dict.fromkeys(ELEMENTS, (list, NOTHING)), "drafted": int}


@dataclass
class TraceFile:
    """What a file holds: searches, each with the label of its input (None without), and complaints, one sentence each."""

    searches: list[tuple[Any, Events]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def of(self, label: Any) -> list[Events]:
        return [events for each, events in self.searches if each == label]

    @property
    def labels(self) -> list[Any]:
        """The inputs, in order."""
        return list(dict.fromkeys(label for label, _ in self.searches))


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
    searches = Searches()
    for event in _sound(_parsed(lines, name, trouble), name, trouble):
        searches.add(event)
    for label, events in searches.found:
        if events[-1]["event"] not in ("result", "text") and not trouble:
            of = "" if label is None else f" of line {label}" if isinstance(label, int) else f" of {label}"
            trouble.append(f"the search{of} in {name} has no end: the file is cut off, or the search was interrupted")
    return TraceFile(searches.found, trouble)


def split(events: Iterable[Mapping[str, Any]]) -> list[Events]:
    """The searches among events that were recorded together, as those of diverse groups are."""
    searches = Searches()
    for event in events:
        searches.add(dict(event))
    return [each for _, each in searches.found]


class Searches:
    """Tells the events of several searches apart: by their label, by where a search begins, and by the ids of its hypotheses."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, Events]] = []
        self._home: dict[tuple[Any, int], Events] = {}  # by label and id
        self._begun: dict[Any, Events] = {}  # the latest by label, until it has a root
        self._ended: dict[Any, list[Events]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Put an event where it belongs; one about a hypothesis that no line introduced is left out."""
        label = next((event[name] for name in LABELS if name in event), None)
        kind = event["event"]
        if kind == "begin":
            self._begin(label).append(event)
        elif kind == "result":
            self._end(label, event)
        elif kind == "text":
            for events in self._ended.pop(label, []):
                events.append(event)
        elif kind == "push" and event["parent"] is None and (label in self._begun or (label, event["id"]) not in self._home):
            if (label, event["id"]) in self._home:  # another trace, which numbers its hypotheses anew
                self._home = {key: home for key, home in self._home.items() if key[0] != label}
            home = self._begun[label] if label in self._begun else self._begin(label)
            del self._begun[label]
            self._home[label, event["id"]] = home
            home.append(event)
        else:
            born = kind in ("push", "refuse") and (label, event["id"]) not in self._home
            known_home = self._home.get((label, event["parent" if born else "id"]))
            if known_home is not None:
                self._home[label, event["id"]] = known_home
                known_home.append(event)

    def _begin(self, label: Any) -> Events:
        events: Events = []
        self.found.append((label, events))
        self._begun[label] = events
        return events

    def _end(self, label: Any, event: dict[str, Any]) -> None:
        """The result names its hypotheses; one without any belongs to the search that has none yet."""
        named = next((self._home.get((label, number)) for number in (*event["answers"], *(event.get("called") or ()))), None)
        if named is None:
            named = next((each for at, each in self.found if at == label and each[-1]["event"] != "result"), None)
        if named is not None:
            event["answers"] = [number for number in event["answers"] if self._home.get((label, number)) is named]
            named.append(event)
            self._ended.setdefault(label, []).append(named)


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
