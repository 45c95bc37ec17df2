"""The real command: as a process of its own, or, where that would only cost time, in this one."""

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
COLOURED = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")  # with one of these, help is in colours wherever it is written to
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in COLOURED}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "LC_ALL": "C", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
GERMAN = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


def run(*arguments: object, stdin: bytes = b"", stdout: object = PIPE, command: list[str] = COMMAND) -> CompletedProcess[bytes]:
    """Run the command to its end."""
    line = [*command, *map(str, arguments)]
    return subprocess.run(line, input=stdin, stdout=stdout, stderr=PIPE, env=ENVIRONMENT, timeout=1200, check=False)


@contextmanager
def running(*arguments: object) -> Iterator[Popen[bytes]]:
    """The command while it runs, with pipes at both ends."""
    line = [*COMMAND, *map(str, arguments)]
    # Whoever runs the tests in the background may have made SIGINT ignored, and children inherit that.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT, **heard) as process:
        try:
            yield process
        finally:
            process.kill()


def only_line(stderr: bytes | str) -> str:
    """What the command said, which must be one line and no traceback."""
    text = stderr if isinstance(stderr, str) else stderr.decode()
    assert text.startswith("bestfirst: "), text
    assert text.endswith("\n"), text
    assert text.count("\n") == 1, text
    return text.removeprefix("bestfirst: ").strip()
