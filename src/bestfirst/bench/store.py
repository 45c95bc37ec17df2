"""Store: a file of records, written one at a time, so that whatever ends a run, what was finished is there for the next."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Generic, Protocol, TypeVar


class Record(Protocol):
    """What a store holds: a `Row`, or a `Measurement` of `bench growth`."""

    @property
    def key(self) -> Hashable: ...
    @property
    def model(self) -> str: ...
    def dump(self) -> str: ...


AnyRecord = TypeVar("AnyRecord", bound=Record)
BEGIN = b'{"kind": "bestfirst bench '


def read(kind: type[AnyRecord], paths: Iterable[Path]) -> list[AnyRecord]:
    """All records of these files, each once; ValueError names the file and line of what is none."""
    records: dict[Hashable, AnyRecord] = {}
    for path in paths:
        for record in _parse(kind, path.read_bytes(), path):
            records.setdefault(record.key, record)
    return list(records.values())


def _parse(kind: type[AnyRecord], content: bytes, path: Path) -> Iterator[AnyRecord]:
    """The records of a file. What comes after the last line feed was not finished when its writer was stopped: it is none."""
    *whole, torn = content.split(b"\n")
    if not torn.startswith(BEGIN[: len(torn)]):
        whole.append(torn)  # not of ours, and not to be cut off
    for number, line in enumerate(whole, 1):
        try:
            yield kind.load(line)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}") from error


class Store(Generic[AnyRecord]):
    """Records of one model, on disk. One run at a time writes to a file.

    A record is one write of a whole line, so a killed process leaves at most one torn line, at the end; it is cut off when the
    file is opened again.
    """

    def __init__(self, kind: type[AnyRecord], path: Path, model: str) -> None:
        self.kind = kind
        self.path = path
        self.model = model
        self.records: dict[Hashable, AnyRecord] = {}

    def __enter__(self) -> Store[AnyRecord]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(self.path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            content = self._file.read()
            for record in _parse(self.kind, content, self.path):
                if record.model != self.model:
                    whose = f"{str(self.path)!r} has results of the model {record.model}, not of {self.model}"
                    raise ValueError(f"{whose}; name another file with --rows")
                self.records.setdefault(record.key, record)
            os.ftruncate(self._file.fileno(), content.rfind(b"\n") + 1)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"another run is writing to {str(self.path)!r}; wait for it, or name another file") from None
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def __contains__(self, key: Hashable) -> bool:
        return key in self.records

    def add(self, record: AnyRecord) -> None:
        """Save a record; it is on its way to the disk when this returns."""
        self._file.write(record.dump().encode("utf-8"))
        self._file.flush()
        self.records[record.key] = record
