"""The manifest of a corpus job: a JSON file beside the output that identifies the job, so that it can be resumed but not mistaken
for another. Also the journal's entries, one per decoded shard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import __version__, durable_files
from ..errors import Unusable, reason
from ..settings import Budget
from .worker import Failures, Tally

FORMAT = 2
MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions that parsing a damaged or foreign file may raise."""


def _load_failures(pairs: Any) -> Failures:
    return tuple((int(number), str(why)) for number, why in pairs)


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded shard, as one line of the job's journal. `source` is the digest of its input records, `sha256` of its output."""

    job: str
    shard: int
    size: int
    sha256: str
    source: str
    tally: Tally
    failures: Failures

    @classmethod
    def load(cls, fields: Any) -> Entry:
        """From parsed JSON. Raises one of `MALFORMED` if it is not an entry."""
        entry = cls(**{**fields, "tally": Tally.load(fields["tally"]), "failures": _load_failures(fields["failures"])})
        if type(entry.shard) is not int or entry.shard < 0 or type(entry.size) is not int:
            raise ValueError("no number of a shard")
        return entry

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Complete:
    """The result of a job: size and digest of its output, its cost, and the lines that failed (the first thousand). If any did,
    also the entries of all shards, by which the output can be split into shards again."""

    size: int
    sha256: str
    tally: Tally
    failures: Failures = ()
    shards: tuple[Entry, ...] = ()

    @classmethod
    def load(cls, fields: Any) -> Complete:
        shards = tuple(map(Entry.load, fields["shards"]))
        return cls(fields["size"], fields["sha256"], Tally.load(fields["tally"]), _load_failures(fields["failures"]), shards)


@dataclass(frozen=True)
class Manifest:
    """`job` has all that the output's bytes depend on: input, model, settings, format. `row_budget`: that of the first start."""

    job: Mapping[str, Any]
    row_budget: Budget | None = None
    complete: Complete | None = None

    @property
    def signature(self) -> str:
        return sha256(json.dumps(self.job, sort_keys=True).encode()).hexdigest()[:16]

    def write(self, path: Path) -> None:
        fields = {"format": FORMAT, "bestfirst": __version__, "signature": self.signature, **asdict(self)}
        durable_files.write_file(path, json.dumps(fields, indent=2).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """The manifest in a file; None if there is no file, Unusable if it is not a manifest."""
        try:
            fields = json.loads(path.read_bytes())
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']} is not known to this version")
            budget, complete = fields["row_budget"], fields["complete"]
            if budget is not None:
                budget = Budget(int(budget["rows"]), int(budget["free"]))
            manifest = cls(fields["job"], budget, None if complete is None else Complete.load(complete))
            if not isinstance(manifest.job, dict) or manifest.signature != fields["signature"]:
                raise ValueError("it does not say which job it is of")
            return manifest
        except FileNotFoundError:
            return None
        except MALFORMED as error:
            raise Unusable(f"{str(path)!r} is not a manifest ({reason(error)}); remove it, or name another output") from error

    def differences(self, other: Mapping[str, Any]) -> str:
        """How another job differs from this one: the first three differences, for an error message."""
        return "; ".join(list(dict.fromkeys(_differences(self.job, other)))[:3]) or "its input has another size"


NAMES = {"field": "input field", "into": "output field", "shard_lines": "lines of a shard"}
"""What a user calls some entries of a job. Input and output may both have them."""


def _differences(stored: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in sorted({*stored, *new}):
        a, b = stored.get(name), new.get(name)
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(a, b, f"{path}{name} ")
        elif name == "sha256":
            yield f"{path}content is not the same"
        elif name != "size":
            yield f"{NAMES.get(name, path + name)} was {json.dumps(a)}, is {json.dumps(b)}"
