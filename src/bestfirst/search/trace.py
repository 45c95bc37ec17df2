"""Trace: every event of a search, one JSON object a line, for those who want to see it."""

from __future__ import annotations

import json
from typing import IO, Any, Literal

from .hypothesis import Hypothesis

Event = Literal["push", "pop", "prune", "evict", "finish"]
"""push: entered a beam; pop: was scored; prune: fell off, or nothing it could become can stay; evict: the queue was over
capacity; finish: a complete hypothesis was accepted (it may still be pruned by better ones)."""


class Trace:
    """Collects events, or writes them to `file` as they come. A search without a trace pays one comparison an event."""

    def __init__(self, file: IO[str] | None = None, **labels: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._file = file
        self._labels = labels  # on every line, say the number of the input
        self._ids = 0

    def note(self, event: Event, y: Hypothesis) -> None:
        if y.id < 0:
            y.id = self._ids
            self._ids += 1
        line: dict[str, Any] = {**self._labels, "event": event, "id": y.id}
        if event == "push":
            line |= {
                "parent": None if y.parent is None else y.parent.id,
                "token": None if y.parent is None else y.token,
                "length": y.length,
                "score": y.worth,
                "logprob": y.logprob,
            }
        if self._file is None:
            self.events.append(line)
        else:
            self._file.write(json.dumps(line) + "\n")
