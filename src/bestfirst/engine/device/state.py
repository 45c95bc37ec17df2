# ruff: noqa: N806  capitals are sizes
"""State: all that the device holds for the inputs in flight. What the arrays mean is said where the kernels use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import numpy as np
import torch

from ...constraints.trie import Trie
from .kernels.answers import RULES
from .kernels.logits_kernels import PROGRAMS
from .kernels.matmul import power
from .kernels.rows import CAP, FREE, reclaim
from .kernels.successors import GROUP, token_bitmap

BLOCK = 1024  # nodes that one program takes back
SCORES = 8  # different ones that jobs may have at a time
WIDE = 256  # a beam beyond which an input may name more rows, and children of many parents are merged together,
CROWD = 64  # so many at a time
TILE = 1024  # of a list that is moved at a time
MOST_PICKS = 1024  # rows that an input may name
FEW = 16  # answers that are looked for one by one at every step


@dataclass(frozen=True)
class Shape:
    """Room for `inputs` at a time, of `source` tokens, with outputs and prompt of fewer than `lengths` tokens, and `nodes`.

    `k` and `n` are the largest beam and n-best, `successors` those kept of each node, `prompt` the tokens that all outputs start
    from. `any_banned`: whether tokens are looked up among those that may not come. `code` and `given`: the longest edits, and an
    input's own part of them. `trie`: nodes of the trie that says what may come; 0: there is none. `times`: beams' worth of rows
    that an input may have in a step, before what is drafted. `keep`: whether finished hypotheses may be kept.
    `heated`: whether there may be temperatures other than 1.
    """

    k: int
    n: int
    inputs: int
    source: int
    lengths: int
    nodes: int
    successors: int
    prompt: int = 1
    any_banned: bool = False
    code: int = 0
    given: int = 0
    trie: int = 0
    times: int = 1
    keep: bool = False
    heated: bool = False

    @property
    def picks(self) -> int:
        """Most hypotheses an input names for one step."""
        return power(min(self.times * self.k, MOST_PICKS if self.wide else 64))

    @property
    def wide(self) -> bool:
        """Whether lists are merged by tiles."""
        return self.k > WIDE

    @property
    def tile(self) -> int:
        """Cells of a list that are moved at a time."""
        return min(TILE, power(self.k))

    @property
    def crowd(self) -> int:
        """Children that are merged together; 1: siblings alone."""
        return CROWD if self.wide else 1

    @property
    def many(self) -> bool:
        """Whether the best answers are selected, not looked for one by one."""
        return self.n > FEW

    def holds_beams_of(self, other: Shape) -> bool:
        """Whether it is no beam that `other` would not fit for, and neither is wide, for then length is dear."""
        return self.k >= other.k and not self.wide and (self.prompt, self.trie > 0) == (other.prompt, other.trie > 0)

    def fits(self, other: Shape) -> bool:
        """Whether `other` can be decoded in this room."""
        alike = (self.prompt, self.times, self.trie > 0) == (other.prompt, other.times, other.trie > 0)
        return alike and all(getattr(self, each.name) >= getattr(other, each.name) for each in fields(self))


def bytes_each(shape: Shape, token: int) -> tuple[int, int]:
    """What an input and a node take, where a token's keys and values take `token` bytes."""
    beams = shape.lengths * (2 * power(shape.k) * 25 + 24) + 4 * power(shape.k)
    return shape.source * token + beams + 4 * shape.given, token + 4 * shape.lengths + 12 * shape.successors + 28


class State:
    """The arrays. Node 0 is nobody's: rows that a step has no use for write there."""

    def __init__(self, shape: Shape, weights: Any) -> None:
        self.shape = shape
        device = weights.device
        S, L, N, W = shape.inputs, shape.lengths, shape.nodes, shape.successors
        cells = S * L * 2 * power(shape.k)

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def zeros(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        # beams, by cell
        self.value, self.entry = empty(cells, dtype=torch.float64), empty(cells, dtype=torch.int64)
        self.tie, self.node, self.pushed = empty(cells), empty(cells), empty(cells, dtype=torch.int8)
        self.count = zeros(S, L, 2)
        self.turns, self.places = empty(S, power(shape.k) if shape.wide else 0), empty(S, shape.crowd)
        self.inside = zeros(S, L)  # unfinished members of each beam, where finished ones are kept
        self.head = torch.full((S, L), -inf, dtype=torch.float64, device=device)
        self.scored = zeros(S, L)
        # inputs
        self.board = zeros(8 + S)  # what the host looks at
        self.counters, self.status = self.board[:8], self.board[8:]
        self._at_first = self.counters.clone()  # nothing is in flight: a copy, for a number of the host's would be waited for
        self._at_first[FREE], self._at_first[CAP] = N - 1, 1
        self.deepest, self.limit, self.source_length = zeros(S), zeros(S), zeros(S)
        self.rules = zeros(S, RULES.value)
        self.caps = torch.full((S,), inf, dtype=torch.float64, device=device)  # the most that a length reward is worth
        self.bars = zeros(S, 2, dtype=torch.float64)  # the n-th answer's score and length
        # by score and length
        self.norm, self.gain = (torch.ones(SCORES, power(L), dtype=torch.float64, device=device) for _ in range(2))
        self.answers = zeros(S, shape.n, 2)
        self.kept = zeros(S, L)  # answers of each length, where they are many
        self.pick_length, self.pick_place = zeros(S, shape.picks), zeros(S, shape.picks)
        self.wants, self.grant, self.first, self.rows, self.steps = zeros(S), zeros(S), zeros(S), zeros(S), zeros(S)
        # nodes, and entries: their successors, and behind these a root for each input
        self.logprob = empty(N * W + S, dtype=torch.float32)
        self.token, self.child = zeros(N * W + S), empty(N * W + S)
        self.paths, self.node_token, self.hashes = empty(N, L), empty(N), zeros(N)
        self.mark = zeros(N, dtype=torch.int8)
        self.cooled = zeros(N if shape.heated else 1, dtype=torch.float32)  # see `DeviceStep._heated`
        self.drafted, self.guessed = zeros(S), zeros(N, dtype=torch.int8)  # rows that were guessed, and which nodes are theirs
        self.node_input, self.stack = empty(N), empty(N)  # free nodes: the first so many of the stack
        self.clear()
        # keys and values: of nodes, and of the inputs
        self.memory: Any = weights.room(N, False)
        self.source: Any = weights.room(S * shape.source + 1, True)
        self.source_tokens = zeros(S * shape.source + 1)  # where drafts look them up
        self.source_start = torch.arange(S, dtype=torch.int32, device=device) * shape.source
        # what ends an output, what may not come, what every output starts from
        self.ends, self.banned = zeros(weights.vocabulary, dtype=torch.int8), zeros(weights.vocabulary, dtype=torch.int8)
        self.banned_bits = zeros(-(-weights.vocabulary // GROUP), dtype=torch.int64)
        self.prompt = zeros(shape.prompt)
        self.programs, self.given = zeros(PROGRAMS, shape.code), zeros(S, shape.given)  # edits
        # what may come: a trie, and where in it each node is
        self.trie_tokens, self.trie_first, self.trie_items = zeros(shape.trie), zeros(shape.trie + 1), zeros(shape.trie)
        self.node_place = zeros(N if shape.trie else 1)
        self.eos = zeros(1 + weights.vocabulary)  # how many, and those
        self._vocabulary: tuple[tuple[int, ...], ...] = ()
        self._trie: Trie | None = None

    def settle_vocabulary(self, eos: Sequence[int], banned: Sequence[int], prompt: Sequence[int]) -> None:
        """What ends an output, what may not come, and what all outputs start from, of the runs to come."""
        if (wanted := (tuple(eos), tuple(banned), tuple(prompt))) == self._vocabulary:
            return  # the copies below would wait for all that is queued
        self._vocabulary = wanted
        for marks, tokens in ((self.ends, eos), (self.banned, banned)):
            marks.zero_()
            if tokens:
                marks[torch.tensor(sorted(tokens), device=marks.device)] = 1
        self.banned_bits.copy_(token_bitmap(banned, len(self.banned)))
        self.eos[: 1 + len(eos)] = torch.tensor([len(eos), *sorted(eos)], dtype=torch.int32)
        self.prompt.copy_(torch.tensor(prompt, dtype=torch.int32))
        self.token[self.shape.nodes * self.shape.successors :] = prompt[0]

    def settle_trie(self, trie: Trie | None) -> None:
        """What may come, of the runs to come."""
        if trie is not None and trie is not self._trie:
            for mine, theirs in ((self.trie_tokens, trie.tokens), (self.trie_first, trie.first), (self.trie_items, trie.items)):
                mine[: len(theirs)].copy_(torch.from_numpy(np.ascontiguousarray(theirs, np.int32)))
        self._trie = trie

    def clear(self) -> None:
        """No input is in flight, every node is free."""
        nodes = self.shape.nodes
        self.status.zero_()
        self.node_input.fill_(-1)
        torch.arange(nodes - 1, -1, -1, dtype=torch.int32, device=self.stack.device, out=self.stack)  # node 0 stays
        self.counters.copy_(self._at_first)

    def reclaim(self) -> None:
        """Take back the nodes of inputs that are leaving."""
        programs = -(-self.shape.nodes // BLOCK)
        reclaim[(programs,)](self.node_input, self.status, self.stack, self.counters, self.shape.nodes, BLOCK=BLOCK)
