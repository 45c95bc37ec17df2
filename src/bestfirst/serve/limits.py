"""Limits: how much one request, and all of them together, may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Whatever goes beyond them is refused at once, with a message that names the limit."""

    max_bytes: int = 1 << 20  # of a request's body
    max_items: int = 128  # texts in a request
    max_chars: int = 5000  # of a text
    max_beam: int = 50
    max_queue: int = 512  # texts that are accepted and not done, in flight or waiting
    deadline: float = 60.0  # seconds a request may take, its body's arrival not counted

    def __post_init__(self) -> None:
        if self.max_items > self.max_queue:
            raise ValueError(f"a request of {self.max_items} texts would never fit into a queue of {self.max_queue}")
