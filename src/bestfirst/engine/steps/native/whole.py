"""Whole: all layers of a step, or of an encoder, in one call. What is the same for every call lies in a plan of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any
from weakref import ref

import numpy as np

from ...threads import parallel_for, split_range
from ..bart_weights import BartSide, LayerNorm
from .calls import NOWHERE, at, entries
from .parts import KINDS
from .registers import BLOCK, ZEROS

NUMBERS = 34  # of a plan, before those of each layer; `entries` reads them by place
FEWEST = 6  # rows that are worth a thread
MANY = 48  # tokens of inputs that are
WORK = ("x", "h", "y", "qkv", "seen", "inner", "q", "room", "scales")


class WholePass:
    """An encoder's or a decoder's layers (`JoinedLayer`), norms and embeddings, as `entries.encoder` and `decoder` read them."""

    def __init__(self, side: BartSide, layers: Sequence[Any], norms: Sequence[LayerNorm]) -> None:
        first = layers[0]
        self.name = "encoder" if side.layers[0].cross is None else "decoder"
        self._side, self._layers = side, layers
        self._kept = [norms, side.first_norm]  # the addresses below are theirs
        products = [[number for product in _products(layer) for number in _places(product)] for layer in layers]
        self._products = np.array(products, np.int64)
        self._norms = np.array([[at(norm.weight), at(norm.bias)] for norm in norms], np.int64)
        self._plan = np.zeros(NUMBERS + 2 * len(layers), np.int64)
        begin = side.first_norm
        activation = KINDS[side.layers[0].activation_name]
        self._plan[1:7] = side.width, first.heads, first.fc1.outputs, len(layers), side.norm_first, activation
        self._plan[11:13] = at(side.embedding), len(side.embedding)
        self._plan[15:17] = (0, 0) if begin is None else (at(begin.weight), at(begin.bias))
        self._plan[32:34] = at(ZEROS), BLOCK
        scales = side.embed_scale, float(first.scaling), float(norms[0].eps)
        self._call = (at(self._plan), at(self._products), at(self._norms), *scales)
        self._work: Any = False  # the memory that the plan names
        self._lasting: dict[int, Any] = {}

    def again(self) -> WholePass:
        """The same layers, with a plan of its own."""
        made = copy(self)
        made._plan = self._plan.copy()
        made._call = (at(made._plan), *self._call[1:])
        made._work, made._lasting = False, {}
        return made

    @staticmethod
    def takes(side: BartSide, layers: Sequence[Any], norms: Sequence[LayerNorm]) -> bool:
        """Whether all products are compiled, and layers differ in their numbers alone."""
        shapes = {(layer.heads, float(layer.scaling), layer.fc1.outputs) for layer in layers}
        alike = {layer.activation_name for layer in side.layers}
        every = {np.float32(norm.eps) for norm in (*norms, *filter(None, [side.first_norm]))}
        return len(shapes) == len(alike) == len(every) == 1 and all(p.compiled for layer in layers for p in _products(layer))

    def decode(self, rows: Any, tree: Any, sources: Any, work: dict[str, Any]) -> Any:
        """Rows through a decoder: what enters the product with the vocabulary, (rows, d)."""
        longest = rows.paths.shape[1]
        given = [np.asarray(each) for each in (rows.tokens, rows.positions, rows.slots, rows.sentences)]
        lengths = self._look_at(given, tree, sources)
        pieces = split_range(len(rows), FEWEST)
        if len(pieces) > 1 and np.isin(np.asarray(rows.paths), given[2]).sum() > len(rows):
            pieces = [(0, len(rows))]  # some rows are ancestors of others, as in a prompt: threads must not part them
        found = self._run(len(rows), longest, work, pieces)
        del lengths  # whose address the plan had
        return found

    def _look_at(self, given: Any, tree: Any, sources: Any) -> Any:
        """Rows (tokens, positions, slots, places), and where what they look at lies. Returns what must be kept meanwhile."""
        plan, paths, lengths, n = self._plan, np.asarray(tree.paths), np.array(sources.lengths), len(self._layers)
        plan[7:11] = [at(each) for each in given]
        plan[17:23] = at(paths), *paths.shape, at(lengths), sources.layers[0].shape[1], sources.layers[0].shape[3]
        plan[NUMBERS : NUMBERS + n] = [self._place(tree.layer(i, int(plan[1]))) for i in range(n)]
        plan[NUMBERS + n :] = [self._place(layer) for layer in sources.layers]
        return lengths

    def search(self, step: Any, given: Any, tree: Any, sources: Any, work: dict[str, Any], longest: int) -> int:
        """Steps of compiled searches (`search_plan`), whose rows are put into `given`. Returns the rows of the last."""
        lengths = self._look_at(given, tree, sources)
        self._work_in(work, longest)
        self._plan[0] = 0
        entries()["search"](NOWHERE, NOWHERE, at(step), *self._call)
        del lengths
        return int(self._plan[0])

    def encode(self, tokens: Any, positions: Any, longest: int, starts: Any, work: dict[str, Any]) -> Any:
        """Tokens of inputs that begin at `starts` through an encoder, (tokens, d)."""
        self._plan[7:11] = at(tokens), at(positions), at(starts), len(starts) - 1
        ends = [int(np.searchsorted(starts, last)) for _, last in split_range(len(tokens), MANY)]
        pieces = [(first, last) for first, last in pairwise([0, *ends]) if first < last]  # of inputs
        if len(pieces) < 2:
            return self._run(len(tokens), longest, work, [(0, len(tokens))])
        kept = [np.ascontiguousarray(starts[first : last + 1] - starts[first]) for first, last in pieces]
        own = [(at(each), len(each) - 1) for each in kept]
        return self._run(len(tokens), longest, work, [(int(starts[a]), int(starts[b])) for a, b in pieces], own)

    def _run(
        self,
        rows: int,
        longest: int,
        work: dict[str, Any],
        pieces: Sequence[tuple[int, int]],
        inputs: Sequence[Any] | None = None,
    ) -> Any:
        self._plan[0] = rows
        self._work_in(work, longest)
        entry = entries()[self.name]
        if len(pieces) == 1:
            entry(NOWHERE, NOWHERE, *self._call)
        else:
            widths = np.array([4 * work[name].shape[1] if name in work else 0 for name in WORK])
            plans = [self._piece(first, last, widths) for first, last in pieces]
            for plan, given in zip(plans, inputs or (), strict=False):
                plan[9:11] = given
            parallel_for(lambda i: entry(NOWHERE, NOWHERE, at(plans[i]), *self._call[1:]), len(pieces))
        return work["h"] if self._side.norm_first else work["x"]

    def _work_in(self, work: dict[str, Any], longest: int) -> None:
        """Memory to work in, and embeddings of positions less than `longest`."""
        table = self._side.positions.up_to(longest)
        self._plan[13:15] = self._place(table), len(table)
        if self._work is not (memory := work["x"].base):  # which is the same for any number of rows
            self._plan[23:32] = [at(work[name]) if name in work else 0 for name in WORK]
            self._work = memory

    def _piece(self, first: int, last: int, widths: Any) -> Any:
        """The plan of some rows: their numbers lie in the same arrays, further on."""
        plan = self._plan.copy()
        plan[0] = last - first
        plan[7:11] += 4 * first
        plan[23:32] += first * widths
        return plan

    def _place(self, array: Any) -> int:
        """Where an array lies that is likely to be asked for again. It is not kept: a tree goes with its decode."""
        found = self._lasting.get(id(array))
        if found is None or found[0]() is not array:
            if len(self._lasting) > 256:
                self._lasting.clear()
            found = self._lasting[id(array)] = (ref(array), at(np.asarray(array)))
        return int(found[1])


def _products(layer: Any) -> list[Any]:
    cross = [layer.cross_q, layer.cross_out] if hasattr(layer, "cross_kv") else []
    return [layer.qkv, layer.own_out, *cross, layer.fc1, layer.fc2]


def _places(product: Any) -> tuple[int, ...]:
    """A product's weights and bias; in eight bits also what sums begin with, and scales."""
    if product.packed is None:
        return at(product.weights), at(product.bias), 0, 0
    weights, start, scales = product.packed
    return at(weights), at(product.bias), at(start), at(scales)


def deepest(layers: Sequence[Any]) -> int:
    """The most inputs of any product of theirs."""
    return max(product.inputs for layer in layers for product in _products(layer))
