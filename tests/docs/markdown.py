"""Reads the code blocks of a Markdown page, and the comments that say how to treat them.

<!-- not run: REASON -->      before a block: why it is not executed
<!-- continues -->            before a Python block: it runs after the Python block before it
<!-- output -->               before a text block: exactly what the block before it prints
<!-- output: times vary -->   likewise, except for times: numbers with one decimal
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"(?:<!-- (?P<comment>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)|(?:src|href|srcset)=\"(?!https?:|#)([^\"#]+)")
TIME = re.compile(r"(?<![\d.])\d+\.\d(?!\d)")


@dataclass
class Block:
    """A fenced block that is run, or has a reason not to be."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None = None
    output: str | None = None
    times_vary: bool = False

    def prints(self, output: str) -> bool:
        """Whether this output equals the one that the page shows."""
        assert self.output is not None
        return self._normalised(output) == self._normalised(self.output)

    def _normalised(self, text: str) -> str:
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        if self.times_vary:  # and with them the width of columns and rules
            lines = re.sub(r"[ ─━-]+", " ", TIME.sub("#", lines))
        return lines


def blocks(page: Path) -> list[Block]:
    """The page's bash and Python blocks; blocks of other languages count only as the output of the block before."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        comment, language, code = match["comment"] or "", match["language"], match["code"]
        line = text.count("\n", 0, match.start("language")) + 1
        if language in ("bash", "python"):
            block = Block(page, line, language, code)
            if comment.startswith("not run: "):
                block.not_run = comment.removeprefix("not run: ")
            elif comment == "continues":
                block.code = next(b.code for b in reversed(found) if b.language == "python") + code
            found.append(block)
        elif comment.startswith("output"):
            found[-1].output = code
            found[-1].times_vary = comment == "output: times vary"
    return found


def other_shell_blocks(page: Path) -> list[str]:
    """Languages of shell and Python blocks that would not be run, since they are not called bash or python."""
    languages = [match["language"] for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [language for language in languages if language in ("sh", "shell", "console", "py")]


def links(page: Path) -> list[str]:
    """Relative links and pictures."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [a or b for a, b in LINK.findall(prose)]
