"""Manifest: what a job is, beside its output, so that the same job is known again and another is not mistaken for it."""

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
WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a file that somebody else has written, or damaged, may raise."""


def _failures(pairs: Any) -> Failures:
    return tuple((int(number), str(why)) for number, why in pairs)


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard that is done, in its job's journal. `source` and `sha256`: digests of what it was made of, and of what was made."""

    job: str
    shard: int
    size: int
    sha256: str
    source: str
    tally: Tally
    failures: Failures

    @classmethod
    def load(cls, fields: Any) -> Entry:
        """One of `WRONG` if it is none."""
        entry = cls(**{**fields, "tally": Tally.load(fields["tally"]), "failures": _failures(fields["failures"])})
        if type(entry.shard) is not int or entry.shard < 0 or type(entry.size) is not int:
            raise ValueError("no number of a shard")
        return entry

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Complete:
    """What came of a job: its output's size and digest, what it cost, and which lines failed (the first thousand). Where some
    did, also of which shards the output was made: all can be had again from it."""

    size: int
    sha256: str
    tally: Tally
    failures: Failures = ()
    shards: tuple[Entry, ...] = ()

    @classmethod
    def load(cls, fields: Any) -> Complete:
        shards = tuple(map(Entry.load, fields["shards"]))
        return cls(fields["size"], fields["sha256"], Tally.load(fields["tally"]), _failures(fields["failures"]), shards)


@dataclass(frozen=True)
class Manifest:
    """`job` is what the output's bytes depend on: input, model, settings, form. `row_budget` is that of the first start."""

    job: Mapping[str, Any]
    row_budget: Budget | None = None
    complete: Complete | None = None

    @property
    def signature(self) -> str:
        return sha256(json.dumps(self.job, sort_keys=True).encode()).hexdigest()[:16]

    def write(self, path: Path) -> None:
        fields = {"format": FORMAT, "bestfirst": __version__, "signature": self.signature, **asdict(self)}
        durable_files.write(path, json.dumps(fields, indent=2).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """The manifest that is there, if any. Unusable if it is none."""
        try:
            fields = json.loads(path.read_bytes())
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']} is not known to this version")
            budget, complete = fields["row_budget"], fields["complete"]
            if budget is not None:
                budget = Budget(int(budget["rows"]), int(budget["free"]))
            found = cls(fields["job"], budget, None if complete is None else Complete.load(complete))
            if not isinstance(found.job, dict) or found.signature != fields["signature"]:
                raise ValueError("it does not say which job it is of")
            return found
        except FileNotFoundError:
            return None
        except WRONG as error:
            raise Unusable(f"{str(path)!r} is not a manifest ({reason(error)}); remove it, or name another output") from error

    def differences(self, other: Mapping[str, Any]) -> str:
        """How another job differs from this one, in a few words."""
        return "; ".join(list(_differences(self.job, other))[:3]) or "its input has another size"


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in sorted({*there, *here}):
        a, b = there.get(name), here.get(name)
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(a, b, f"{path}{name} ")
        elif name == "sha256":
            yield f"{path}content is not the same"
        elif name != "size":
            yield f"{path}{name} was {json.dumps(a)}, is {json.dumps(b)}"
