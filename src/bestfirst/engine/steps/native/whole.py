"""WholePass: all layers of a step, or of an encoder, in one compiled call; its arguments are in a plan (`search_plan`)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any
from weakref import ref

import numpy as np

from ...threads import parallel_for, split_range
from ..bart_weights import BartSide, LayerNorm
from . import search_plan as s
from .calls import NOWHERE, at, entries
from .parts import ACTIVATIONS
from .registers import BLOCK, ZEROS

FEWEST = 6  # decoder rows that are worth a thread
MANY = 48  # encoder tokens that are worth a thread
WORK = ("x", "h", "y", "qkv", "attended", "inner", "q", "quantised", "scales")  # in the order of the plan, from P_X_AT on


class WholePass:
    """The layers (`JoinedLayer`), norms and embeddings of an encoder or decoder, as `entries.encoder` and `decoder` read them."""

    def __init__(self, side: BartSide, layers: Sequence[Any], norms: Sequence[LayerNorm]) -> None:
        first = layers[0]
        self.name = "encoder" if side.layers[0].cross is None else "decoder"
        self._side, self._layers = side, layers
        self._kept = [norms, side.first_norm]  # kept alive: their addresses are below
        products = [[number for product in _products(layer) for number in _addresses(product)] for layer in layers]
        self._products = np.array(products, np.int64)
        self._norms = np.array([[at(norm.weight), at(norm.bias)] for norm in norms], np.int64)
        self._plan = np.zeros(s.PLAN + 2 * len(layers), np.int64)
        begin = side.first_norm
        activation = ACTIVATIONS[side.layers[0].activation_name]
        self._plan[s.P_D : s.P_TOKENS_AT] = (
            side.width, first.heads, first.fc1.outputs, len(layers), side.norm_first, activation
        )  # fmt: skip
        self._plan[[s.P_EMBEDDING_AT, s.P_VOCABULARY]] = at(side.embedding), len(side.embedding)
        self._plan[[s.P_NORM_AT, s.P_NORM_BIAS_AT]] = (0, 0) if begin is None else (at(begin.weight), at(begin.bias))
        self._plan[[s.P_ZEROS_AT, s.P_BLOCK]] = at(ZEROS), BLOCK
        scales = side.embed_scale, float(first.scaling), float(norms[0].eps)
        self._call = (at(self._plan), at(self._products), at(self._norms), *scales)
        self._work: Any = False  # the workspace whose addresses are in the plan
        self._cached: dict[int, Any] = {}  # addresses by id of their array

    def with_own_workspace(self) -> WholePass:
        """The same layers with a plan of its own, for another thread."""
        other = copy(self)
        other._plan = self._plan.copy()
        other._call = (at(other._plan), *self._call[1:])
        other._work, other._cached = False, {}
        return other

    @staticmethod
    def takes(side: BartSide, layers: Sequence[Any], norms: Sequence[LayerNorm]) -> bool:
        """Whether all projections are compiled, and layers have the same sizes and settings."""
        shapes = {(layer.heads, float(layer.scaling), layer.fc1.outputs) for layer in layers}
        alike = {layer.activation_name for layer in side.layers}
        every = {np.float32(norm.eps) for norm in (*norms, *filter(None, [side.first_norm]))}
        return len(shapes) == len(alike) == len(every) == 1 and all(p.compiled for layer in layers for p in _products(layer))

    def decode(self, rows: Any, tree: Any, sources: Any, work: dict[str, Any]) -> Any:
        """Run rows through a decoder. Returns the input of the output projection, (rows, d)."""
        longest = rows.paths.shape[1]
        table = rows.tokens, rows.positions, rows.slots, rows.sentences
        lengths = self._fill_plan(table, tree, sources)
        pieces = split_range(len(rows), FEWEST)
        if len(pieces) > 1 and np.isin(rows.paths, rows.slots).sum() > len(rows):
            pieces = [(0, len(rows))]  # some rows are ancestors of others, as in a prompt: one thread must run them in order
        h = self._run(len(rows), longest, work, pieces)
        del lengths  # kept alive until here: its address is in the plan
        return h

    def _fill_plan(self, table: Any, tree: Any, sources: Any) -> Any:
        """Put the addresses of rows (tokens, positions, slots, places), tree and sources into the plan. Keep the result alive."""
        plan, paths, lengths, n = self._plan, tree.paths, np.array(sources.lengths), len(self._layers)
        plan[s.P_TOKENS_AT : s.P_EMBEDDING_AT] = [at(each) for each in table]
        plan[s.P_PATHS_AT : s.P_X_AT] = (
            at(paths), *paths.shape, at(lengths), sources.layers[0].shape[1], sources.layers[0].shape[3]
        )  # fmt: skip
        plan[s.PLAN : s.PLAN + n] = [self._address(tree.layer(i, int(plan[s.P_D]))) for i in range(n)]
        plan[s.PLAN + n :] = [self._address(layer) for layer in sources.layers]
        return lengths

    def search(self, step: Any, table: Any, tree: Any, sources: Any, work: dict[str, Any], longest: int) -> int:
        """Run steps of compiled searches (`entries.search`), whose rows are written to `table`. Returns the last step's rows."""
        lengths = self._fill_plan(table, tree, sources)
        self._use_workspace(work, longest)
        self._plan[s.P_ROWS] = 0
        entries()["search"](NOWHERE, NOWHERE, at(step), *self._call)
        del lengths
        return int(self._plan[s.P_ROWS])

    def encode(self, tokens: Any, positions: Any, longest: int, starts: Any, work: dict[str, Any]) -> Any:
        """Run inputs that begin at `starts`, concatenated, through an encoder, (tokens, d)."""
        self._plan[s.P_TOKENS_AT : s.P_EMBEDDING_AT] = at(tokens), at(positions), at(starts), len(starts) - 1
        ends = [int(np.searchsorted(starts, last)) for _, last in split_range(len(tokens), MANY)]
        pieces = [(first, last) for first, last in pairwise([0, *ends]) if first < last]  # ranges of inputs
        if len(pieces) < 2:
            return self._run(len(tokens), longest, work, [(0, len(tokens))])
        piece_starts = [np.ascontiguousarray(starts[first : last + 1] - starts[first]) for first, last in pieces]
        inputs = [(at(each), len(each) - 1) for each in piece_starts]
        return self._run(len(tokens), longest, work, [(int(starts[a]), int(starts[b])) for a, b in pieces], inputs)

    def _run(
        self, rows: int, longest: int, work: dict[str, Any], pieces: Sequence[tuple[int, int]], inputs: Sequence[Any] = ()
    ) -> Any:
        """Run pieces of the rows on threads. `inputs`: in an encoder, each piece's address of starts and number of inputs."""
        self._plan[s.P_ROWS] = rows
        self._use_workspace(work, longest)
        entry = entries()[self.name]
        if len(pieces) == 1:
            entry(NOWHERE, NOWHERE, *self._call)
        else:
            widths = np.array([4 * work[name].shape[1] if name in work else 0 for name in WORK])
            plans = [self._piece(first, last, widths) for first, last in pieces]
            for plan, starts in zip(plans, inputs, strict=False):
                plan[s.P_STARTS_AT : s.P_INPUTS + 1] = starts
            parallel_for(lambda i: entry(NOWHERE, NOWHERE, at(plans[i]), *self._call[1:]), len(pieces))
        return work["h"] if self._side.norm_first else work["x"]

    def _use_workspace(self, work: dict[str, Any], longest: int) -> None:
        """Write the addresses of the workspace and of position embeddings, for positions less than `longest`, into the plan."""
        table = self._side.positions.up_to(longest)
        self._plan[s.P_TABLE_AT : s.P_NORM_AT] = self._address(table), len(table)
        if self._work is not (memory := work["x"].base):  # the base is the same for any number of rows
            self._plan[s.P_X_AT : s.P_ZEROS_AT] = [at(work[name]) if name in work else 0 for name in WORK]
            self._work = memory

    def _piece(self, first: int, last: int, widths: Any) -> Any:
        """The plan of rows first to last - 1: the same arrays, from later addresses on."""
        plan = self._plan.copy()
        plan[s.P_ROWS] = last - first
        plan[s.P_TOKENS_AT : s.P_EMBEDDING_AT] += 4 * first
        plan[s.P_X_AT : s.P_ZEROS_AT] += first * widths
        return plan

    def _address(self, array: Any) -> int:
        """The address of an array, cached. The array is not kept alive: a tree is freed after its decode."""
        entry = self._cached.get(id(array))
        if entry is None or entry[0]() is not array:
            if len(self._cached) > 256:
                self._cached.clear()
            entry = self._cached[id(array)] = (ref(array), at(array))
        return int(entry[1])


def _products(layer: Any) -> list[Any]:
    cross = [layer.cross_q, layer.cross_out] if hasattr(layer, "cross_kv") else []
    return [layer.qkv, layer.own_out, *cross, layer.fc1, layer.fc2]


def _addresses(product: Any) -> tuple[int, ...]:
    """The addresses of a projection's weights and bias; in int8 also of the initial sums and the scales."""
    if product.packed is None:
        return at(product.weights), at(product.bias), 0, 0
    weights, start, scales = product.packed
    return at(weights), at(product.bias), at(start), at(scales)


def most_inputs(layers: Sequence[Any]) -> int:
    """The largest number of inputs of any projection in these layers."""
    return max(product.inputs for layer in layers for product in _products(layer))
