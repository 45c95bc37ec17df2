"""Docstrings as they read in an editor become Markdown: columns of a name and what it says are lists, code is code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

FIELD = re.compile(r"^(\S+)  +(\S.*)$")


class Columns(Extension):
    """`beam   hypotheses of each length to keep`, with lines that go on below, is an entry of a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    out: list[str] = []
    width = 0  # where the second column begins, inside a list
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if (found := FIELD.match(line)) is not None and not line.startswith(" "):
            out += ["", f"- `{found[1]}`: {found[2]}"] if not width else [f"- `{found[1]}`: {found[2]}"]
            width = len(line) - len(found[2])
        elif width and indent >= width:
            out[-1] += " " + line.strip()
        else:
            if width and line.strip():
                out.append("")
            width = 0
            out.append(line)
    return "\n".join(out)
