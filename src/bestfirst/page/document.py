"""view: from what was recorded to a page that can be saved or shown in a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..search import Result, Trace
from .build import render
from .reading import Events, read, split

Recorded = Result | Trace | str | Path | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Page:
    """One self-contained page. A notebook shows it as it is."""

    html: str = field(repr=False)
    searches: list[Events] = field(repr=False)
    trouble: tuple[str, ...] = ()

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        path = Path(path)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """In a frame of its own, so that neither the page's style nor the notebook's reaches the other."""
        frame = "width:100%;height:760px;border:0;border-radius:8px"
        return f'<iframe srcdoc="{escape(self.html)}" style="{frame}" title="bestfirst: a search"></iframe>'

    def __str__(self) -> str:
        return self.html


def view(*recorded: Recorded, title: str | None = None) -> Page:
    """The page of one or more searches of one input, side by side.

        fast, beam = (bestfirst.decode(model, [text], strategy=s, trace=True)[0] for s in ("best-first", "beam"))
        bestfirst.view(fast, beam).save("page.html")

    Each is a result that was decoded with `trace=True`, a `Trace`, its events, or the path of a JSONL file, of which the first
    input is taken. A file that is damaged or of another version is shown as far as it can be read, with a warning.
    """
    if not recorded:
        raise ValueError("there is nothing to view: give one or more results, traces or files")
    searches: list[Events] = []
    trouble: list[str] = []
    for each in recorded:
        if isinstance(each, (str, Path)):
            reading = read(each)
            searches += reading.of(reading.labels[0])
            trouble += reading.trouble
        else:
            searches += split(_events(each))
    for said in trouble:
        warnings.warn(said, stacklevel=2)
    return Page(render(*searches, title=title, trouble=trouble), searches, tuple(trouble))


def _events(recorded: Result | Trace | Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    trace = recorded.trace if isinstance(recorded, Result) else recorded
    if trace is None:
        raise ValueError("this result has no trace; decode with trace=True")
    if not isinstance(trace, Trace):
        return trace
    if not trace.events:
        raise ValueError("this trace has no events: nothing was searched yet, or it wrote them to a file; view that file")
    return trace.events
