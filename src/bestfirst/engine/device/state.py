# ruff: noqa: N806  capitals are sizes
"""State: the device memory of all searches in flight; `Shape`: its dimensions. Arrays are explained at the kernels that use
them."""

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

BLOCK = 1024  # nodes that one program of `reclaim` looks at
SCORES = 8  # score tables: distinct scores among the jobs in flight
WIDE = 256  # a larger beam is wide: an input may name more rows, and children of several parents are merged together,
CROWD = 64  # so many parents at a time
TILE = 1024  # cells of a list of a wide beam that are moved at a time
MOST_PICKS = 1024  # rows that an input may name for a step
FEW = 16  # n-best up to which answers are found one by one in every step, not selected


@dataclass(frozen=True)
class Shape:
    """Capacity of a session: `inputs` at a time with `source` tokens each, outputs (prompt included) of fewer than `lengths`
    tokens, and `nodes` for all search trees together.

    `k` and `n`: largest beam and n-best. `successors`: entries kept of each node. `prompt`: tokens that all outputs start from.
    `any_banned`: whether banned tokens are masked. `code`, `given`: length of the longest edits, and of an input's own part of
    them. `trie`: nodes of the trie that constrains outputs, 0 without. `times`: rows that an input may have in a step, in beams,
    drafted ones not counted. `keep`: whether finished hypotheses may be kept. `heated`: whether there may be temperatures other
    than 1.
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
        """Most hypotheses that an input names for one step, a power of two."""
        return power(min(self.times * self.k, MOST_PICKS if self.wide else 64))

    @property
    def wide(self) -> bool:
        """Whether lists are merged tile by tile."""
        return self.k > WIDE

    @property
    def tile(self) -> int:
        return min(TILE, power(self.k))

    @property
    def crowd(self) -> int:
        """Parents whose children are merged together; 1: siblings alone."""
        return CROWD if self.wide else 1

    @property
    def many(self) -> bool:
        """Whether the best answers are selected instead of found one by one."""
        return self.n > FEW

    def fits_beams_of(self, other: Shape) -> bool:
        """Whether a session for `other` may keep this one's lengths: its beams fit, and are not wide, for then length is
        expensive."""
        return self.k >= other.k and not self.wide and (self.prompt, self.trie > 0) == (other.prompt, other.trie > 0)

    def fits(self, other: Shape) -> bool:
        """Whether jobs that need `other` can be decoded in this shape."""
        same_kind = (self.prompt, self.times, self.trie > 0) == (other.prompt, other.times, other.trie > 0)
        return same_kind and all(getattr(self, each.name) >= getattr(other, each.name) for each in fields(self))


def bytes_per_input_and_node(shape: Shape, token: int) -> tuple[int, int]:
    """Device memory of an input and of a node, where keys and values of a token take `token` bytes."""
    beams = shape.lengths * (2 * power(shape.k) * 25 + 24) + 4 * power(shape.k)
    return shape.source * token + beams + 4 * shape.given, token + 4 * shape.lengths + 12 * shape.successors + 28


class State:
    """The device arrays. S inputs, L lengths, N nodes, W successors of a node. Node 0 is a dummy: unused rows write there."""

    def __init__(self, shape: Shape, weights: Any) -> None:
        self.shape = shape
        device = weights.device
        S, L, N, W = shape.inputs, shape.lengths, shape.nodes, shape.successors
        cells = S * L * 2 * power(shape.k)

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def zeros(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        # beams, by cell: of each input and length a list of unfinished and one of finished hypotheses
        self.value, self.entry = empty(cells, dtype=torch.float64), empty(cells, dtype=torch.int64)
        self.tie, self.node, self.pushed = empty(cells), empty(cells), empty(cells, dtype=torch.int8)
        self.count = zeros(S, L, 2)
        self.turns, self.places = empty(S, power(shape.k) if shape.wide else 0), empty(S, shape.crowd)
        self.inside = zeros(S, L)  # unfinished members of each beam, where finished ones are kept
        # by input and length: the greatest value of an open hypothesis, and whether the last step scored one
        self.head = torch.full((S, L), -inf, dtype=torch.float64, device=device)
        self.scored = zeros(S, L)
        # by input; `deepest`: the length of the longest beam, `limit`: the greatest length
        self.board = zeros(8 + S)  # what the host reads: counters, and the status of each input
        self.counters, self.status = self.board[:8], self.board[8:]
        self._initial_counters = self.counters.clone()  # copied from the device by `clear`: a copy from the host would wait
        self._initial_counters[FREE], self._initial_counters[CAP] = N - 1, 1
        self.deepest, self.limit, self.source_length = zeros(S), zeros(S), zeros(S)
        self.rules = zeros(S, RULES.value)
        self.caps = torch.full((S,), inf, dtype=torch.float64, device=device)  # largest length reward of the input
        self.bars = zeros(S, 2, dtype=torch.float64)  # the n-th answer's score and length
        # tables by score and length (`rules.table_of`)
        self.norm, self.gain = (torch.ones(SCORES, power(L), dtype=torch.float64, device=device) for _ in range(2))
        self.answers = zeros(S, shape.n, 2)
        self.kept = zeros(S, L)  # number of answers by length, where `Shape.many`
        self.pick_length, self.pick_place = zeros(S, shape.picks), zeros(S, shape.picks)
        self.wants, self.grant, self.first, self.rows, self.steps = zeros(S), zeros(S), zeros(S), zeros(S), zeros(S)
        # by node, and by entry: W successors of each node, and behind those one root for each input
        self.logprob = empty(N * W + S, dtype=torch.float32)
        self.token, self.child = zeros(N * W + S), empty(N * W + S)
        self.paths, self.node_token, self.hashes = empty(N, L), empty(N), zeros(N)
        self.mark = zeros(N, dtype=torch.int8)  # scratch space of `beams.push_scored`: all 0 between its steps
        self.cooled = zeros(N if shape.heated else 1, dtype=torch.float32)  # see `DeviceStep._apply_temperatures`
        self.drafted, self.guessed = zeros(S), zeros(N, dtype=torch.int8)  # drafted rows of inputs; whether nodes were drafted
        self.node_input, self.stack = empty(N), empty(N)  # the first `counters[FREE]` nodes of the stack are free
        self.clear()
        # KV cache: of nodes, and of the inputs (encoder output or prompt)
        self.memory: Any = weights.room(N, False)
        self.source: Any = weights.room(S * shape.source + 1, True)
        self.source_tokens = zeros(S * shape.source + 1)  # for drafts by lookup
        self.source_start = torch.arange(S, dtype=torch.int32, device=device) * shape.source
        # EOS and banned tokens as flags by token, and the prompt that every output starts from
        self.ends, self.banned = zeros(weights.vocabulary, dtype=torch.int8), zeros(weights.vocabulary, dtype=torch.int8)
        self.banned_bits = zeros(-(-weights.vocabulary // GROUP), dtype=torch.int64)
        self.prompt = zeros(shape.prompt)
        self.programs, self.given = zeros(PROGRAMS, shape.code), zeros(S, shape.given)  # logits edits: code, and inputs' data
        # the trie that constrains outputs, and the place in it of each node
        self.trie_tokens, self.trie_first, self.trie_items = zeros(shape.trie), zeros(shape.trie + 1), zeros(shape.trie)
        self.node_place = zeros(N if shape.trie else 1)
        self.eos = zeros(1 + weights.vocabulary)  # how many, then their ids
        self._token_sets: tuple[tuple[int, ...], ...] = ()
        self._trie: Trie | None = None

    def set_vocabulary(self, eos: Sequence[int], banned: Sequence[int], prompt: Sequence[int]) -> None:
        """EOS tokens, banned tokens and the prompt of the jobs to come."""
        if (token_sets := (tuple(eos), tuple(banned), tuple(prompt))) == self._token_sets:
            return  # the copies below would wait for all that is queued
        self._token_sets = token_sets
        for marks, tokens in ((self.ends, eos), (self.banned, banned)):
            marks.zero_()
            if tokens:
                marks[torch.tensor(sorted(tokens), device=marks.device)] = 1
        self.banned_bits.copy_(token_bitmap(banned, len(self.banned)))
        self.eos[: 1 + len(eos)] = torch.tensor([len(eos), *sorted(eos)], dtype=torch.int32)
        self.prompt.copy_(torch.tensor(prompt, dtype=torch.int32))
        self.token[self.shape.nodes * self.shape.successors :] = prompt[0]

    def set_trie(self, trie: Trie | None) -> None:
        if trie is not None and trie is not self._trie:
            for mine, theirs in ((self.trie_tokens, trie.tokens), (self.trie_first, trie.first), (self.trie_items, trie.items)):
                mine[: len(theirs)].copy_(torch.from_numpy(np.ascontiguousarray(theirs, np.int32)))
        self._trie = trie

    def clear(self) -> None:
        """Free all inputs and nodes."""
        nodes = self.shape.nodes
        self.status.zero_()
        self.node_input.fill_(-1)
        torch.arange(nodes - 1, -1, -1, dtype=torch.int32, device=self.stack.device, out=self.stack)  # node 0 is never free
        self.counters.copy_(self._initial_counters)

    def reclaim(self) -> None:
        """Free the nodes of inputs that are leaving."""
        programs = -(-self.shape.nodes // BLOCK)
        reclaim[(programs,)](self.node_input, self.status, self.stack, self.counters, self.shape.nodes, BLOCK=BLOCK)
