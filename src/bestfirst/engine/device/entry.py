"""Entry: inputs are let in. They are encoded without padding, and their searches begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from .graphs import Graphs
from .mail import sent
from .products import power
from .state import State
from .weights import Packed, Weights

if TYPE_CHECKING:
    from ...models.scorer import Source

PIECE = 512  # inputs that are let in together, at most
TOKENS = 1 << 15  # of theirs, unless one alone has more
FEWEST = 256  # tokens that a graph is made for


@dataclass(slots=True)
class Entrant:
    """An input: its number, what the model reads, and the most tokens of its output."""

    index: int
    source: Source
    n_max: int


class Entry:
    """Lets inputs in, by one transfer and one graph."""

    def __init__(self, state: State, weights: Weights, graphs: Graphs) -> None:
        self.state = state
        self.weights = weights
        self.graphs = graphs
        self._given: dict[int, torch.Tensor] = {}  # where graphs look for what was sent, by tokens

    def __call__(self, entrants: Sequence[Entrant], slots: Sequence[int]) -> None:
        sources = [entrant.source.payload.source for entrant in entrants]
        lengths = np.fromiter(map(len, sources), np.int32, len(sources))
        tokens = int(lengths.sum())
        starts = np.cumsum(lengths, dtype=np.int32) - lengths
        places = np.arange(tokens, dtype=np.int32) - np.repeat(starts, lengths)
        # A graph has room for more inputs and tokens than there are; what it computes of those goes to a cell of its own.
        graph = self.weights.device.type == "cuda"
        inputs, room = (PIECE, max(FEWEST, power(tokens))) if graph else (len(sources), tokens)
        numbers = np.zeros(2 + 4 * inputs + 4 * room, dtype=np.int32)
        numbers[:2] = len(sources), tokens
        of_inputs = numbers[2 : 2 + 4 * inputs].reshape(4, -1)
        of_inputs[:, : len(sources)] = slots, [entrant.n_max for entrant in entrants], starts, lengths
        of_tokens = numbers[2 + 4 * inputs :].reshape(4, -1)
        of_tokens[3] = self.state.shape.inputs * self.state.shape.source
        of_tokens[:, :tokens] = (
            np.fromiter(chain.from_iterable(sources), np.int32, tokens),
            places,
            np.repeat(np.arange(len(sources), dtype=np.int32), lengths),
            np.repeat(of_inputs[0, : len(sources)] * self.state.shape.source, lengths) + places,
        )
        given = sent(numbers, self.weights.device)
        if graph:
            given = self._given.setdefault(room, torch.empty_like(given)).copy_(given)
        self.graphs.run(("entry", room), lambda: self._begin(given, inputs))

    def _begin(self, given: torch.Tensor, inputs: int) -> None:
        """Of each input its slot, limit, start and length; of each token its id, place, input and cell."""
        many, used = given[:1], given[1:2]
        slot, limit, start, length = given[2 : 2 + 4 * inputs].view(4, -1).unbind(0)
        token, place, number, cell = given[2 + 4 * inputs :].view(4, -1).unbind(0)
        keys = self.weights.source_keys(Packed(token, place, number, start, length, used))
        self.state.source.index_copy_(0, cell.long(), keys)
        self.state.begin(many, slot, limit, length)
