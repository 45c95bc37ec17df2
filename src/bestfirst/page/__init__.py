"""The page that replays a search in a browser: one HTML file that needs no network, made from recorded traces.

    results = [bestfirst.decode(model, [text], strategy=name, trace=True)[0] for name in ("best-first", "beam")]
    bestfirst.view(*results).save("page.html")          # or leave the page as a notebook cell's value

A search is a list of events, as `Trace.events` holds them: plain JSON, documented in `bestfirst.search.trace`.

    view(*recorded) -> Page     from results (decoded with `trace=True`), traces, lists of events, or the path of a JSONL file
    render(*searches) -> str    the whole page, from lists of events
    component() -> str          a <style> and a <script>, for a page of your own

JavaScript in a page that contains the component:

    const shown = bestfirst.show(element, [events, events], {title, problems});     // one or more searches of one input
    shown.step(12);                                     // after the twelfth pop; also: play(), pause(), select(search, id)
    shown.remove();                                     // remove it, listeners included

`show` changes only its element: all style rules begin with `.bf`, colours are custom properties (`--bf-...`) that a page may set.
It follows the reader's light or dark theme unless an ancestor has `data-theme="light"` or `"dark"`. Texts are never parsed as
HTML, so markup in them is inert; `embed(value)` writes JSON that is safe inside a <script>.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..search import Result, Trace
from .recorded_tree import RecordedTree
from .trace_file import Events, read, split

__all__ = ["Page", "RecordedTree", "component", "embed", "read", "render", "view"]

Recorded = Result | Trace | str | Path | Iterable[Mapping[str, Any]]
STYLES = ("theme.css", "tree.css", "controls.css")
MODULES = ("dom.js", "recording.js", "why.js", "layout.js", "marks.js", "tree.js", "agenda.js", "details.js", "player.js",
           "summary.js", "show.js")  # fmt: skip
"""In the order in which they are concatenated: each may import from those before it."""
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@dataclass(frozen=True)
class Page:
    """A self-contained HTML page, which a notebook displays, its searches, and what is wrong with their files (`problems`)."""

    html: str = field(repr=False)
    searches: list[Events] = field(repr=False)
    problems: tuple[str, ...] = ()

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles and the notebook's do not affect each other."""
        frame = "width:100%;height:760px;border:0;border-radius:8px"
        return f'<iframe srcdoc="{escape(self.html)}" style="{frame}" title="bestfirst: a search"></iframe>'

    def __str__(self) -> str:
        return self.html


def view(*recorded: Recorded, title: str | None = None) -> Page:
    """A page with one or more searches of one input, side by side.

        fast, beam = (bestfirst.decode(model, [text], strategy=s, trace=True)[0] for s in ("best-first", "beam"))
        bestfirst.view(fast, beam).save("page.html")

    Each argument is a result that was decoded with `trace=True`, a `Trace`, its events, or the path of a JSONL file, of which the
    first input is shown. A damaged file or one of another version is shown as far as it can be read, with a warning. Raises
    ValueError if there is nothing to show, OSError if a file cannot be opened.
    """
    if not recorded:
        raise ValueError("there is nothing to view: give one or more results, traces or files")
    searches: list[Events] = []
    problems: list[str] = []
    for each in recorded:
        if isinstance(each, (str, Path)):
            by_input, found = read(each)
            searches += next(iter(by_input.values()))
            problems += found
        else:
            searches += split(_events(each))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return Page(render(*searches, title=title, problems=problems), searches, tuple(problems))


def _events(recorded: Result | Trace | Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    trace = recorded.trace if isinstance(recorded, Result) else recorded
    if trace is None:
        raise ValueError("this result has no trace; decode with trace=True")
    if not isinstance(trace, Trace):
        return trace
    if not trace.events:
        raise ValueError("this trace has no events: nothing was searched yet")
    return trace.events


def render(*searches: Iterable[Mapping[str, Any]], title: str | None = None, problems: Iterable[str] = ()) -> str:
    """The HTML of a page with one or more searches of one input, each a list of events. `title`: by default the input's text;
    `problems`: sentences to show at the top."""
    recorded = [list(events) for events in searches]
    if title is None:
        title = next((str(e["source"]) for events in recorded for e in events if e["event"] == "begin" and e.get("source")), "")
    shown = f"{title[:80]}…" if len(title) > 80 else title
    parts = {
        "title": escape(shown + " · bestfirst" if shown else "bestfirst"),
        "component": component(),
        "data": embed({"searches": recorded, "title": title, "problems": list(problems)}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


@cache
def component() -> str:
    """What another page needs to show searches: a <style>, and a <script> that defines `bestfirst.show`."""
    style = "\n".join(_asset(name) for name in STYLES)
    modules = "\n".join(_inlined(_asset(name)) for name in MODULES)
    return f'<style>\n{style}</style>\n<script>\n(() => {{\n"use strict";\n{modules}}})();\n</script>'


def embed(value: Any) -> str:
    """JSON that is safe inside a <script>, whatever its strings contain. Infinities and NaN become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda constant: None)
    return json.dumps(finite, ensure_ascii=False, separators=(",", ":")).translate(UNSAFE)


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _inlined(module: str) -> str:
    """A module without its imports and exports: concatenated in one script, all modules share one scope."""
    return re.sub(r"^export ", "", re.sub(r"^import [^;]*;\n", "", module, flags=re.MULTILINE), flags=re.MULTILINE)
