"""The command in the process of the tests, which has torch loaded already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bestfirst.cli.app import run


class Ended(NamedTuple):
    """How a command ended: its exit code, what it wrote to its output file, what it said."""

    code: int
    out: str
    said: str


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`call("translate", "--beam", 3, text="Ja.\\n")`: run the command on a file, into a file."""

    def call(command: str, *arguments: object, text: bytes | str | None = None) -> Ended:
        source, out = tmp_path / "text", tmp_path / "out"
        if text is not None:
            source.write_bytes(text.encode() if isinstance(text, str) else text)
            arguments = (source, *arguments)
        code = run([command, *map(str, arguments), "-o", str(out)])
        return Ended(code, out.read_text(encoding="utf-8") if out.exists() else "", capsys.readouterr().err)

    return call
