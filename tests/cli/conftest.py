"""Runs the command in the process of the tests, where torch is loaded already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bestfirst.cli import run


class Ended(NamedTuple):
    """Exit code of a command, content of its output file, stderr without the summary of a job, and that summary."""

    code: int
    out: str
    stderr: str
    summary: str = ""


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`call("translate", "--beam", 3, text="Ja.\\n")`: run the command on a file, into a file."""

    def call(command: str, *arguments: object, text: bytes | str | None = None) -> Ended:
        source, out = tmp_path / "text", tmp_path / "out"
        for old in tmp_path.glob("out*"):
            old.unlink()
        if text is not None:
            source.write_bytes(text.encode() if isinstance(text, str) else text)
            arguments = (source, *arguments)
        code = run([command, *map(str, arguments), "-o", str(out)])
        stderr, summary = capsys.readouterr().err, ""
        if stderr.endswith(f"; written to '{out}'\n"):
            *lines, summary = stderr.splitlines(keepends=True)
            stderr = "".join(lines)
        return Ended(code, out.read_text(encoding="utf-8") if out.exists() else "", stderr, summary)

    return call
