"""bench startup: the time of a new process until and after its first translation, part by part, compared with CTranslate2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from bestfirst.models.folder import embedded_folder

from .tables import Table

LINE = "Guten Morgen!"
SPLIT = {
    "Python itself": "pass",
    "and the command": "import bestfirst.cli",
    "and the model's files": "import bestfirst.cli, bestfirst; bestfirst.load()",
    "and its first output": f"import bestfirst.cli, bestfirst; bestfirst.decode(bestfirst.load(), [{LINE!r}])",
}
PEER = """
import ctranslate2, sentencepiece
spm = sentencepiece.SentencePieceProcessor({spm!r})
translator = ctranslate2.Translator({folder!r}, intra_threads=1)
found = translator.translate_batch([[*spm.encode({line!r}, out_type=str), "</s>"]], beam_size=5)
print(spm.decode(found[0].hypotheses[0]))
"""


class Start(NamedTuple):
    """The least seconds of a process from start to exit: wall time, and CPU time of the process."""

    name: str
    wall: float
    cpu: float


def startup(turns: int) -> Iterator[Start]:
    """Time the parts of a translation's start (each includes those before), whole commands, and CTranslate2."""
    for name, code in SPLIT.items():
        yield best(name, [sys.executable, "-c", code], turns)
    command = [sys.executable, "-m", "bestfirst"]
    yield best("bestfirst --version", [*command, "--version"], turns)
    yield best("bestfirst --help", [*command, "--help"], turns)
    yield best("bestfirst translate", [*command, "translate"], turns)
    if find_spec("ctranslate2") is not None:
        folder = Path(tempfile.mkdtemp(prefix="bestfirst-ct2-"))
        try:
            import ctranslate2

            ctranslate2.converters.TransformersConverter(embedded_folder()).convert(str(folder), force=True)
            code = PEER.format(spm=str(Path(embedded_folder(), "source.spm")), folder=str(folder), line=LINE)
            yield best("CTranslate2 and sentencepiece, five lines", [sys.executable, "-c", code], turns)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def best(name: str, command: list[str], turns: int) -> Start:
    """The least times of several turns, after a warm-up turn."""
    walls, cpus = [], []
    for _ in range(turns + 1):
        before, begun = os.times(), perf_counter()
        subprocess.run(command, input=f"{LINE}\n", capture_output=True, text=True, check=True)
        after = os.times()
        walls.append(perf_counter() - begun)
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return Start(name, min(walls[1:]), min(cpus[1:]))


def startup_table(starts: list[Start]) -> Table:
    """A table with a row for each process."""
    columns = {"process": "name", "time": "wall:.2f s", "computing": "cpu:.2f s"}
    return Table.of("A new process from its start to its end", starts, columns, left=("process",))
