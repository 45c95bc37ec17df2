"""Checkpoint: where shards are kept until all are there, and the one place that decides whether to go on, begin or refuse.

Beside the output OUT:

    OUT.manifest.json    what the job is; from its begin on, and when it is complete what came of it
    OUT.parts/           shards, each written aside, brought to the disk and then named; a journal of those that are done
    OUT                  appears when all shards are there, whole

Of other files nothing is changed or removed, wherever they lie.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ..durable_files import Journal, digest, lasting, sync_folder, write
from ..errors import Conflict, Stopped, Unusable, reason
from ..settings import Budget
from .formats import Input, Survey, Target
from .manifest import WRONG, Complete, Entry, Manifest
from .records import Shard
from .worker import SHARD_LINES, ShardResult, Tally, Work

State = Literal["new", "begun", "complete"]
OWN = re.compile(r"(\d{8,}|output)(\.tmp)?")  # what we call files in OUT.parts, beside the journal
NAMED = 1000  # failures that a manifest names
TRIES = 3  # to put the output together of shards that are as they were written


class DamagedShard(Exception):
    """A shard is not as it was written."""


class Checkpoint:
    """The output of one job, held by one process at a time."""

    def __init__(self, output: str, job: Mapping[str, Any], target: Target) -> None:
        self.name = output
        self.output = Path(os.path.realpath(output))
        self.parts = Path(f"{self.output}.parts")
        self.manifest_path = Path(f"{self.output}.manifest.json")
        self.target = target
        self.manifest = Manifest(json.loads(json.dumps(job)))
        self.done: dict[int, Entry] = {}
        self.tally = Tally()  # of all shards that are done

    def __enter__(self) -> Checkpoint:
        try:
            if self.output.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.parts.mkdir(exist_ok=True)
            self.journal = Journal(self.parts / "journal.jsonl")
        except BlockingIOError:
            raise Unusable(f"another process is at work on {self.name!r}; wait for it, or name another output") from None
        except OSError as error:
            raise Unusable(f"cannot write to {self.name!r}: {reason(error)}") from error
        return self

    def __exit__(self, *error: object) -> None:
        if self.journal.empty:
            self.journal.path.unlink(missing_ok=True)
            with suppress(OSError):  # somebody else's files are in it
                self.parts.rmdir()
        self.journal.close()

    def owns(self, path: str) -> bool:
        """Whether this is one of the files that the job writes."""
        there = Path(os.path.realpath(path))
        linked = self.output.exists() and self.output.samefile(there)
        return linked or there in (self.output, self.manifest_path) or there.parent == self.parts

    # -- what is there already -------------------------------------------------------------------------------------------

    def state(self, overwrite: bool = False, retry_failed: bool = False) -> State:
        """Whether this job is new, begun or complete; to be complete for `retry_failed`, nothing may have failed.

        Raises `Conflict` where the output is another's, unless `overwrite`, and `Unusable` where others' files are in the way.
        """
        there, unreadable = self._read_manifest()
        entries = list(self._entries())
        if there is None and not entries and (self._own_files() or not self.journal.empty):
            raise Unusable(f"{str(self.parts)!r} has files of no job that is known here; move them, or name another output")
        ours = [entry for entry in entries if entry.job == self.manifest.signature and not (retry_failed and entry.failures)]
        if there is None and not ours and not overwrite:
            if unreadable is not None:
                raise unreadable
            if entries or (self.output.exists() and self.output.stat().st_size):
                raise Conflict(f"{self.name!r} exists, and is of another job")
        if there is not None and there.job != self.manifest.job:
            if not overwrite:
                raise Conflict(f"{self.name!r} is of another job ({there.differences(self.manifest.job)})")
            return "new"
        if there is not None and there.complete is not None:
            if overwrite or not self.output.exists():
                return "new"
            return self._complete(there, there.complete, retry_failed)
        self.manifest = there or self.manifest
        for entry in {entry.shard: entry for entry in ours}.values():
            if self._data(entry) is not None:
                self._count(entry)
        return "begun" if there or ours else "new"

    def _read_manifest(self) -> tuple[Manifest | None, Unusable | None]:
        try:
            return Manifest.read(self.manifest_path), None
        except Unusable as error:
            return None, error

    def _complete(self, there: Manifest, complete: Complete, retry_failed: bool) -> State:
        """The job was done. Its shards that have failed lines may be done again; the others come from its output."""
        if (self.output.stat().st_size, digest(self.output)) != (complete.size, complete.sha256):
            raise Conflict(f"{self.name!r} was changed after its job")
        with self._writing():
            self._clear()  # what may be left of it
            self.manifest = there
            if not retry_failed or not complete.shards:
                return "complete"
            shards = complete.shards
            pieces = self.target.split(self.output, [entry.size for entry in shards], max(1, shards[0].tally.lines))
            for entry, data in zip(shards, pieces, strict=False):
                found = sha256(data).hexdigest()
                if not entry.failures and (found == entry.sha256 or self.target.form == "parquet"):
                    self._keep(replace(entry, size=len(data), sha256=found), data)
            return "begun"

    def _entries(self) -> Iterator[Entry]:
        """The shards in the journal, of whatever job; a line that is damaged is none."""
        for line in self.journal.lines():
            with suppress(*WRONG):
                yield Entry.load(json.loads(line))

    def _data(self, entry: Entry) -> bytes | None:
        """What was kept of a shard; None where it is not as it was written."""
        with suppress(OSError):
            data = self._path(entry.shard).read_bytes()
            if len(data) == entry.size and sha256(data).hexdigest() == entry.sha256:
                return data
        return None

    def _count(self, entry: Entry) -> None:
        self._forget(entry.shard)
        self.done[entry.shard] = entry
        self.tally.include(entry.tally)

    def _forget(self, shard: int) -> None:
        """It has to be done again."""
        if shard in self.done:
            self.tally.include(self.done.pop(shard).tally, -1)

    # -- files -----------------------------------------------------------------------------------------------------------

    def _path(self, shard: int) -> Path:
        return self.parts / f"{shard:08d}"

    def _own_files(self) -> list[Path]:
        return sorted(path for path in self.parts.iterdir() if OWN.fullmatch(path.name))

    def _clear(self) -> None:
        """Take away what a job of ours has left in OUT.parts. The journal, which tells that, goes last."""
        for path in self._own_files():
            path.unlink()
        if not self.journal.empty:
            self.journal.clear()

    def _set_aside(self) -> None:
        """A file that has the manifest's name, and is none, is kept under another."""
        if self._read_manifest()[1] is not None:
            names = (Path(f"{self.manifest_path}.{number}") for number in count(1))
            os.rename(self.manifest_path, next(path for path in names if not path.exists()))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Stopped(f"cannot write to {error.filename or self.name!r}: {reason(error)}") from error

    # -- the work --------------------------------------------------------------------------------------------------------

    def begin(self, budget: Budget | None) -> None:
        """Start or go on. An old output stays until the new one takes its place."""
        with self._writing():
            if not self.done:
                self._clear()
            self._set_aside()
            self.manifest = Manifest(self.manifest.job, budget)
            self.manifest.write(self.manifest_path)

    def run(
        self,
        source: Input,
        survey: Survey,
        work: Work,
        shard_lines: int = SHARD_LINES,
        notice: Callable[[ShardResult], None] = lambda result: None,
    ) -> None:
        """In one pass over the input do what is missing, keep every shard as soon as it is done, and make the output of them."""
        for _ in range(TRIES):
            for result in work(self._missing(source.shards(shard_lines, survey))):
                self.commit(result)
                notice(result)
            if self._finish():
                return
        raise Stopped(f"what is written to {str(self.parts)!r} does not stay as it was written; look at that disk")

    def _missing(self, shards: Iterator[Shard]) -> Iterator[Shard]:
        for shard in shards:
            entry = self.done.get(shard.index)
            if entry is None or entry.source != shard.digest or entry.tally.lines != len(shard.records):
                self._forget(shard.index)
                yield shard

    def commit(self, result: ShardResult) -> None:
        """Keep a shard: when this returns, it outlasts whatever happens."""
        size, found = len(result.data), sha256(result.data).hexdigest()
        entry = Entry(self.manifest.signature, result.index, size, found, result.source, result.tally, result.failures)
        with self._writing():
            self._keep(entry, result.data)

    def _keep(self, entry: Entry, data: bytes) -> None:
        write(self._path(entry.shard), data)
        self.journal.append(entry.line())
        self._count(entry)

    def _pieces(self) -> Iterator[bytes]:
        for _, entry in sorted(self.done.items()):
            if (data := self._data(entry)) is None:
                raise DamagedShard
            yield data

    def _finish(self) -> bool:
        """All shards are there: make the output of them. Broken off, it can be done again. False if some are damaged."""
        made = self.parts / "output"
        with self._writing():
            try:
                with lasting(made) as out:
                    self.target.join(self._pieces, out)
            except DamagedShard:
                for shard in [shard for shard, entry in self.done.items() if self._data(entry) is None]:
                    self._forget(shard)
                return False
            size, found = made.stat().st_size, digest(made)
            os.replace(made, self.output)
            sync_folder(self.output.parent)
            entries = [entry for _, entry in sorted(self.done.items())]
            failures = [failure for entry in entries for failure in entry.failures]
            complete = Complete(size, found, self.tally, tuple(failures[:NAMED]), tuple(entries if failures else ()))
            self.manifest = replace(self.manifest, complete=complete)
            self.manifest.write(self.manifest_path)
            self._clear()
        return True
