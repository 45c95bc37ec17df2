"""Runs the commands of docs/results.md and writes their output into the page.

python docs/figures/results.py            every command that a `<!-- printed -->` follows, and every plot
python docs/figures/results.py results    only commands that contain this word

Rows that are already in build/ are not measured again: with them it takes minutes, without them hours on a CPU. Commands run in
the repository's root, as the page shows them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from bestfirst.cli import run as run_command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
PRINTED = re.compile(
    r"(?P<head>```bash\n(?P<command>[^`]*?)```\n\n<!-- printed -->\n)(?P<output>.*?)(?P<end><!-- end -->)", re.DOTALL
)
DRAWN = re.compile(r"```bash\n(?P<command>bestfirst bench plot [^`]*?)```\n\n!\[")


def run(command: str) -> str:
    """The output of a command, which runs in this process, where its imports are loaded."""
    print(command.strip(), file=sys.stderr, flush=True)
    name, *arguments = shlex.split(command.replace("\\\n", " "))
    with redirect_stdout(StringIO()) as printed:
        code = run_command(arguments)
    if name != "bestfirst" or code != 0:
        sys.exit(f"failed: {command}")
    return printed.getvalue()


def without_repeats(printed: str, seen: set[str]) -> str:
    """Drop explanations that the page already has. Titles, tables and signatures stay."""
    kept = []
    for paragraph in printed.strip().split("\n\n"):
        if paragraph.startswith(("**", "| ", "BLEU:", "chrF:")) or paragraph not in seen:
            kept.append(paragraph)
        seen.add(paragraph)
    return "\n\n".join(kept)


def main() -> None:
    os.chdir(ROOT)
    selected = sys.argv[1] if len(sys.argv) > 1 else ""
    seen: set[str] = set()
    page = PAGE.read_text(encoding="utf-8")
    at = 0
    while match := PRINTED.search(page, at):
        output = run(match["command"]) if selected in match["command"] else match["output"]
        filled = f"{match['head']}\n{without_repeats(output, seen)}\n\n{match['end']}"
        page = page[: match.start()] + filled + page[match.end() :]
        at = match.start() + len(filled)
        PAGE.write_text(page, encoding="utf-8")  # kept if a later command fails
    for match in DRAWN.finditer(page):
        if selected in match["command"]:
            run(match["command"])


if __name__ == "__main__":
    main()
