"""Store: where a job's shards are kept until all are there, and the one place that decides whether to go on, begin or refuse.

Beside the output OUT:

    OUT.manifest.json    what the job is; from its begin on, and when it is complete what came of it
    OUT.parts/           shards, each written aside, brought to the disk and then named; a journal of those that are done
    OUT                  appears when all shards are there, whole
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ..settings import Budget
from . import durable
from .errors import Stopped, Unusable, reason
from .manifest import Complete, Manifest
from .tally import Tally
from .target import Target
from .worker import Finished

State = Literal["new", "begun", "complete"]
TROUBLES = 1000  # that a manifest names


@dataclass(frozen=True)
class Entry:
    """A shard in the journal."""

    shard: int
    size: int
    sha256: str
    tally: Tally
    troubles: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, line: bytes) -> Entry:
        fields = json.loads(line)
        troubles = tuple((number, why) for number, why in fields["troubles"])
        return cls(fields["shard"], fields["size"], fields["sha256"], Tally(**fields["tally"]), troubles)

    def line(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"


class Store:
    """The output of one job, held by one process at a time."""

    def __init__(self, output: str, job: Mapping[str, Any], target: Target) -> None:
        self.name = output
        self.output = Path(os.path.realpath(output))
        self.parts = Path(f"{self.output}.parts")
        self.manifest_path = Path(f"{self.output}.manifest.json")
        self.target = target
        self.manifest = Manifest(json.loads(json.dumps(job)))
        self.done: set[int] = set()
        self.tally = Tally()  # of all shards that are done
        self.troubles: list[tuple[int, str]] = []  # the first lines that failed
        self._lock: int | None = None

    # -- one process at a time -------------------------------------------------------------------------------------------

    def __enter__(self) -> Store:
        import fcntl

        try:
            if self.output.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.parts.mkdir(exist_ok=True)
            self._lock = os.open(self.parts / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Unusable(f"cannot write to {self.name!r}: {reason(error)}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise Unusable(f"another process is at work on {self.name!r}; wait for it, or name another output") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.parts.is_dir() and {path.name for path in self.parts.iterdir()} <= {"lock"}:
            shutil.rmtree(self.parts, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    # -- what is there already -------------------------------------------------------------------------------------------

    def state(self, overwrite: bool = False) -> State:
        """Whether this job is new, begun or complete. Raises `Unusable` where the output is another's, unless `overwrite`."""
        there = Manifest.read(self.manifest_path) if not overwrite else self._readable()
        if there is None:
            if not overwrite and self.output.exists() and self.output.stat().st_size:
                raise Unusable(
                    f"{self.name!r} exists, and is of another job; replace it with --overwrite, or name another output"
                )
            return "new"
        if there.job != self.manifest.job:
            if not overwrite:
                how = there.differences(self.manifest.job)
                raise Unusable(f"{self.name!r} is of another job ({how}); replace it with --overwrite, or name another output")
            return "new"
        if there.complete is None:
            self.manifest = there
            for entry in self._intact():
                self._count(entry)
            return "begun"
        if overwrite or not self.output.exists():
            return "new"
        if (self.output.stat().st_size, durable.digest(self.output)) != (there.complete.size, there.complete.sha256):
            raise Unusable(f"{self.name!r} was changed after its job; replace it with --overwrite, or name another output")
        self.manifest = there
        self._clear()  # what may be left of it
        return "complete"

    def _readable(self) -> Manifest | None:
        try:
            return Manifest.read(self.manifest_path)
        except Unusable:
            return None

    def _intact(self) -> Iterator[Entry]:
        """The shards in the journal whose files are as they were written; the journal's last line may be torn."""
        seen: set[int] = set()
        journal = self.parts / "journal.jsonl"
        if not journal.exists():
            return
        with open(journal, "rb") as lines:
            for line in lines:
                try:
                    entry = Entry.read(line)
                    path = self.path(entry.shard)
                    intact = path.stat().st_size == entry.size and durable.digest(path) == entry.sha256
                except (ValueError, KeyError, TypeError, OSError):
                    continue
                if intact and entry.shard not in seen:
                    seen.add(entry.shard)
                    yield entry

    def _count(self, entry: Entry) -> None:
        self.done.add(entry.shard)
        self.tally.include(entry.tally)
        self.troubles = sorted([*self.troubles, *entry.troubles])[:TROUBLES]

    # -- the work --------------------------------------------------------------------------------------------------------

    def path(self, shard: int) -> Path:
        return self.parts / f"{shard:08d}"

    @property
    def row_budget(self) -> Budget | None:
        return self.manifest.row_budget

    def begin(self, budget: Budget | None) -> None:
        """Start or go on: what is no intact shard of this job goes. An old output stays until the new one takes its place."""
        journal = self.parts / "journal.jsonl"
        with self._writing():
            with durable.replacing(journal) as out:
                for entry in self._intact() if self.done else ():
                    out.write(entry.line())
            self._clear(journal, *map(self.path, self.done))
            self.manifest = Manifest(self.manifest.job, budget)
            self.manifest.write(self.manifest_path)

    def _clear(self, *kept: Path) -> None:
        stays = {*kept, self.parts / "lock"}
        for path in self.parts.iterdir():
            if path not in stays:
                path.unlink()

    def commit(self, finished: Finished) -> None:
        """Keep a shard: when this returns, it outlasts whatever happens."""
        size, digest = len(finished.data), sha256(finished.data).hexdigest()
        entry = Entry(finished.index, size, digest, finished.tally, tuple(finished.troubles))
        with self._writing():
            durable.write(self.path(finished.index), finished.data)
            durable.append(self.parts / "journal.jsonl", entry.line())
        self._count(entry)

    def finish(self) -> None:
        """All shards are there: make the output of them. Broken off, it can be done again."""
        pieces = [str(self.path(shard)) for shard in sorted(self.done)]
        with self._writing():
            with durable.replacing(self.parts / "output") as out:
                self.target.join(pieces, out)
            size, digest = (self.parts / "output").stat().st_size, durable.digest(self.parts / "output")
            os.replace(self.parts / "output", self.output)
            durable.sync_folder(self.output.parent)
            self.manifest = self.manifest.completed(Complete(size, digest, self.tally, tuple(self.troubles)))
            self.manifest.write(self.manifest_path)
            shutil.rmtree(self.parts)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"{self.tally.lines} lines are kept: the same command goes on from there"
            raise Stopped(f"cannot write to {error.filename or self.name!r}: {reason(error)}; {kept}") from error
