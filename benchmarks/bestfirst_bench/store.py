"""Store: a file of results, written one at a time, so that whatever ends a run, what was finished is there for the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from bestfirst.journal import Journal


class Storable(Protocol):
    """What a store holds: a `Row`, or a `Measurement` of `bench growth`."""

    @property
    def key(self) -> Hashable: ...
    @property
    def model(self) -> str: ...
    def dump(self) -> str: ...


AnyStorable = TypeVar("AnyStorable", bound=Storable)
BEGIN = b'{"kind": "bestfirst bench '


class OtherModel(ValueError):
    """The file has another model's results."""


def read(kind: type[AnyStorable], paths: Iterable[Path]) -> list[AnyStorable]:
    """All results in these files, each once; ValueError names the file and line of what is none."""
    records: dict[Hashable, AnyStorable] = {}
    for path in paths:
        *whole, torn = path.read_bytes().split(b"\n")
        for record in _parse(kind, whole, torn, path):
            records.setdefault(record.key, record)
    return list(records.values())


def _parse(kind: type[AnyStorable], whole: Iterable[bytes], torn: bytes, path: Path) -> Iterator[AnyStorable]:
    """What these lines hold. `torn`, the start of a line of ours, is left out."""
    own = torn.startswith(BEGIN[: len(torn)])
    for number, line in enumerate([*whole, *([] if own else [torn])], 1):
        try:
            yield kind.load(line)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}") from error


class Store(Generic[AnyStorable]):
    """Results of one model, on disk. One run at a time writes to a file; what is not ours is left as it is."""

    def __init__(self, kind: type[AnyStorable], path: Path, model: str) -> None:
        self.kind = kind
        self.path = path
        self.model = model
        self.records: dict[Hashable, AnyStorable] = {}

    def __enter__(self) -> Store[AnyStorable]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._journal = Journal(self.path)
        except BlockingIOError:
            raise ValueError(f"another run is writing to {str(self.path)!r}; wait for it, or name another file") from None
        try:
            for record in _parse(self.kind, self._journal.lines(), self._journal.torn, self.path):
                if record.model != self.model:
                    whose = f"{str(self.path)!r} has results of the model {record.model}, not of {self.model}"
                    raise OtherModel(f"{whose}; name another file")
                self.records.setdefault(record.key, record)
        except BaseException:
            self._journal.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._journal.close()

    def __contains__(self, key: Hashable) -> bool:
        return key in self.records

    def add(self, record: AnyStorable) -> None:
        """Save a result; it is on its way to the disk when this returns."""
        self._journal.append(record.dump().encode("utf-8"), sync=False)
        self.records[record.key] = record
