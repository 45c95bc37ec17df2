"""Entries: the functions that are compiled ahead of time and called by `calls`: kernels and tiles as they are, and here, made of
these, all layers of a model in one call, and steps of compiled searches, which take plain numbers and addresses.

`p` is the plan of a forward pass (`search_plan`). `w` has four addresses for each projection of a layer (`whole._addresses`): of
its weights and bias, and in int8 of initial sums and scales.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from . import attention, int8, kernels, search_state, searches, tiles, tops
from . import search_plan as s
from .code import floats, ints, longs, octets, signed
from .registers import HERE, SIGNATURES

EIGHT_BITS = HERE.eight is not None
QKV, OWN_OUT, CROSS_Q, CROSS_OUT, FC1, FC2 = range(6)  # projections of a decoder layer, in the order of `whole._products`
ENCODER_FC1, ENCODER_FC2 = range(2, 4)  # of an encoder layer, which has no cross-attention


@njit
def multiply_int8(
    x: int, rows: int, inputs: int, scratch: int, row_scales: int, weights: int, start: int, scales: int, out: int, outputs: int
) -> None:
    """Quantise x into `scratch` and multiply. Does nothing on a CPU without the instructions, where it is not called."""
    if EIGHT_BITS:
        depth = int8.padded(inputs)
        quantised, factors = octets(scratch, (rows, int8.COPIES, depth)), floats(row_scales, (rows,))
        int8.quantise(floats(x, (rows, inputs)), quantised, factors)
        int8.multiply(
            quantised, factors, signed(weights, (outputs, depth)), ints(start, (outputs,)), floats(scales, (outputs,)),
            floats(out, (rows, outputs)), 0,
        )  # fmt: skip


@njit(inline="always")
def _begin(p: Any, norms: Any, embed_scale: float, epsilon: float) -> int:
    """The first layer's input: embed, and normalise as the model does. Returns how many of the layers' norms were used."""
    rows, d = p[s.P_ROWS], p[s.P_D]
    x = floats(p[s.P_X_AT], (rows, d))
    kernels.embed(
        ints(p[s.P_TOKENS_AT], (rows,)), ints(p[s.P_POSITIONS_AT], (rows,)),
        floats(p[s.P_EMBEDDING_AT], (p[s.P_VOCABULARY], d)), embed_scale, floats(p[s.P_TABLE_AT], (p[s.P_TABLE_ROWS], d)), x,
    )  # fmt: skip
    if p[s.P_NORM_AT] != 0:
        kernels.norm(x, floats(p[s.P_NORM_AT], (d,)), floats(p[s.P_NORM_BIAS_AT], (d,)), epsilon, x)
    if p[s.P_NORM_FIRST] == 0:
        return 0
    kernels.norm(x, floats(norms[0, 0], (d,)), floats(norms[0, 1], (d,)), epsilon, floats(p[s.P_H_AT], (rows, d)))
    return 1


@njit(inline="always")
def _multiply(p: Any, x: int, inputs: int, w: Any, product: int, out: int, outputs: int) -> None:
    """x times one of the layer's projections, without its bias."""
    weights, start, scales = w[4 * product], w[4 * product + 2], w[4 * product + 3]
    if scales == 0:
        tiles.by_panels(
            floats(x, (p[s.P_ROWS], inputs)), floats(weights, (outputs * inputs,)), p[s.P_BLOCK],
            floats(p[s.P_ZEROS_AT], (tiles.PANEL,)), floats(out, (p[s.P_ROWS], outputs)),
        )  # fmt: skip
    else:
        multiply_int8(x, p[s.P_ROWS], inputs, p[s.P_QUANTISED_AT], p[s.P_SCALES_AT], weights, start, scales, out, outputs)


@njit(inline="always")
def _add(p: Any, bias: int, norms: Any, n: int, epsilon: float) -> None:
    """Add a block's output, in y, and its last bias to the residual stream, and normalise it for the next block."""
    rows, d = p[s.P_ROWS], p[s.P_D]
    out = floats(p[s.P_H_AT] if p[s.P_NORM_FIRST] else p[s.P_X_AT], (rows, d))
    kernels.add_norm(
        floats(p[s.P_X_AT], (rows, d)), floats(p[s.P_Y_AT], (rows, d)), floats(bias, (d,)), floats(norms[n, 0], (d,)),
        floats(norms[n, 1], (d,)), epsilon, out,
    )  # fmt: skip


@njit
def _feed_forward(p: Any, h: int, w: Any, fc1: int) -> None:
    """Projection `fc1`, the activation, and the next projection (fc2) without its bias."""
    rows, d, inner = p[s.P_ROWS], p[s.P_D], p[s.P_INNER]
    _multiply(p, h, d, w, fc1, p[s.P_INNER_AT], inner)
    kernels.activate(floats(p[s.P_INNER_AT], (rows, inner)), floats(w[4 * fc1 + 1], (inner,)), p[s.P_ACTIVATION])
    _multiply(p, p[s.P_INNER_AT], inner, w, fc1 + 1, p[s.P_Y_AT], d)


@njit
def decoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of a decoder. `plan`, `products` and `norms` are addresses, as `whole.WholePass` makes them."""
    first = longs(plan, (s.PLAN,))
    layers = first[s.P_LAYERS]
    p, weights, every = longs(plan, (s.PLAN + 2 * layers,)), longs(products, (layers, 24)), longs(norms, (3 * layers + 1, 2))
    rows, d, heads = p[s.P_ROWS], p[s.P_D], p[s.P_HEADS]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[s.P_H_AT] if p[s.P_NORM_FIRST] else p[s.P_X_AT]
    attended = floats(p[s.P_ATTENDED_AT], (rows, d))
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, QKV, p[s.P_QKV_AT], 3 * d)
        attention.own_attention(
            floats(p[s.P_QKV_AT], (rows, 3 * d)), floats(w[4 * QKV + 1], (3 * d,)),
            floats(p[s.PLAN + i], (p[s.P_SLOTS], 2 * d)), ints(p[s.P_PATHS_AT], (p[s.P_SLOTS], p[s.P_CONTEXT])),
            ints(p[s.P_SLOTS_AT], (rows,)), ints(p[s.P_POSITIONS_AT], (rows,)), heads, scale, attended,
        )  # fmt: skip
        _multiply(p, p[s.P_ATTENDED_AT], d, w, OWN_OUT, p[s.P_Y_AT], d)
        _add(p, w[4 * OWN_OUT + 1], every, n, epsilon)
        _multiply(p, h, d, w, CROSS_Q, p[s.P_Q_AT], d)
        attention.cross_attention(
            floats(p[s.P_Q_AT], (rows, d)), floats(w[4 * CROSS_Q + 1], (d,)),
            floats(p[s.PLAN + layers + i], (2, p[s.P_SOURCES], heads, p[s.P_SOURCE_LENGTH], d // heads)),
            longs(p[s.P_LENGTHS_AT], (p[s.P_SOURCES],)), ints(p[s.P_PLACES_AT], (rows,)), scale, attended,
        )  # fmt: skip
        _multiply(p, p[s.P_ATTENDED_AT], d, w, CROSS_OUT, p[s.P_Y_AT], d)
        _add(p, w[4 * CROSS_OUT + 1], every, n + 1, epsilon)
        _feed_forward(p, h, w, FC1)
        _add(p, w[4 * FC2 + 1], every, n + 2, epsilon)
        n += 3


@kernels.compiled()
def _best(e: Any, p: Any, rows: int, width: int) -> None:
    """The output projection and the top-k tokens of each row (`NativeDecoder._project`, `best`)."""
    d, vocabulary = p[s.P_D], e[s.VOCABULARY]
    h, logits = p[s.P_H_AT] if p[s.P_NORM_FIRST] else p[s.P_X_AT], e[s.LOGITS_AT]
    banned = longs(e[s.BANNED_AT], (e[s.BANNED],))
    values, tokens = floats(e[s.BEST_OF_AT], (rows, width)), longs(e[s.TOKENS_OF_AT], (rows, width))
    weights, scales, bias_at = e[s.HEAD_AT], e[s.HEAD_SCALES_AT], e[s.HEAD_BIAS_AT]
    bias = floats(bias_at, (vocabulary if bias_at else 0,))
    if scales:
        columns = e[s.COLUMNS]
        multiply_int8(h, rows, d, p[s.P_QUANTISED_AT], p[s.P_SCALES_AT], weights, e[s.HEAD_START_AT], scales, logits, columns)
        by_row = floats(logits, (rows, columns))
        for r in range(rows):
            for token in range(bias.shape[0]):
                by_row[r, token] += bias[token]
        tops.top_of_rows(e, by_row, banned, values, tokens)
        return
    lanes = e[s.LANES]
    columns = (rows + lanes - 1) // lanes * lanes
    turned, by_token = floats(e[s.TURNED_AT], (columns * d,)), floats(logits, (vocabulary, columns))
    tiles.pack(floats(h, (rows, d)), d, turned)
    tiles.by_rows(floats(weights, (vocabulary, d)), turned, floats(p[s.P_ZEROS_AT], (tiles.PANEL,)), by_token)
    for token in range(bias.shape[0]):
        for column in range(columns):
            by_token[token, column] += bias[token]
    tops.top_of_columns(e, by_token, banned, values, tokens)


@njit
def search(step: int, plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """Run steps of all searches until one ends, its memory is used up, or LIMIT steps are done. `step`: the address of `e`."""
    e, p = longs(step, (s.STEP,)), longs(plan, (s.PLAN,))
    e[s.STEPS_RUN] = e[s.ROWS_RUN] = 0
    while True:
        e[s.REASON] = s.MORE_ROOM
        if not searches.has_room(e, p):
            return
        rows = p[s.P_ROWS] = searches.plan(e)
        if rows > 0:
            searches.write_rows(e, p, rows)
            decoder(plan, products, norms, embed_scale, scale, epsilon)
            width = searches.step_width(e, rows)
            _best(e, p, rows, width)
            e[s.STEPS_RUN] += 1
            e[s.ROWS_RUN] += rows
            e[s.REASON] = s.NOT_FINITE
            if not searches.commit(e, p, rows, width):
                return
        e[s.REASON] = s.SOME_OVER
        for place in range(e[s.SEARCHES]):
            if search_state.search_at(e, place)[s.OVER] > 0:
                return
        e[s.REASON] = s.STEPS_DONE
        if rows == 0 or e[s.STEPS_RUN] >= e[s.LIMIT]:
            return


@njit
def encoder(plan: int, products: int, norms: int, embed_scale: float, scale: float, epsilon: float) -> None:
    """All layers of an encoder. `plan`, `products` and `norms` are addresses, as `whole.WholePass` makes them."""
    p = longs(plan, (s.PLAN,))
    layers = p[s.P_LAYERS]
    weights, every = longs(products, (layers, 16)), longs(norms, (2 * layers + 1, 2))
    rows, d, heads = p[s.P_ROWS], p[s.P_D], p[s.P_HEADS]
    n = _begin(p, every, embed_scale, epsilon)
    h = p[s.P_H_AT] if p[s.P_NORM_FIRST] else p[s.P_X_AT]
    for i in range(layers):
        w = weights[i]
        _multiply(p, h, d, w, QKV, p[s.P_QKV_AT], 3 * d)
        attention.self_attention(
            floats(p[s.P_QKV_AT], (rows, 3 * d)), floats(w[4 * QKV + 1], (3 * d,)),
            longs(p[s.P_STARTS_AT], (p[s.P_INPUTS] + 1,)), heads, scale, floats(p[s.P_ATTENDED_AT], (rows, d)),
        )  # fmt: skip
        _multiply(p, p[s.P_ATTENDED_AT], d, w, OWN_OUT, p[s.P_Y_AT], d)
        _add(p, w[4 * OWN_OUT + 1], every, n, epsilon)
        _feed_forward(p, h, w, ENCODER_FC1)
        _add(p, w[4 * ENCODER_FC2 + 1], every, n + 1, epsilon)
        n += 2


FUNCTIONS = {name: kernel for part in (attention, kernels, tiles, tops) for name, kernel in vars(part).items()} | {
    "quantise": int8.quantise, "pack_bytes": int8.pack, "multiply_bytes": int8.multiply, "decoder": decoder, "encoder": encoder,
    "search": search,
}  # fmt: skip
ENTRIES = {name: FUNCTIONS[name] for name in SIGNATURES}
