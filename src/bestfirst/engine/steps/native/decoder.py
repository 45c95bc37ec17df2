"""A BART-like model, compiled (`entries`): its encoder, and its decoder on the tree. On a CPU, numpy alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
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
from .parts import PackedBytes, Product, ResidualStream, Workspace, byte_room, embed, feed_forward, native_norms
from .registers import HERE
from .whole import WholePass, deepest

MULTIPLE = kernels.LANES  # of rows: what the product with the vocabulary works through at a time; a step's last few are filled up
WIDE = 500  # of more than so many best tokens, selecting them is faster than a place for each
NOTHING = np.empty(0, np.int64)


class NativeSide:
    """The layers of an encoder or a decoder, and memory to work in."""

    def __init__(self, side: BartSide, pages: Pages, eight_bits: bool) -> None:
        self.side = side
        self.layers = [JoinedLayer(layer, partial(Product, pages, eight_bits=eight_bits)) for layer in side.layers]
        self.norms = native_norms(side)
        self.whole = WholePass(side, self.layers, self.norms) if WholePass.takes(side, self.layers, self.norms) else None
        d, inner = side.width, max(layer.fc1.outputs for layer in self.layers)
        octets = byte_room(deepest(self.layers)) // 4
        self.workspace = Workspace(x=d, h=d, y=d, q=d, seen=d, qkv=3 * d, inner=inner, room=octets, scales=1)

    def again(self) -> Any:
        """The same weights, with memory of its own to work in."""
        made = copy(self)
        made.workspace = self.workspace.again()
        made.whole = None if self.whole is None else self.whole.again()
        return made


class NativeEncoder(NativeSide):
    """An encoder of token ids. Inputs stand one after another: nothing is padded."""

    def __call__(self, inputs: Sequence[Sequence[int]]) -> Any:
        """The encoder's output for all inputs' tokens, one input after another, (tokens, d), until the next call.

        Inputs that `check` takes: kernels do not look.
        """
        lengths = [len(tokens) for tokens in inputs]
        starts = np.array([0, *accumulate(lengths)])
        tokens = np.fromiter(chain.from_iterable(inputs), np.int32, starts[-1])
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        w = self.workspace.of(int(starts[-1]))
        if self.whole is not None:
            return self.whole.encode(tokens, positions, max(lengths), starts, w)
        embed(self.side, tokens, positions, max(lengths), w["x"])
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, qkv, seen = w["y"], w["qkv"], w["seen"]
        for layer in self.layers:
            layer.qkv(stream.h, qkv)
            kernels.self_attention(qkv, layer.qkv.bias, starts, layer.heads, layer.scaling, seen)
            layer.own_out(seen, y)
            stream.add(y, layer.own_out.bias)
            feed_forward(layer, stream.h, w["inner"], y)
            stream.add(y, layer.fc2.bias)
        return stream.h

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise ValueError, naming the value, for an input that it cannot take."""
        lengths = np.array([len(tokens) for tokens in inputs])
        positions = len(self.side.positions.up_to(int(lengths.max())))
        check_range("the number of an input's tokens", lengths, positions + 1, first=1)
        check_range("an input token's id", np.fromiter(chain.from_iterable(inputs), np.int64), len(self.side.embedding))


class NativeDecoder(NativeSide):
    """A step of a BART-like decoder, and what encodes its inputs: a `DecoderStep` without torch. Trees and sources may be of
    numpy's arrays or of tensors."""

    name = "native"
    attends = True
    by_place = False
    watching = False  # whether to keep `attention`, (rows, source), of each step: the mean over the heads of the last layer
    attention: Any
    lock: Any = None  # who runs it: it has memory for one pass; None where the model's own is taken

    def __init__(self, weights: BartWeights, eight_bits: bool = False) -> None:
        """Weights whose arrays are numpy's, float32; `eight_bits`: products are taken in these, where the CPU can."""
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
        self.tiled = kernels.suit(d)  # whether tiles multiply with it
        self._transposed = self._logits = np.empty(0, np.float32)
        self.encoder: Any = None if weights.encoder is None else NativeEncoder(weights.encoder, pages, eight_bits)

    def again(self) -> Any:
        made = super().again()
        made._keys_values, made.lock = self._keys_values.again(), RLock()
        made.encoder = None if self.encoder is None else self.encoder.again()
        made._transposed = made._logits = np.empty(0, np.float32)
        return made

    def room(self, model: Any = None, tokens: int = 0) -> tuple[Any, Any]:
        """A new tree and new sources; with `tokens`, one input of so many is there."""
        sources = NativeSources()
        if tokens:
            self.reserve([tokens], sources)
        return NativeTree(), sources

    # -- inputs ----------------------------------------------------------------------------------------------------------

    def take_in(self, model: Any, prompts: Sequence[Prompt], sources: Any) -> list[int]:
        """Encode inputs. Returns their places among the sources."""
        inputs = [prompt.source for prompt in prompts]
        self.encoder.check(inputs)
        lengths = [len(tokens) for tokens in inputs]
        places = self.reserve(lengths, sources)
        for first, last in batches(lengths):
            self.put(self.encoder(inputs[first:last]), lengths[first:last], places[first], sources)
        return list(places)

    def take_encoded(self, hidden: Any, lengths: list[int], sources: Any) -> list[int]:
        """The same for inputs that are encoded, `hidden` (tokens, d) one after another."""
        starts, places = [0, *accumulate(lengths)], self.reserve(lengths, sources)
        for first, last in batches(lengths):
            self.put(hidden[starts[first] : starts[last]], lengths[first:last], places[first], sources)
        return list(places)

    def reserve(self, lengths: list[int], sources: Any) -> Any:
        """Places for inputs of these lengths."""
        return sources.reserve(lengths, len(self.layers), self.layers[0].heads, self.layers[0].size)

    def put(self, hidden: Any, lengths: Sequence[int], first: int, sources: Any) -> None:
        """The keys and values of encoded inputs, `hidden` (tokens, d) one after another, to the places from `first` on."""
        starts = np.array([0, *accumulate(lengths)])
        keys_values = self._keys_values.of(len(hidden))["keys_values"]
        for index, layer in enumerate(self.layers):
            layer.cross_kv(hidden, keys_values)
            kernels.put(keys_values, layer.cross_kv.bias, starts, first, np.asarray(sources.layers[index]))

    # -- a step ----------------------------------------------------------------------------------------------------------

    def step(self, rows: Rows, tree: Any, sources: Any) -> Any:
        """Logits of the next token, (rows, vocabulary), until the next step; the rows' own keys and values go to their slots."""
        longest = rows.paths.shape[1]
        w = self.workspace.of(len(rows))
        rows.check(len(self.side.embedding), len(self.side.positions.up_to(longest)), tree.capacity, len(sources))
        if self.whole is not None and not self.watching:
            return self._vocabulary(self.whole.decode(rows, tree, sources, w))
        slots, positions, places = np.asarray(rows.slots), np.asarray(rows.positions), np.asarray(rows.sentences)
        embed(self.side, np.asarray(rows.tokens), positions, longest, w["x"])
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, q, qkv, seen = w["y"], w["q"], w["qkv"], w["seen"]
        paths, lengths = np.asarray(tree.paths), np.array(sources.lengths)
        for index, layer in enumerate(self.layers):
            pool = np.asarray(tree.layer(index, self.width)).reshape(-1, 2 * self.width)
            keys_values = np.asarray(sources.layers[index])
            layer.qkv(stream.h, qkv)
            kernels.own_attention(qkv, layer.qkv.bias, pool, paths, slots, positions, layer.heads, layer.scaling, seen)
            layer.own_out(seen, y)
            stream.add(y, layer.own_out.bias)
            layer.cross_q(stream.h, q)
            if self.watching and index == len(self.layers) - 1:
                self.attention = looks(q + layer.cross_q.bias, keys_values[0], lengths, places, layer.scaling)
            kernels.cross_attention(q, layer.cross_q.bias, keys_values, lengths, places, layer.scaling, seen)
            layer.cross_out(seen, y)
            stream.add(y, layer.cross_out.bias)
            feed_forward(layer, stream.h, w["inner"], y)
            stream.add(y, layer.fc2.bias)
        return self._vocabulary(stream.h)

    def read(self, rows: Rows, tree: Any, sources: Any) -> None:
        """As `step`, for whole prompts from their first token, whose logits nobody needs."""
        self.step(rows, tree, sources)

    def _vocabulary(self, h: Any) -> Any:
        """The last product, (rows, vocabulary) as a view of (vocabulary, rows): that way round it is up to a half faster.

        In eight bits it is not, and rows stand together.
        """
        n, tokens = len(h), len(self.head)
        if self.packed is not None:
            return self._eight_bits(h, self.packed)[:, :tokens]
        columns = -(-n // MULTIPLE) * MULTIPLE
        if columns * self.width > self._transposed.size:
            self._transposed = np.zeros(2 * columns * self.width, np.float32)
            self._logits = np.empty(2 * columns * tokens, np.float32)
        turned, logits = self._transposed[: columns * self.width], self._logits[: columns * tokens].reshape(tokens, columns)
        if self.tiled:
            kernels.pack(h, self.width, turned)
            kernels.by_rows(self.head, turned, kernels.ZEROS, logits)
        else:
            np.matmul(self.head, h.T, out=logits[:, :n])
            logits[:, n:] = 0
        if self.head_bias is not None:
            logits += self.head_bias
        return logits[:, :n].T

    def _eight_bits(self, h: Any, packed: PackedBytes) -> Any:
        n, columns = len(h), len(packed.scales)
        if n * columns > self._logits.size:
            self._logits = np.empty(2 * n * columns, np.float32)
        logits = self._logits[: n * columns].reshape(n, columns)
        packed.multiply(h, logits)
        if self.head_bias is not None:
            logits[:, : len(self.head)] += self.head_bias.T
        return logits

    def best(self, logits: Any, width: int, banned: Any, allowed: Sequence[Any | None] | None = None) -> tuple[Any, Any]:
        """Of a step's logits, the log-probabilities of the best tokens that are not banned, and these tokens, (rows, width).

        As Hugging Face does it: what is banned counts in the sum, as does what is not `allowed`, where each row may have tokens
        of its own (None: all). The logits, as `step` gave them, are used up.
        """
        n, vocabulary = logits.shape
        values, tokens = np.empty((n, width), np.float32), np.empty((n, width), np.int64)
        forbidden = NOTHING if banned is None else banned
        if self.packed is not None and allowed is None:
            kernels.row_top(_whole(logits), vocabulary, forbidden, values, tokens)
            return values, tokens
        columns = np.ascontiguousarray(logits.T) if self.packed is not None else _whole(logits.T)
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
    """As `kernels.top`, which finds each of the best its place among those before it. Here they are selected, then sorted, by a
    number made of the logit's bits, in the order of the numbers, and the token."""
    first, token = np.empty((n, 1), np.float32), np.empty((n, 1), np.int64)
    kernels.top(columns, banned, first, token)
    rows = np.ascontiguousarray(columns[:, :n].T) + np.float32(0)  # 0 in place of -0
    bits, last = rows.view(np.int32), np.int32((1 << 31) - 1)
    keys = np.where(bits < 0, bits ^ last, bits).astype(np.int64) << 32
    keys |= int(last) - np.arange(rows.shape[1])
    keys = np.partition(keys, rows.shape[1] - width, 1)[:, -width:]
    keys.sort(1)
    tokens = int(last) - (keys[:, ::-1] & int(last))
    with np.errstate(invalid="ignore"):
        whole = np.where(first == -np.inf, 0, np.take_along_axis(rows, token, 1) - first)  # where nothing is possible, -inf
    return np.minimum(np.take_along_axis(rows, tokens, 1) - whole, 0), tokens


def _whole(lines: Any) -> Any:
    """Lines with what was filled up behind each, if anything was: they stand one after another in memory."""
    n, _ = lines.shape
    return np.lib.stride_tricks.as_strided(lines, (n, lines.strides[0] // lines.itemsize), lines.strides)


def looks(q: Any, keys: Any, lengths: Any, places: Any, scaling: Any) -> Any:
    """The attention of queries (rows, d) to their sources, (rows, source), mean over heads; `keys` (sources, heads, .., size)."""
    heads, size = keys.shape[1], keys.shape[3]
    out = np.zeros((len(q), int(lengths[places].max())), np.float32)
    for row, place in enumerate(places):
        n = lengths[place]
        x = keys[place, :, :n] @ q[row].reshape(heads, size, 1) * scaling  # (heads, n, 1)
        x = np.exp(x - x.max(1, keepdims=True))
        out[row, :n] = (x / x.sum(1, keepdims=True)).mean(0)[:, 0]
    return out


def batches(lengths: Sequence[int], tokens: int = 1024) -> Iterator[tuple[int, int]]:
    """Inputs one after another, as (first, last + 1): so many tokens together that products are fast and stay in the cache."""
    first = total = 0
    for i, length in enumerate(lengths):
        if total and total + length > tokens:
            yield first, i
            first, total = i, 0
        total += length
    if total:
        yield first, len(lengths)
