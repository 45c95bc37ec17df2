"""Calls: every kernel and tile as a function of arrays, without numba. What they do is said where they are written.

Arrays are C-contiguous, of the types that the kernels are compiled for: float32, int32; int64 for lengths, starts and what `top`
finds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...threads import cuts, share
from .libraries import PREFIX, shipped
from .registers import BLOCK, HERE, LANES, LEVEL, SIGNATURES, ZEROS, suit  # noqa: F401

LEAST, MANY, FEW = 1024, 48, 8  # outputs, rows of a product, rows to find the best of, that are worth a thread

f32 = ZEROS.dtype.type
C_KINDS: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float}
RESULT = ctypes.create_string_buffer(64)  # where an entry puts that it returns nothing, and why it failed, which it does not
NOWHERE = ctypes.addressof(RESULT)


@cache
def entries() -> Mapping[str, Any]:
    """Each entry (`entries.py`) as a function of Python's numbers; it lets other threads run meanwhile."""
    try:
        library = ctypes.CDLL(str(shipped(LEVEL)))
    except OSError:  # none for this CPU, or a disk from which nothing may be run
        if find_spec("numba") is None:
            raise
        from .compiling import compiled_here

        return linked(compiled_here().get_function_address)
    return linked(lambda symbol: ctypes.cast(library[symbol], ctypes.c_void_p).value)


def linked(address: Callable[[str], Any]) -> dict[str, Any]:
    """Functions of what lies at the address of each entry's symbol."""
    made = {}
    for name, letters in SIGNATURES.items():
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *(C_KINDS[each] for each in letters))
        made[name] = kind(address(PREFIX + name))
    return made


def at(array: Any) -> int:
    """Where an array's numbers are."""
    return array.__array_interface__["data"][0]


def _run(name: str, *numbers: Any) -> None:
    entries()[name](NOWHERE, NOWHERE, *numbers)


def _shared(n: int, least: int, run: Callable[[int, int], None]) -> None:
    """Threads share range(n), pieces of at least `least`; `run` gets the first of a piece, and its end."""
    pieces = cuts(n, least)
    share(lambda i: run(*pieces[i]), len(pieces))


def own_attention(
    qkv: Any, bias: Any, pool: Any, paths: Any, slots: Any, positions: Any, heads: int, scale: Any, out: Any
) -> None:
    rows, d = out.shape
    _run(
        "own_attention", at(qkv), at(bias), at(pool), len(pool), at(paths), paths.shape[1], at(slots), at(positions), rows, d,
        heads, scale, at(out),
    )  # fmt: skip


def cross_attention(q: Any, bias: Any, keys_values: Any, lengths: Any, places: Any, scale: Any, out: Any) -> None:
    _, sources, heads, longest, size = keys_values.shape
    _run(
        "cross_attention", at(q), at(bias), at(keys_values), sources, heads, longest, size, at(lengths), at(places), len(out),
        scale, at(out),
    )  # fmt: skip


def self_attention(qkv: Any, bias: Any, starts: Any, heads: int, scale: Any, out: Any) -> None:
    _run("self_attention", at(qkv), at(bias), at(starts), len(starts) - 1, *out.shape, heads, scale, at(out))


def put(keys_values: Any, bias: Any, starts: Any, first: int, out: Any) -> None:
    tokens, inputs = len(keys_values), len(starts) - 1
    _run("put", at(keys_values), at(bias), at(starts), inputs, tokens, first, at(out), *out.shape[1:])


def norm(x: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    _run("norm", at(x), at(weight), at(shift), epsilon, at(out), *x.shape)


def add_norm(x: Any, y: Any, bias: Any, weight: Any, shift: Any, epsilon: Any, out: Any) -> None:
    _run("add_norm", at(x), at(y), at(bias), at(weight), at(shift), epsilon, at(out), *x.shape)


def _activation(name: str) -> Callable[[Any, Any], None]:
    return lambda x, bias: _run(name, at(x), at(bias), *x.shape)


relu, gelu, gelu_tanh, silu = map(_activation, ("relu", "gelu", "gelu_tanh", "silu"))


def embed(tokens: Any, positions: Any, embedding: Any, scale: Any, table: Any, out: Any) -> None:
    _run("embed", at(tokens), at(positions), at(embedding), len(embedding), scale, at(table), len(table), at(out), *out.shape)


def top(x: Any, banned: Any, values: Any, tokens: Any) -> None:
    _run("top", at(x), *x.shape, at(banned), len(banned), at(values), at(tokens), *values.shape)


def row_top(x: Any, vocabulary: int, banned: Any, values: Any, tokens: Any) -> None:
    """Threads share the rows."""
    (rows, columns), k = x.shape, values.shape[1]
    given, never, best, found = at(x), at(banned), at(values), at(tokens)

    def some(begin: int, end: int) -> None:
        at_row = given + 4 * begin * columns, best + 4 * begin * k, found + 8 * begin * k
        _run("row_top", at_row[0], vocabulary, columns, never, len(banned), *at_row[1:], end - begin, k)

    _shared(rows, FEW, some)


def allowed_top(x: Any, banned: Any, allowed: Any, ends: Any, values: Any, tokens: Any) -> None:
    given = at(banned), len(banned), at(allowed), len(allowed), at(ends)
    _run("allowed_top", at(x), *x.shape, *given, at(values), at(tokens), *values.shape)


def mixed(numbers: Any) -> int:
    out = np.zeros(1, np.int64)
    _run("mixed", at(numbers), len(numbers), at(out))
    return int(out[0])


def pack(matrix: Any, block: int, packed: Any) -> None:
    _run("pack", at(matrix), *matrix.shape, block, at(packed), len(packed))


def by_panels(x: Any, packed: Any, block: int, zeros: Any, out: Any) -> None:
    """Threads share the rows."""
    (rows, inputs), outputs = x.shape, out.shape[1]
    given, weights, start, to = at(x), at(packed), at(zeros), at(out)

    def some(begin: int, end: int) -> None:
        _run(
            "by_panels", given + 4 * begin * inputs, end - begin, inputs, weights, block, start, to + 4 * begin * outputs, outputs
        )

    _shared(rows, MANY, some)


def by_rows(weights: Any, packed: Any, zeros: Any, out: Any) -> None:
    """Threads share the outputs."""
    (_, inputs), columns = weights.shape, out.shape[1]
    first, packed_at, zeros_at, to = at(weights), at(packed), at(zeros), at(out)

    def some(begin: int, end: int) -> None:
        _run("by_rows", first + 4 * begin * inputs, end - begin, inputs, packed_at, zeros_at, to + 4 * begin * columns, columns)

    _shared(len(weights), LEAST, some)


def quantise(x: Any, out: Any, scales: Any) -> None:
    _run("quantise", at(x), *x.shape, at(out), at(scales))


def pack_bytes(matrix: Any, packed: Any, start: Any, scales: Any) -> None:
    _run("pack_bytes", at(matrix), *matrix.shape, at(packed), *packed.shape, at(start), at(scales))


def multiply_bytes(x: Any, row_scales: Any, packed: Any, start: Any, scales: Any, out: Any) -> None:
    """Threads share the outputs, whole panels."""
    (outputs, depth), (rows, columns) = packed.shape, out.shape
    assert HERE.eight is not None
    panel = HERE.eight.lanes * HERE.eight.wide
    given, weights, begun, factors, to = (at(x), rows, at(row_scales)), at(packed), at(start), at(scales), at(out)

    def some(begin: int, end: int) -> None:
        first, last = begin * panel, min(outputs, end * panel)
        _run(
            "multiply_bytes", *given, weights + first * depth, last - first, depth, begun + 4 * first, factors + 4 * first,
            to + 4 * first, columns,
        )  # fmt: skip

    _shared(-(-outputs // panel), LEAST // panel, some)
