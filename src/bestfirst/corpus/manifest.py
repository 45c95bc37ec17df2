"""Manifest: what a job is, beside its output, so that the same job is known again and another is not mistaken for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import __version__
from ..settings import Budget
from . import durable
from .errors import Unusable, reason
from .tally import Tally

FORMAT = 1


@dataclass(frozen=True)
class Complete:
    """What came of a job: its output's size and digest, what it cost, and which lines failed (the first thousand)."""

    size: int
    sha256: str
    tally: Tally
    troubles: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """`job` is what the output's bytes depend on: input, model, settings, form. `row_budget` is that of the first start."""

    job: Mapping[str, Any]
    row_budget: Budget | None = None
    complete: Complete | None = None

    @property
    def signature(self) -> str:
        """The job in a few characters."""
        return sha256(json.dumps(self.job, sort_keys=True).encode()).hexdigest()[:16]

    def completed(self, complete: Complete) -> Manifest:
        return replace(self, complete=complete)

    def write(self, path: Path) -> None:
        fields = {"format": FORMAT, "bestfirst": __version__, "signature": self.signature, **asdict(self)}
        durable.write(path, json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """The manifest that is there, if any."""
        try:
            fields = json.loads(path.read_bytes())
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']} is not known to this version")
            budget, complete = fields["row_budget"], fields["complete"]
            if complete is not None:
                troubles = tuple((number, why) for number, why in complete["troubles"])
                complete = Complete(complete["size"], complete["sha256"], Tally(**complete["tally"]), troubles)
            return cls(fields["job"], None if budget is None else Budget(**budget), complete)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{str(path)!r} is not a manifest ({reason(error)}); remove it, or name another output") from error

    def differences(self, other: Mapping[str, Any]) -> str:
        """How another job differs from this one, in a few words."""
        return "; ".join(list(_differences(self.job, other))[:3])


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
