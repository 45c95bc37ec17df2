"""The command in the process of the tests, which has torch loaded already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bestfirst.cli import run


class Ended(NamedTuple):
    """How a command ended: its exit code, what it wrote to its output file, what it said, and the summary of a job."""

    code: int
    out: str
    said: str
    summary: str = ""


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`call("translate", "--beam", 3, text="Ja.\\n")`: run the command on a file, into a file."""

    def call(command: str, *arguments: object, text: bytes | str | None = None) -> Ended:
        source, out = tmp_path / "text", tmp_path / "out"
        for left in tmp_path.glob("out*"):
            left.unlink()
        if text is not None:
            source.write_bytes(text.encode() if isinstance(text, str) else text)
            arguments = (source, *arguments)
        code = run([command, *map(str, arguments), "-o", str(out)])
        said, summary = capsys.readouterr().err, ""
        if said.endswith(f"; written to '{out}'\n"):
            *lines, summary = said.splitlines(keepends=True)
            said = "".join(lines)
        return Ended(code, out.read_text(encoding="utf-8") if out.exists() else "", said, summary)

    return call
