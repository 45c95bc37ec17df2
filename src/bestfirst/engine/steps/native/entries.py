"""Entries: what is compiled ahead of time and called by `calls`: kernels and tiles as they are, and here, made of
them, all layers of a model in one call, and steps of compiled searches; those take plain numbers, addresses among them."""

from __future__ import annotations

from typing import Any

from numba import njit

from . import attention, int8, kernels, search_plan, search_state, searches, tiles, tops
from .code import floats, ints, longs, octets, signed
from .registers import HERE, SIGNATURES

NUMBERS = 34  # of a plan (`whole`), before those of each layer
EIGHT_BITS = HERE.eight is not None


@njit
def in_eight_bits(
    x: int, rows: int, inputs: int, room: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
) -> None:
    """Nothing is, on a CPU that cannot."""
    if EIGHT_BITS:
        depth = int8.padded(inputs)
        quantised, factors = octets(room, (rows, int8.COPIES, depth)), floats(row_scales, (rows,))
        int8.quantise(floats(x, (rows, inputs)), quantised, factors)
        int8.multiply(
            quantised, factors, signed(weights, (outputs, depth)), ints(start, (outputs,)), floats(scales, (outputs,)),
            floats(out, (rows, outputs)), 0,
        )  # fmt: skip


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
        tiles.by_panels(
            floats(x, (p[0], inputs)), floats(weights, (outputs * inputs,)), p[33], floats(p[32], (tiles.PANEL,)),
            floats(out, (p[0], outputs)),
        )  # fmt: skip
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
    kernels.activate(floats(p[28], (rows, inner)), floats(w[4 * up + 1], (inner,)), p[6])
    _multiply(p, p[28], inner, w, up + 1, p[25], d)


@njit
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


@njit
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
            decoder(plan, products, norms, embed_scale, scale, epsilon)
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


@njit
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


FOUND = {name: kernel for part in (attention, kernels, tiles, tops) for name, kernel in vars(part).items()} | {
    "quantise": int8.quantise, "pack_bytes": int8.pack, "multiply_bytes": int8.multiply, "decoder": decoder, "encoder": encoder,
    "search": search,
}  # fmt: skip
ENTRIES = {name: FOUND[name] for name in SIGNATURES}
"""Each, by its name."""
