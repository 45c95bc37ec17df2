"""`Checkpoint`: stores a job's decoded shards until the output can be assembled, and decides whether to begin, resume or refuse.

Files beside the output OUT:

    OUT.manifest.json    identifies the job from its start; after completion, also its result
    OUT.parts/           decoded shards, each written atomically, and a journal of them
    OUT                  the output, created atomically from all shards

No other file is ever changed or removed, wherever it is.
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

from ..durable_files import Journal, digest, sync_folder, synced_file, write_file
from ..errors import Conflict, Stopped, Unusable, reason
from ..settings import Budget
from .formats import Input, Survey, Target
from .manifest import MALFORMED, Complete, Entry, Manifest
from .records import Shard
from .worker import SHARD_LINES, ShardResult, Tally, Work

State = Literal["new", "begun", "complete"]
OWN_NAMES = re.compile(r"(\d{8,}|output)(\.tmp)?")  # names of our files in OUT.parts, besides the journal
MAX_FAILURES = 1000  # failures listed in a manifest
TRIES = 3  # to assemble the output from undamaged shards


class DamagedShard(Exception):
    """A stored shard does not match its digest in the journal."""


class Checkpoint:
    """The stored shards and the output of one job. A context manager that locks them for this process."""

    def __init__(self, output: str, job: Mapping[str, Any], target: Target) -> None:
        self.name = output
        self.output = Path(os.path.realpath(output))
        self.parts = Path(f"{self.output}.parts")
        self.manifest_path = Path(f"{self.output}.manifest.json")
        self.target = target
        self.manifest = Manifest(json.loads(json.dumps(job)))
        self.done: dict[int, Entry] = {}
        self.tally = Tally()  # sum over `done`

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
            with suppress(OSError):  # it contains files that are not ours
                self.parts.rmdir()
        self.journal.close()

    def owns(self, path: str) -> bool:
        """Whether the job writes this file, so that it cannot be an input."""
        target = Path(os.path.realpath(path))
        linked = self.output.exists() and self.output.samefile(target)
        return linked or target in (self.output, self.manifest_path) or target.parent == self.parts

    # -- state on disk -----------------------------------------------------------------------------------------------------

    def state(self, overwrite: bool = False, retry_failed: bool = False) -> State:
        """Whether this job is new, begun or complete; loads the stored shards of a begun one. With `retry_failed`, a complete job
        with failures counts as begun, and shards with failures as missing. Raises `Conflict` if the output is another job's,
        unless `overwrite`, and `Unusable` if foreign files are in the way."""
        stored, unreadable = self._read_manifest()
        entries = list(self._journal_entries())
        if stored is None and not entries and (self._own_files() or not self.journal.empty):
            raise Unusable(f"{str(self.parts)!r} has files of no job that is known here; move them, or name another output")
        ours = [entry for entry in entries if entry.job == self.manifest.signature and not (retry_failed and entry.failures)]
        if stored is None and not ours and not overwrite:
            if unreadable is not None:
                raise unreadable
            if entries or (self.output.exists() and self.output.stat().st_size):
                raise Conflict(f"{self.name!r} exists, and is of another job")
        if stored is not None and stored.job != self.manifest.job:
            if not overwrite:
                raise Conflict(f"{self.name!r} is of another job ({stored.differences(self.manifest.job)})")
            return "new"
        if stored is not None and stored.complete is not None:
            if overwrite or not self.output.exists():
                return "new"
            return self._reopen_complete(stored, stored.complete, retry_failed)
        self.manifest = stored or self.manifest
        for entry in {entry.shard: entry for entry in ours}.values():  # a shard's last entry counts
            if self._read_shard(entry) is not None:
                self._mark_done(entry)
        return "begun" if stored or ours else "new"

    def _read_manifest(self) -> tuple[Manifest | None, Unusable | None]:
        """The stored manifest, if any; or the error, if the file is not a manifest."""
        try:
            return Manifest.read(self.manifest_path), None
        except Unusable as error:
            return None, error

    def _reopen_complete(self, stored: Manifest, complete: Complete, retry_failed: bool) -> State:
        """The state of a job whose manifest says that it is complete. To retry failures, it becomes a begun job again: the shards
        without failures are cut out of the output and stored."""
        if (self.output.stat().st_size, digest(self.output)) != (complete.size, complete.sha256):
            raise Conflict(f"{self.name!r} was changed after its job")
        with self._reporting_write_errors():
            self._remove_own_files()  # left over if the job was killed after writing its manifest
            self.manifest = stored
            if not retry_failed or not complete.shards:
                return "complete"
            shards = complete.shards
            pieces = self.target.split(self.output, [entry.size for entry in shards], max(1, shards[0].tally.lines))
            for entry, data in zip(shards, pieces, strict=False):
                found = sha256(data).hexdigest()
                if not entry.failures and (found == entry.sha256 or self.target.form == "parquet"):
                    self._store(replace(entry, size=len(data), sha256=found), data)
            return "begun"

    def _journal_entries(self) -> Iterator[Entry]:
        """The entries in the journal, of any job; damaged lines are skipped."""
        for line in self.journal.lines():
            with suppress(*MALFORMED):
                yield Entry.load(json.loads(line))

    def _read_shard(self, entry: Entry) -> bytes | None:
        """The stored bytes of a shard; None if they are missing or do not match the entry's size and digest."""
        with suppress(OSError):
            data = self._path(entry.shard).read_bytes()
            if len(data) == entry.size and sha256(data).hexdigest() == entry.sha256:
                return data
        return None

    def _mark_done(self, entry: Entry) -> None:
        self._mark_missing(entry.shard)
        self.done[entry.shard] = entry
        self.tally.include(entry.tally)

    def _mark_missing(self, shard: int) -> None:
        """Drop a shard from `done`: it will be decoded again."""
        if shard in self.done:
            self.tally.include(self.done.pop(shard).tally, -1)

    # -- files -----------------------------------------------------------------------------------------------------------

    def _path(self, shard: int) -> Path:
        return self.parts / f"{shard:08d}"

    def _own_files(self) -> list[Path]:
        return sorted(path for path in self.parts.iterdir() if OWN_NAMES.fullmatch(path.name))

    def _remove_own_files(self) -> None:
        """Remove a job's files in OUT.parts. The journal, which proves that they are ours, is cleared last."""
        for path in self._own_files():
            path.unlink()
        if not self.journal.empty:
            self.journal.clear()

    def _set_aside(self) -> None:
        """Rename a file at the manifest's path that is not a manifest, rather than overwrite it."""
        if self._read_manifest()[1] is not None:
            names = (Path(f"{self.manifest_path}.{number}") for number in count(1))
            os.rename(self.manifest_path, next(path for path in names if not path.exists()))

    @contextmanager
    def _reporting_write_errors(self) -> Iterator[None]:
        """Turn an OSError, such as a full disk, into Stopped."""
        try:
            yield
        except OSError as error:
            raise Stopped(f"cannot write to {error.filename or self.name!r}: {reason(error)}") from error

    # -- the work --------------------------------------------------------------------------------------------------------

    def begin(self, budget: Budget | None) -> None:
        """Start or resume the job: write its manifest. An old output stays until the new one replaces it."""
        with self._reporting_write_errors():
            if not self.done:
                self._remove_own_files()
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
        """Decode the missing shards in one pass over the input, store each as soon as it is done, and assemble the output. Repeat
        that if stored shards turn out to be damaged; Stopped after `TRIES` attempts."""
        for _ in range(TRIES):
            for result in work(self._missing_shards(source.shards(shard_lines, survey))):
                self.commit(result)
                notice(result)
            if self._write_output():
                return
        raise Stopped(f"what is written to {str(self.parts)!r} does not stay as it was written; look at that disk")

    def _missing_shards(self, shards: Iterator[Shard]) -> Iterator[Shard]:
        """The shards that are not stored, or were made of other input lines."""
        for shard in shards:
            entry = self.done.get(shard.index)
            if entry is None or entry.source != shard.digest or entry.tally.lines != len(shard.records):
                self._mark_missing(shard.index)
                yield shard

    def commit(self, result: ShardResult) -> None:
        """Store a decoded shard durably: once this returns, it survives a crash or power failure."""
        size, sha = len(result.data), sha256(result.data).hexdigest()
        entry = Entry(self.manifest.signature, result.index, size, sha, result.source, result.tally, result.failures)
        with self._reporting_write_errors():
            self._store(entry, result.data)

    def _store(self, entry: Entry, data: bytes) -> None:
        write_file(self._path(entry.shard), data)
        self.journal.append(entry.line())
        self._mark_done(entry)

    def _shard_data(self) -> Iterator[bytes]:
        """The bytes of all shards in order, each checked against its digest. DamagedShard if one does not match."""
        for _, entry in sorted(self.done.items()):
            if (data := self._read_shard(entry)) is None:
                raise DamagedShard
            yield data

    def _write_output(self) -> bool:
        """Assemble the output of all shards, replace OUT by it, complete the manifest, and remove the shards, in this order, so
        that it can be repeated after a crash at any point. False if a shard is damaged; it then counts as missing."""
        assembled = self.parts / "output"
        with self._reporting_write_errors():
            try:
                with synced_file(assembled) as out:
                    self.target.join(self._shard_data, out)
            except DamagedShard:
                for shard in [shard for shard, entry in self.done.items() if self._read_shard(entry) is None]:
                    self._mark_missing(shard)
                return False
            size, sha = assembled.stat().st_size, digest(assembled)
            os.replace(assembled, self.output)
            sync_folder(self.output.parent)
            entries = [entry for _, entry in sorted(self.done.items())]
            failures = [failure for entry in entries for failure in entry.failures]
            complete = Complete(size, sha, self.tally, tuple(failures[:MAX_FAILURES]), tuple(entries if failures else ()))
            self.manifest = replace(self.manifest, complete=complete)
            self.manifest.write(self.manifest_path)
            self._remove_own_files()
        return True
