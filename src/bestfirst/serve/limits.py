"""Limits: how much one request, and all of them together, may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..settings import Decoding

CHARACTERS_A_TOKEN = 2  # of an output that may have two tokens for one of the input, as most have by default


@dataclass(frozen=True)
class Limits:
    """Whatever goes beyond them is refused at once, with a message that names the limit."""

    max_bytes: int = 1 << 20  # of a request's body
    max_items: int = 128  # texts in a request
    max_chars: int = 5000  # of a text
    max_beam: int = 50
    max_rows: int = 1 << 18  # hypotheses that a request may have to score at worst
    max_queue: int = 512  # texts that are accepted and not done, in flight or waiting
    max_cache_tokens: int = 1 << 15  # held for all texts in flight: some 14 KB each at beam 50, with the embedded model
    deadline: float = 60.0  # seconds a request may take, its body's arrival not counted

    def __post_init__(self) -> None:
        if self.max_items > self.max_queue:
            raise ValueError(f"a request of {self.max_items} texts would never fit into a queue of {self.max_queue}")

    @property
    def few(self) -> int:
        """Requests of more texts than this share half of the queue, so that others always find a place."""
        return max(1, self.max_queue // 256)

    def rows(self, text: Any, decoding: Decoding) -> int:
        """What a text may need at worst, as far as can be told before it is read."""
        length = decoding.max_length
        return decoding.beam * (length if isinstance(length, int) else len(text) // CHARACTERS_A_TOKEN + 10)
