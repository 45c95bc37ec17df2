"""Corpus: the text that is decoded, a sentence a line, with its references where there are any."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256


@dataclass(frozen=True)
class Pair:
    """One line: its number in the file, from 1, its text, and what it should become."""

    line: int
    source: str
    reference: str | None = None


@dataclass(frozen=True)
class Corpus:
    """Lines of a text, and a name that tells it from any other: the file's, and a digest of all its lines."""

    name: str
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, name: str, sources: Sequence[str], references: Sequence[str] | None = None) -> Corpus:
        """The whole text. Lines without text are left out, the numbers of the others stay."""
        if references is not None and len(sources) != len(references):
            raise ValueError(f"{len(sources)} lines of text and {len(references)} references: each needs its own")
        content = "\n".join([*sources, "", *(references or [])])
        digest = sha256(content.encode()).hexdigest()[:8]
        expected: Sequence[str | None] = references or [None] * len(sources)
        pairs = [Pair(line, *pair) for line, pair in enumerate(zip(sources, expected, strict=True), 1) if pair[0].strip()]
        return cls(f"{name}@{digest}", tuple(pairs))

    def part(self, limit: int | None = None, sample: int | None = None, seed: int = 0) -> Corpus:
        """The first `limit` lines; of these, `sample` at random. A larger sample with the same seed contains a smaller one."""
        pairs = list(self.pairs[:limit])
        if sample is not None:
            random.Random(seed).shuffle(pairs)
            pairs = sorted(pairs[:sample], key=lambda pair: pair.line)
        return replace(self, pairs=tuple(pairs))
