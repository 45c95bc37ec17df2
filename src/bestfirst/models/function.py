"""FunctionModel: any function from a prefix to next-token scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from .model import Model, Query, Scored


class FunctionModel(Model):
    """A model that is one function: `next_logprobs(prefix)` gets the generated tokens (no BOS), and scores every next token.

    toy = FunctionModel(lambda prefix: [-1.0, -0.5, -2.0], eos=0)
    bestfirst.decode(toy, [None], beam=2)
    """

    def __init__(self, next_logprobs: Callable[[tuple[int, ...]], Sequence[float]], eos: int | Collection[int]) -> None:
        self.next_logprobs = next_logprobs
        self.eos = frozenset([eos] if isinstance(eos, int) else eos)

    def start(self, source: Any) -> None:
        return None

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        return [Scored(self.next_logprobs(query.prefix)) for query in batch]
