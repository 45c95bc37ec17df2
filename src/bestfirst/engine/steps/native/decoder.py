"""NativeDecoder, NativeEncoder: a BART-like model on compiled kernels (`calls`) and numpy, on a CPU, without torch.

A pass is one compiled call (`WholePass`) where all layers are compiled and alike, else it goes layer by layer here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from itertools import accumulate, chain
from threading import RLock
from typing import Any

import numpy as np

from ....models.reader import Prompt
from ..bart_weights import BartSide, BartWeights, JoinedLayer
from ..step_rows import NativeSources, NativeTree, Pages, Rows, check_range
from . import calls as kernels
from .parts import PackedBytes, Product, ResidualStream, Workspace, embed, feed_forward, native_norms, quantised_size
from .registers import HERE
from .whole import WholePass, most_inputs

MULTIPLE = kernels.LANES  # the output projection takes rows in multiples of this; a step's last ones are padded
WIDE = 500  # above this width `wide_top` (selection) is faster than `kernels.top` (insertion)


class NativeSide:
    """The layers of an encoder or a decoder, and a workspace for one pass at a time."""

    def __init__(self, side: BartSide, pages: Pages, eight_bits: bool) -> None:
        self.side = side
        self.layers = [JoinedLayer(layer, partial(Product, pages, eight_bits=eight_bits)) for layer in side.layers]
        self.norms = native_norms(side)
        self.whole = WholePass(side, self.layers, self.norms) if WholePass.takes(side, self.layers, self.norms) else None
        d, inner = side.width, max(layer.fc1.outputs for layer in self.layers)
        quantised = quantised_size(most_inputs(self.layers)) // 4  # in float32 numbers
        self.workspace = Workspace(x=d, h=d, y=d, q=d, attended=d, qkv=3 * d, inner=inner, quantised=quantised, scales=1)

    def with_own_workspace(self) -> Any:
        """The same weights with a workspace of its own, for another thread."""
        other = copy(self)
        other.workspace = self.workspace.with_own_workspace()
        other.whole = None if self.whole is None else self.whole.with_own_workspace()
        return other


class NativeEncoder(NativeSide):
    """An encoder of token ids. Inputs are concatenated: nothing is padded."""

    def __call__(self, inputs: Sequence[Sequence[int]]) -> Any:
        """The output for inputs that `check` accepts, concatenated, (tokens, d); valid until the next call."""
        lengths = [len(tokens) for tokens in inputs]
        starts = np.array([0, *accumulate(lengths)])
        tokens = np.fromiter(chain.from_iterable(inputs), np.int32, starts[-1])
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        w = self.workspace.of(int(starts[-1]))
        if self.whole is not None:
            return self.whole.encode(tokens, positions, max(lengths), starts, w)
        embed(self.side, tokens, positions, max(lengths), w["x"])
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, qkv, attended = w["y"], w["qkv"], w["attended"]
        for layer in self.layers:
            layer.qkv(stream.h, qkv)
            kernels.self_attention(qkv, layer.qkv.bias, starts, layer.heads, layer.scaling, attended)
            layer.own_out(attended, y)
            stream.add(y, layer.own_out.bias)
            feed_forward(layer, stream.h, w["inner"], y)
            stream.add(y, layer.fc2.bias)
        return stream.h

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise ValueError, naming the value, for an input with too many tokens or with an unknown token id."""
        lengths = np.array([len(tokens) for tokens in inputs])
        positions = len(self.side.positions.up_to(int(lengths.max())))
        check_range("the number of an input's tokens", lengths, positions + 1, first=1)
        check_range("an input token's id", np.fromiter(chain.from_iterable(inputs), np.int64), len(self.side.embedding))


class NativeDecoder(NativeSide):
    """A `DecoderStep` of a BART-like decoder without torch, and its encoder. Trees and sources hold arrays."""

    name = "native"
    mode: Any = nullcontext
    has_attention = True
    by_place = False
    records_attention = False  # whether to record each step's `attention`
    attention: Any  # (rows, source) of the last step: mean over the heads of the last layer
    lock: Any = None  # guards the workspace, which is for one pass at a time; None: the model's own lock does

    def __init__(self, weights: BartWeights, eight_bits: bool = False) -> None:
        """`weights`: of float32 numpy arrays. `eight_bits`: quantise matmuls to int8 where the CPU can multiply bytes."""
        pages = Pages()
        super().__init__(weights.decoder, pages, eight_bits)
        self.width = d = self.side.width
        self._keys_values = Workspace(keys_values=2 * d)
        bias = weights.head.bias
        self.head_bias = None if bias is None or not bias.any() else bias.reshape(-1, 1)
        self.head = np.ascontiguousarray(weights.head.weight)
        self.packed = PackedBytes.of(self.head) if eight_bits and HERE.eight is not None else None
        self.eight_bits = self.packed is not None
        if eight_bits and not self.eight_bits:
            warnings.warn("this CPU has neither VNNI nor AVX2: dtype 'int8' is computed in fp32", stacklevel=2)
        self.tiled = kernels.suit(d)  # whether the output projection runs on tiles
        self._transposed = self._logits = np.empty(0, np.float32)
        self.encoder: Any = None if weights.encoder is None else NativeEncoder(weights.encoder, pages, eight_bits)

    def with_own_workspace(self) -> Any:
        other = super().with_own_workspace()
        other._keys_values, other.lock = self._keys_values.with_own_workspace(), RLock()
        other.encoder = None if self.encoder is None else self.encoder.with_own_workspace()
        other._transposed = other._logits = np.empty(0, np.float32)
        return other

    def new_tree(self, model: Any = None, tokens: int = 0) -> tuple[Any, Any]:
        """A new tree and new sources. With `tokens`, the sources hold one dummy input of that length."""
        sources = NativeSources()
        if tokens:
            self._reserve([tokens], sources)
        return NativeTree(), sources

    # -- inputs ----------------------------------------------------------------------------------------------------------

    def add_inputs(self, model: Any, prompts: Sequence[Prompt], sources: Any) -> list[int]:
        """Encode inputs and store their cross-attention keys and values. Returns their places in `sources`."""
        inputs = [prompt.source for prompt in prompts]
        self.encoder.check(inputs)
        return self._add(lambda first, end: self.encoder(inputs[first:end]), [len(tokens) for tokens in inputs], sources)

    def _reserve(self, lengths: list[int], sources: Any) -> Any:
        return sources.reserve(lengths, len(self.layers), self.layers[0].heads, self.layers[0].size)

    def _add(self, hidden_of: Callable[[int, int], Any], lengths: list[int], sources: Any) -> list[int]:
        """Store the keys and values of inputs, batch by batch. `hidden_of(first, end)`: their encoder output, (tokens, d)."""
        places = self._reserve(lengths, sources)
        for first, end in batches(lengths):
            hidden, starts = hidden_of(first, end), np.array([0, *accumulate(lengths[first:end])])
            keys_values = self._keys_values.of(len(hidden))["keys_values"]
            for layer, out in zip(self.layers, sources.layers, strict=True):
                layer.cross_kv(hidden, keys_values)
                kernels.put(keys_values, layer.cross_kv.bias, starts, places[first], out)
        return list(places)

    # -- a step ----------------------------------------------------------------------------------------------------------

    def step(self, rows: Rows, tree: Any, sources: Any) -> Any:
        """Logits of the next token, (rows, vocabulary), valid until the next step. Stores the rows' own keys and values."""
        longest = rows.paths.shape[1]
        w = self.workspace.of(len(rows))
        rows.check(len(self.side.embedding), len(self.side.positions.up_to(longest)), tree.capacity, len(sources))
        if self.whole is not None and not self.records_attention:
            return self._project(self.whole.decode(rows, tree, sources, w))
        slots, positions, places = rows.slots, rows.positions, rows.sentences
        embed(self.side, rows.tokens, positions, longest, w["x"])
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, q, qkv, attended = w["y"], w["q"], w["qkv"], w["attended"]
        lengths = np.array(sources.lengths)
        for index, layer in enumerate(self.layers):
            pool, keys_values = tree.layer(index, self.width).reshape(-1, 2 * self.width), sources.layers[index]
            layer.qkv(stream.h, qkv)
            kernels.own_attention(qkv, layer.qkv.bias, pool, tree.paths, slots, positions, layer.heads, layer.scaling, attended)
            layer.own_out(attended, y)
            stream.add(y, layer.own_out.bias)
            layer.cross_q(stream.h, q)
            if self.records_attention and index == len(self.layers) - 1:
                self.attention = attention_weights(q + layer.cross_q.bias, keys_values[0], lengths, places, layer.scaling)
            kernels.cross_attention(q, layer.cross_q.bias, keys_values, lengths, places, layer.scaling, attended)
            layer.cross_out(attended, y)
            stream.add(y, layer.cross_out.bias)
            feed_forward(layer, stream.h, w["inner"], y)
            stream.add(y, layer.fc2.bias)
        return self._project(stream.h)

    def prefill(self, rows: Rows, tree: Any, sources: Any) -> None:
        """Prefill: as `step`, for whole prompts from their first token, without logits."""
        self.step(rows, tree, sources)

    def _project(self, h: Any) -> Any:
        """Logits (rows, vocabulary) of h (rows, d), in fp32 as a view of (vocabulary, rows), up to 1.5 times as fast."""
        n, tokens = len(h), len(self.head)
        if self.packed is not None:  # in int8 that is no faster: rows are contiguous
            return self._project_int8(h, self.packed)[:, :tokens]
        columns = -(-n // MULTIPLE) * MULTIPLE
        if columns * self.width > self._transposed.size:
            self._transposed = np.zeros(2 * columns * self.width, np.float32)
            self._logits = np.empty(2 * columns * tokens, np.float32)
        transposed, logits = self._transposed[: columns * self.width], self._logits[: columns * tokens].reshape(tokens, columns)
        if self.tiled:
            kernels.pack(h, self.width, transposed)
            kernels.by_rows(self.head, transposed, kernels.ZEROS, logits)
        else:
            np.matmul(self.head, h.T, out=logits[:, :n])
            logits[:, n:] = 0
        if self.head_bias is not None:
            logits += self.head_bias
        return logits[:, :n].T

    def _project_int8(self, h: Any, packed: PackedBytes) -> Any:
        n, columns = len(h), len(packed.scales)
        if n * columns > self._logits.size:
            self._logits = np.empty(2 * n * columns, np.float32)
        logits = self._logits[: n * columns].reshape(n, columns)
        packed.multiply(h, logits)
        if self.head_bias is not None:
            logits[:, : len(self.head)] += self.head_bias.T
        return logits

    def best(
        self, logits: Any, width: int, banned: Sequence[int] = (), allowed: Sequence[Any | None] | None = None
    ) -> tuple[Any, Any]:
        """Of a step's logits the top `width` log-probabilities among tokens that are not banned, and their tokens, (rows, width).

        `allowed`: for each row the tokens that may follow (None: all). As in Hugging Face, tokens that are banned or not allowed
        count in the log-sum-exp. `logits` must be as `step` returned them, and are overwritten.
        """
        n, vocabulary = logits.shape
        values, tokens = np.empty((n, width), np.float32), np.empty((n, width), np.int64)
        forbidden = np.array(banned, np.int64)
        if self.packed is not None and allowed is None:
            kernels.row_top(_with_padding(logits), vocabulary, forbidden, values, tokens)
            return values, tokens
        columns = np.ascontiguousarray(logits.T) if self.packed is not None else _with_padding(logits.T)
        if allowed is None and width > WIDE:
            return wide_top(columns, n, width, forbidden)
        if allowed is None:
            kernels.top(columns, forbidden, values, tokens)
        else:
            every = np.arange(vocabulary, dtype=np.int32)
            lists = [every if each is None else each for each in allowed]
            ends = np.cumsum([len(each) for each in lists], dtype=np.int64)
            kernels.allowed_top(columns, forbidden, np.concatenate(lists).astype(np.int32), ends, values, tokens)
        return values, tokens


def wide_top(columns: Any, n: int, width: int, banned: Any) -> tuple[Any, Any]:
    """As `kernels.top`, but by selecting and sorting instead of inserting: faster for many best tokens."""
    first, token = np.empty((n, 1), np.float32), np.empty((n, 1), np.int64)
    kernels.top(columns, banned, first, token)
    rows = np.ascontiguousarray(columns[:, :n].T) + np.float32(0)  # turns -0 into 0
    bits, last = rows.view(np.int32), np.int32((1 << 31) - 1)
    keys = np.where(bits < 0, bits ^ last, bits).astype(np.int64) << 32  # sorts by the logit's bits, then by token
    keys |= int(last) - np.arange(rows.shape[1])
    keys = np.partition(keys, rows.shape[1] - width, 1)[:, -width:]
    keys.sort(1)
    tokens = int(last) - (keys[:, ::-1] & int(last))
    with np.errstate(invalid="ignore"):
        # The log-sum-exp, from the best token's logit and log-probability; 0 where no token is possible: values stay -inf.
        total = np.where(first == -np.inf, 0, np.take_along_axis(rows, token, 1) - first)
    return np.minimum(np.take_along_axis(rows, tokens, 1) - total, 0), tokens


def _with_padding(lines: Any) -> Any:
    """A contiguous view of lines (n, width) that includes the padding behind each of them."""
    n, _ = lines.shape
    return np.lib.stride_tricks.as_strided(lines, (n, lines.strides[0] // lines.itemsize), lines.strides)


def attention_weights(q: Any, keys: Any, lengths: Any, places: Any, scaling: Any) -> Any:
    """Cross-attention weights of queries (rows, d), mean over heads, (rows, source). `keys` (sources, heads, length, size)."""
    heads, size = keys.shape[1], keys.shape[3]
    out = np.zeros((len(q), int(lengths[places].max())), np.float32)
    for row, place in enumerate(places):
        n = lengths[place]
        x = keys[place, :, :n] @ q[row].reshape(heads, size, 1) * scaling  # (heads, n, 1)
        x = np.exp(x - x.max(1, keepdims=True))
        out[row, :n] = (x / x.sum(1, keepdims=True)).mean(0)[:, 0]
    return out


def batches(lengths: Sequence[int], tokens: int = 1024) -> Iterator[tuple[int, int]]:
    """Consecutive inputs in batches, as (first, end), of about so many tokens: fast matmuls that stay in the cache."""
    first = total = 0
    for i, length in enumerate(lengths):
        if total and total + length > tokens:
            yield first, i
            first, total = i, 0
        total += length
    if total:
        yield first, len(lengths)
