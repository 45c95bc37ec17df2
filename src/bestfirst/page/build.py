"""Building the page: the template, its style and its modules are files of this package, put into one when it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

STYLES = ("theme.css", "tree.css", "controls.css")
MODULES = ("dom.js", "recording.js", "why.js", "layout.js", "marks.js", "tree.js", "agenda.js", "details.js", "player.js",
           "summary.js", "show.js")  # fmt: skip
"""In the order of their imports: each may use what those before it export."""
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def render(*searches: Iterable[Mapping[str, Any]], title: str | None = None, trouble: Iterable[str] = ()) -> str:
    """The whole page of one or more searches of one input, each a list of events; `trouble` is told at the top."""
    told = [list(events) for events in searches]
    if title is None:
        title = next((str(e["source"]) for events in told for e in events if e["event"] == "begin" and e.get("source")), "")
    shown = f"{title[:80]}…" if len(title) > 80 else title
    parts = {
        "title": escape(shown + " · bestfirst" if shown else "bestfirst"),
        "component": component(),
        "data": embed({"searches": told, "title": title, "trouble": list(trouble)}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


@cache
def component() -> str:
    """What another page needs to show searches: a <style>, and a <script> that defines `bestfirst.show`."""
    style = "\n".join(_asset(name) for name in STYLES)
    modules = "\n".join(_inlined(_asset(name)) for name in MODULES)
    return f'<style>\n{style}</style>\n<script>\n(() => {{\n"use strict";\n{modules}}})();\n</script>'


def embed(value: Any) -> str:
    """JSON that may stand inside a <script>, whatever texts are in it. Numbers that JSON has no word for become null."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(UNSAFE)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _inlined(module: str) -> str:
    """A module as part of one script: all of them share their names there."""
    return re.sub(r"^export ", "", re.sub(r"^import [^;]*;\n", "", module, flags=re.MULTILINE), flags=re.MULTILINE)
