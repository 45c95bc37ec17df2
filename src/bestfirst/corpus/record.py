"""Record: one input with its number, and the fields it came with. Shard: records that are decoded and kept together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """One line or row of the input: its number, from 1, and its text; or why it has none."""

    number: int
    text: str  # empty where there is none
    error: str | None = None
    fields: Mapping[str, Any] | None = None  # all of its fields, where it has more than its text

    @property
    def blank(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()


@dataclass(frozen=True)
class Shard:
    """Records that are decoded together; `index` counts from 0. `table`: the rows they stand for, of a Parquet file."""

    index: int
    records: Sequence[Record]
    table: Any = None
