"""Corpus jobs of every format, small enough to run a thousand times."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from .forks import GERMAN, command

LINES, SHARD = 8, 2  # few, and short: the files are under test, not the model
OPTIONS: dict[str, list[str]] = {
    "out.txt": [],
    "out.txt.gz": [],
    "out.json": ["--json"],
    "out.jsonl": [],
    "out.parquet": [],
    "nbest.txt": ["--nbest", "2"],
}
"""Further options of the command, by the name of the output."""


@dataclass
class Job:
    """A command from file to file, its input, and its expected output."""

    name: str
    folder: Path  # where it ran undisturbed
    seconds: float
    expected: bytes = field(repr=False)

    @property
    def source(self) -> str:
        return "text.jsonl" if self.name.endswith(("jsonl", "parquet")) else "text.gz" if self.name.endswith("gz") else "text"

    def arguments(self, folder: Path) -> list[object]:
        return [
            "translate",
            folder / self.source,
            "-o",
            folder / self.name,
            "--beam",
            2,
            "--shard-lines",
            SHARD,
            *OPTIONS[self.name],
        ]

    def begin(self, folder: Path) -> None:
        """Make a folder that contains the input alone."""
        folder.mkdir()
        shutil.copy(self.folder / self.source, folder)

    def right(self, folder: Path) -> bool:
        """Whether the output exists and has exactly the expected bytes."""
        path = folder / self.name
        return path.exists() and content(path) == self.expected


def content(path: Path) -> bytes:
    """The bytes of a file; those of a .gz file are decompressed, since its header may hold the time."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def jobs(folder: Path, rng: random.Random) -> list[Job]:
    """A job of every format, run once for its expected output."""
    every = sorted(GERMAN.read_text(encoding="utf-8").splitlines(), key=len)[:100]
    lines = [*rng.sample(every, LINES - 2), "", "Haus " * 600]  # one is empty, one cannot be translated
    rng.shuffle(lines)
    out = []
    for name in OPTIONS:
        where = folder / f"whole-{name}"
        job = Job(name, where, 0.0, b"")
        where.mkdir()
        text = "".join(f"{line}\n" for line in lines)
        records = "".join(
            json.dumps({"text": line, "n": i} | ({"more": [i]} if i % 7 == 3 else {})) + "\n" for i, line in enumerate(lines)
        )
        source = records if job.source.endswith("jsonl") else text
        (where / job.source).write_bytes(gzip.compress(source.encode()) if job.source.endswith("gz") else source.encode())
        begun = time.monotonic()
        ended = command(*job.arguments(where))
        job.seconds = time.monotonic() - begun
        assert ended.code == 1, ended  # because of the one line
        job.expected = content(where / name)
        out.append(job)
    return out
