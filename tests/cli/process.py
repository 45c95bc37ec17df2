"""Runs the real command as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen

COMMAND = [sys.executable, "-m", "bestfirst"]
COLOURED = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")  # any of these colours the help even outside a terminal
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in COLOURED}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "LC_ALL": "C", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
GERMAN = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def run(*arguments: object, stdin: bytes = b"", stdout: object = PIPE, command: list[str] = COMMAND) -> CompletedProcess[bytes]:
    """Run the command to its end."""
    line = [*command, *map(str, arguments)]
    return subprocess.run(line, input=stdin, stdout=stdout, stderr=PIPE, env=ENVIRONMENT, timeout=1200, check=False)


@contextmanager
def running(*arguments: object) -> Iterator[Popen[bytes]]:
    """The command while it runs, with pipes for its standard streams."""
    line = [*COMMAND, *map(str, arguments)]
    # Tests that a shell runs in the background ignore SIGINT, and child processes inherit that.
    options = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def only_line(stderr: bytes | str) -> str:
    """The message on stderr, which must be one line and no traceback."""
    text = stderr if isinstance(stderr, str) else stderr.decode()
    assert text.startswith("bestfirst: "), text
    assert text.endswith("\n"), text
    assert text.count("\n") == 1, text
    return text.removeprefix("bestfirst: ").strip()
