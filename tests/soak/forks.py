"""Runs the real command in a process forked from this one, in which everything is loaded: a thousand runs take minutes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

GERMAN = Path(__file__).parents[1] / "data" / "tatoeba-200.de"


class Ended(NamedTuple):
    """How a command ended: its exit code, below 0 the signal that killed it, and its standard error."""

    code: int
    errors: str

    @property
    def clean(self) -> bool:
        """Whether there was no crash and no traceback, and after a failure a line that says why."""
        lines = [line for line in self.errors.splitlines() if not line.startswith("bestfirst: warning: ")]
        explained = self.code == 0 or any(line.startswith("bestfirst: ") for line in lines)
        return self.code in (0, 1, 2) and "Traceback" not in self.errors and explained


@cache
def prepare() -> None:
    """Load everything that commands need, once; the embedded model is loaded once for each way of loading it."""
    import pyarrow.parquet  # noqa: F401
    import typer.main

    from bestfirst.cli import run
    from bestfirst.cli.model_choice import ModelChoice
    from bestfirst.models.folder import embedded_folder
    from bestfirst.models.transformers import load_transformers

    loaded, load = {}, ModelChoice.load

    def load_once(self, decoding):
        if self.model is not None:
            return load(self, decoding)
        if self not in loaded:
            loaded[self] = load(self, decoding)[0]
        return loaded[self], decoding

    ModelChoice.load = load_once
    typer.main.get_command = cache(typer.main.get_command)
    with tempfile.TemporaryDirectory() as folder:  # loads what a command imports when it is first called
        text = Path(folder, "text")
        text.write_text("Guten Morgen!\n", encoding="utf-8")
        assert run(["translate", str(text), "-o", f"{folder}/out", "--beam", "2"]) == 0
    load_transformers(embedded_folder())  # imports the modules that a damaged model folder needs


def command(*arguments: object, before: Callable[[], None] | None = None, kill_after: float | None = None) -> Ended:
    """Run it to its end, or kill it after this many seconds. `before` is called in the new process."""
    prepare()
    with tempfile.TemporaryFile() as stderr_file:
        child = os.fork()
        if child == 0:
            os.dup2(stderr_file.fileno(), 2)
            code = 70
            try:
                if before is not None:
                    before()
                from bestfirst.cli import run

                code = run(list(map(str, arguments)))
            except BaseException:
                import traceback

                os.write(2, traceback.format_exc().encode(errors="replace"))
            finally:
                sys.stderr.flush()
                os._exit(code)
        status = _wait(child, kill_after)
        stderr_file.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), stderr_file.read().decode(errors="replace"))


def _wait(child: int, kill_after: float | None) -> int:
    if kill_after is None:
        return os.waitpid(child, 0)[1]
    end = time.monotonic() + kill_after
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]
