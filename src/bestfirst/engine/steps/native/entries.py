"""Entries: kernels and tiles as functions of plain numbers, addresses among them, with nothing of Python in them.

These are what is compiled ahead of time (`libraries`); `calls` has each of them as a function of arrays. Arrays are C-contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from . import attention, kernels, search_plan, search_state, searches, tiles, tops
from .code import floats, ints, longs, octets, pointer
from .registers import HERE, SIGNATURES

NUMBERS = 34  # of a plan (`whole`), before those of each layer


def own_attention(
    qkv: int, bias: int, pool: int, capacity: int, paths: int, context: int, slots: int, positions: int, rows: int, d: int,
    heads: int, scale: float, out: int,
) -> None:  # fmt: skip
    attention.own_attention(
        floats(qkv, (rows, 3 * d)), floats(bias, (3 * d,)), floats(pool, (capacity, 2 * d)), ints(paths, (capacity, context)),
        ints(slots, (rows,)), ints(positions, (rows,)), heads, scale, floats(out, (rows, d)),
    )  # fmt: skip


def cross_attention(
    q: int, bias: int, keys_values: int, sources: int, heads: int, longest: int, size: int, lengths: int, places: int, rows: int,
    scale: float, out: int,
) -> None:  # fmt: skip
    d = heads * size
    attention.cross_attention(
        floats(q, (rows, d)), floats(bias, (d,)), floats(keys_values, (2, sources, heads, longest, size)),
        longs(lengths, (sources,)), ints(places, (rows,)), scale, floats(out, (rows, d)),
    )  # fmt: skip


def self_attention(
    qkv: int, bias: int, starts: int, inputs: int, tokens: int, d: int, heads: int, scale: float, out: int
) -> None:
    attention.self_attention(
        floats(qkv, (tokens, 3 * d)), floats(bias, (3 * d,)), longs(starts, (inputs + 1,)), heads, scale,
        floats(out, (tokens, d)),
    )  # fmt: skip


def put(
    keys_values: int, bias: int, starts: int, inputs: int, tokens: int, first: int, out: int, sources: int, heads: int,
    longest: int, size: int,
) -> None:  # fmt: skip
    d = heads * size
    attention.put(
        floats(keys_values, (tokens, 2 * d)), floats(bias, (2 * d,)), longs(starts, (inputs + 1,)), first,
        floats(out, (2, sources, heads, longest, size)),
    )  # fmt: skip


def norm(x: int, weight: int, shift: int, epsilon: float, out: int, rows: int, d: int) -> None:
    kernels.norm(floats(x, (rows, d)), floats(weight, (d,)), floats(shift, (d,)), epsilon, floats(out, (rows, d)))


def add_norm(x: int, y: int, bias: int, weight: int, shift: int, epsilon: float, out: int, rows: int, d: int) -> None:
    kernels.add_norm(
        floats(x, (rows, d)), floats(y, (rows, d)), floats(bias, (d,)), floats(weight, (d,)), floats(shift, (d,)), epsilon,
        floats(out, (rows, d)),
    )  # fmt: skip


def relu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.relu(floats(x, (rows, d)), floats(bias, (d,)))


def gelu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.gelu(floats(x, (rows, d)), floats(bias, (d,)))


def gelu_tanh(x: int, bias: int, rows: int, d: int) -> None:
    kernels.gelu_tanh(floats(x, (rows, d)), floats(bias, (d,)))


def silu(x: int, bias: int, rows: int, d: int) -> None:
    kernels.silu(floats(x, (rows, d)), floats(bias, (d,)))


def embed(
    tokens: int, positions: int, embedding: int, vocabulary: int, scale: float, table: int, places: int, out: int, rows: int,
    d: int,
) -> None:  # fmt: skip
    kernels.embed(
        ints(tokens, (rows,)), ints(positions, (rows,)), floats(embedding, (vocabulary, d)), scale,
        floats(table, (places, d)), floats(out, (rows, d)),
    )  # fmt: skip


def top(x: int, vocabulary: int, columns: int, banned: int, bans: int, values: int, tokens: int, rows: int, k: int) -> None:
    tops.top(floats(x, (vocabulary, columns)), longs(banned, (bans,)), floats(values, (rows, k)), longs(tokens, (rows, k)))


def row_top(x: int, vocabulary: int, columns: int, banned: int, bans: int, values: int, tokens: int, rows: int, k: int) -> None:
    tops.row_top(
        floats(x, (rows, columns)), vocabulary, longs(banned, (bans,)), floats(values, (rows, k)), longs(tokens, (rows, k))
    )  # fmt: skip


def allowed_top(
    x: int, vocabulary: int, columns: int, banned: int, bans: int, allowed: int, size: int, ends: int, values: int, tokens: int,
    rows: int, k: int,
) -> None:  # fmt: skip
    tops.allowed_top(
        floats(x, (vocabulary, columns)), longs(banned, (bans,)), ints(allowed, (size,)), longs(ends, (rows,)),
        floats(values, (rows, k)), longs(tokens, (rows, k)),
    )  # fmt: skip


def mixed(numbers: int, n: int, out: int) -> None:
    longs(out, (1,))[0] = kernels.mixed(ints(numbers, (n,)))


def pack(matrix: int, rows: int, inputs: int, block: int, packed: int, size: int) -> None:
    tiles.pack(floats(matrix, (rows, inputs)), block, floats(packed, (size,)))


def by_panels(x: int, rows: int, inputs: int, packed: int, block: int, zeros: int, out: int, outputs: int) -> None:
    tiles.by_panels(
        floats(x, (rows, inputs)), floats(packed, (outputs * inputs,)), block, floats(zeros, (tiles.PANEL,)),
        floats(out, (rows, outputs)),
    )  # fmt: skip


by_panels_entry = njit(by_panels)


def by_rows(weights: int, outputs: int, inputs: int, packed: int, zeros: int, out: int, columns: int) -> None:
    tiles.by_rows(
        floats(weights, (outputs, inputs)), floats(packed, (columns * inputs,)), floats(zeros, (tiles.PANEL,)),
        floats(out, (outputs, columns)),
    )  # fmt: skip


if HERE.eight is not None:
    from . import int8

    def quantise(x: int, rows: int, inputs: int, out: int, scales: int) -> None:
        depth = int8.padded(inputs)
        int8.quantise(floats(x, (rows, inputs)), octets(out, (rows, int8.COPIES, depth)), floats(scales, (rows,)))

    def pack_bytes(matrix: int, rows: int, inputs: int, packed: int, outputs: int, depth: int, start: int, scales: int) -> None:
        weights = carray(pointer(packed), (outputs * depth,), np.int8)  # type: ignore[call-arg]
        int8.pack(floats(matrix, (rows, inputs)), weights, ints(start, (outputs,)), floats(scales, (outputs,)))

    def multiply_bytes(
        x: int, rows: int, row_scales: int, packed: int, outputs: int, depth: int, start: int, scales: int, out: int, columns: int
    ) -> None:
        """`out` (rows, columns), of which the first `outputs` are written."""
        int8.multiply(
            octets(x, (rows, int8.COPIES, depth)), floats(row_scales, (rows,)),
            carray(pointer(packed), (outputs, depth), np.int8), ints(start, (outputs,)),  # type: ignore[call-arg]
            floats(scales, (outputs,)), floats(out, (rows, columns)),
        )  # fmt: skip

    quantised, multiplied = njit(quantise), njit(multiply_bytes)

    @njit
    def in_eight_bits(
        x: int, rows: int, inputs: int, room: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
    ) -> None:
        quantised(x, rows, inputs, room, row_scales)
        multiplied(room, rows, row_scales, weights, outputs, int8.padded(inputs), start, scales, out, outputs)
else:

    @njit
    def in_eight_bits(
        x: int, rows: int, inputs: int, room: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
    ) -> None:
        """Nothing is, on this CPU."""


@njit(inline="always")
def _begin(p: Any, norms: Any, embed_scale: float, epsilon: float) -> int:
    """Embed, normalise as the model does; returns how many norms of the layers were used."""
    rows, d = p[0], p[1]
    x = floats(p[23], (rows, d))
    kernels.embed(
        ints(p[7], (rows,)), ints(p[8], (rows,)), floats(p[11], (p[12], d)), embed_scale, floats(p[13], (p[14], d)), x
    )  # fmt: skip
    if p[15] != 0:
        kernels.norm(x, floats(p[15], (d,)), floats(p[16], (d,)), epsilon, x)
    if p[5] == 0:
        return 0
    kernels.norm(x, floats(norms[0, 0], (d,)), floats(norms[0, 1], (d,)), epsilon, floats(p[24], (rows, d)))
    return 1


@njit(inline="always")
def _multiply(p: Any, x: int, inputs: int, w: Any, product: int, out: int, outputs: int) -> None:
    """x times a layer's product: where its weights are, its bias, and in eight bits what sums begin with, and scales."""
    weights, start, scales = w[4 * product], w[4 * product + 2], w[4 * product + 3]
    if scales == 0:
        by_panels_entry(x, p[0], inputs, weights, p[33], p[32], out, outputs)
    else:
        in_eight_bits(x, p[0], inputs, p[30], p[31], weights, start, scales, out, outputs)


@njit(inline="always")
def _add(p: Any, bias: int, norms: Any, n: int, epsilon: float) -> None:
    """What a block has made, in y, to x; and its norm to what the next block gets."""
    rows, d = p[0], p[1]
    out = floats(p[24] if p[5] else p[23], (rows, d))
    kernels.add_norm(
        floats(p[23], (rows, d)), floats(p[25], (rows, d)), floats(bias, (d,)), floats(norms[n, 0], (d,)),
        floats(norms[n, 1], (d,)), epsilon, out,
    )  # fmt: skip


@njit
def _forward(p: Any, h: int, w: Any, up: int) -> None:
    """The product `up`, an activation, and the product after it."""
    rows, d, inner = p[0], p[1], p[3]
    _multiply(p, h, d, w, up, p[28], inner)
    x, b = floats(p[28], (rows, inner)), floats(w[4 * up + 1], (inner,))
    if p[6] == 0:
        kernels.relu(x, b)
    elif p[6] == 1:
        kernels.gelu(x, b)
    elif p[6] == 2:
        kernels.gelu_tanh(x, b)
    else:
        kernels.silu(x, b)
    _multiply(p, p[28], inner, w, up + 1, p[25], d)


def decoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of a decoder; `plan` as `whole.WholePass` lays it out."""
    first = longs(plan, (NUMBERS,))
    layers = first[4]
    p, weights, every = longs(plan, (NUMBERS + 2 * layers,)), longs(products, (layers, 24)), longs(norms, (3 * layers + 1, 2))
    rows, d, heads = p[0], p[1], p[2]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[24] if p[5] else p[23]
    seen = floats(p[27], (rows, d))
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, 0, p[26], 3 * d)
        attention.own_attention(
            floats(p[26], (rows, 3 * d)), floats(w[1], (3 * d,)), floats(p[NUMBERS + i], (p[18], 2 * d)),
            ints(p[17], (p[18], p[19])), ints(p[9], (rows,)), ints(p[8], (rows,)), heads, scale, seen,
        )  # fmt: skip
        _multiply(p, p[27], d, w, 1, p[25], d)
        _add(p, w[5], every, n, epsilon)
        _multiply(p, h, d, w, 2, p[29], d)
        attention.cross_attention(
            floats(p[29], (rows, d)), floats(w[9], (d,)),
            floats(p[NUMBERS + layers + i], (2, p[21], heads, p[22], d // heads)), longs(p[20], (p[21],)),
            ints(p[10], (rows,)), scale, seen,
        )  # fmt: skip
        _multiply(p, p[27], d, w, 3, p[25], d)
        _add(p, w[13], every, n + 1, epsilon)
        _forward(p, h, w, 4)
        _add(p, w[21], every, n + 2, epsilon)
        n += 3


decoder_entry = njit(decoder)


@kernels.compiled()
def _best(e: Any, p: Any, rows: int, width: int) -> None:
    """The product with the vocabulary, and the best tokens of each row (`NativeDecoder._vocabulary`, `best`)."""
    d, vocabulary = p[1], e[search_plan.VOCABULARY]
    h, logits = p[24] if p[5] else p[23], e[search_plan.LOGITS_AT]
    banned = longs(e[search_plan.BANNED_AT], (e[search_plan.BANNED],))
    values, tokens = floats(e[search_plan.BEST_OF_AT], (rows, width)), longs(e[search_plan.TOKENS_OF_AT], (rows, width))
    weights, scales, bias_at = e[search_plan.HEAD_AT], e[search_plan.HEAD_SCALES_AT], e[search_plan.HEAD_BIAS_AT]
    bias = floats(bias_at, (vocabulary if bias_at else 0,))
    if scales:
        columns = e[search_plan.COLUMNS]
        in_eight_bits(h, rows, d, p[30], p[31], weights, e[search_plan.HEAD_START_AT], scales, logits, columns)
        by_row = floats(logits, (rows, columns))
        for r in range(rows):
            for token in range(bias.shape[0]):
                by_row[r, token] += bias[token]
        tops.of_rows(e, by_row, banned, values, tokens)
        return
    lanes = e[search_plan.LANES]
    columns = (rows + lanes - 1) // lanes * lanes
    turned, by_token = floats(e[search_plan.TURNED_AT], (columns * d,)), floats(logits, (vocabulary, columns))
    tiles.pack(floats(h, (rows, d)), d, turned)
    tiles.by_rows(floats(weights, (vocabulary, d)), turned, floats(p[32], (tiles.PANEL,)), by_token)
    for token in range(bias.shape[0]):
        for column in range(columns):
            by_token[token, column] += bias[token]
    tops.of_columns(e, by_token, banned, values, tokens)


def search(step: int, plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """Steps of all searches, until one is over, or memory or the LIMIT is used up; `step` as `search_plan` lays it out."""
    e, p = longs(step, (search_plan.STEP,)), longs(plan, (NUMBERS,))
    e[search_plan.STEPS_RUN] = e[search_plan.ROWS_RUN] = 0
    while True:
        e[search_plan.REASON] = search_plan.MORE_ROOM
        if not searches.is_room(e, p):
            return
        rows = p[0] = searches.plan(e)
        if rows > 0:
            searches.lay(e, p, rows)
            decoder_entry(plan, products, norms, embed_scale, scale, epsilon)
            width = searches.width_of(e, rows)
            _best(e, p, rows, width)
            e[search_plan.STEPS_RUN] += 1
            e[search_plan.ROWS_RUN] += rows
            e[search_plan.REASON] = search_plan.NOT_FINITE
            if not searches.commit(e, p, rows, width):
                return
        e[search_plan.REASON] = search_plan.SOME_OVER
        for place in range(e[search_plan.SEARCHES]):
            if search_state.search_at(e, place)[search_plan.OVER] > 0:
                return
        e[search_plan.REASON] = search_plan.STEPS_DONE
        if rows == 0 or e[search_plan.STEPS_RUN] >= e[search_plan.LIMIT]:
            return


def encoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of an encoder."""
    p = longs(plan, (NUMBERS,))
    layers = p[4]
    weights, every = longs(products, (layers, 16)), longs(norms, (2 * layers + 1, 2))
    rows, d, heads = p[0], p[1], p[2]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[24] if p[5] else p[23]
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, 0, p[26], 3 * d)
        attention.self_attention(
            floats(p[26], (rows, 3 * d)), floats(w[1], (3 * d,)), longs(p[9], (p[10] + 1,)), heads, scale,
            floats(p[27], (rows, d)),
        )  # fmt: skip
        _multiply(p, p[27], d, w, 1, p[25], d)
        _add(p, w[5], every, n, epsilon)
        _forward(p, h, w, 2)
        _add(p, w[13], every, n + 1, epsilon)
        n += 2


ENTRIES = {globals()[name]: letters for name, letters in SIGNATURES.items()}
"""Each, and its arguments' types."""
