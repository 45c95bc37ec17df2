"""Calls: every compiled kernel as a Python function of numpy arrays, by ctypes, without numba. `entries` documents them.

Arrays must be C-contiguous and of the types in `SIGNATURES`. Where the package has no library for the CPU (`registers.shipped`),
or the sources have changed since, numba compiles the kernels on first use (`compiling`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...threads import parallel_for, split_range
from .registers import BLOCK, HERE, LANES, LEVEL, PREFIX, SIGNATURES, ZEROS, shipped, suit  # noqa: F401

LEAST, MANY, FEW = 1024, 48, 8  # work that is worth a thread: outputs of a matmul, rows of a matmul, rows of a top-k

RESULT = ctypes.create_string_buffer(64)  # numba functions write a result and an error here; entries have neither
NOWHERE = ctypes.addressof(RESULT)


@cache
def entries() -> Mapping[str, Any]:
    """Each entry (`entries.py`) as a ctypes function of plain numbers; it releases the GIL while it runs."""
    try:
        library = ctypes.CDLL(str(shipped(LEVEL)))
    except OSError:  # no library for this CPU, or a file system mounted noexec
        if find_spec("numba") is None:
            raise
        from .compiling import compiled_here

        return linked(compiled_here().get_function_address)
    return linked(lambda symbol: ctypes.cast(library[symbol], ctypes.c_void_p).value)


def linked(address: Callable[[str], Any]) -> dict[str, Any]:
    """ctypes functions for all entries, given the address of each symbol."""
    functions = {}
    for name, signature in SIGNATURES.items():
        types = [c_type for each in signature.split() for c_type in _c_types(each)]
        functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *types)(address(PREFIX + name))
    return functions


def _c_types(kind: str) -> list[Any]:
    """The C arguments of one Python argument, as numba passes it (`_as_numba`)."""
    if kind == "float":
        return [ctypes.c_float]
    return [ctypes.c_int64] * (1 if kind == "int" else 5 + 2 * int(kind[1]))


def at(array: Any) -> int:
    """The address of an array's data."""
    return array.__array_interface__["data"][0]


def _as_numba(given: Any) -> tuple[Any, ...]:
    """An argument as numba passes it; an array as its owner and parent (none), size, item size, address, shape, strides."""
    if not isinstance(given, np.ndarray):
        return (given,)
    return 0, 0, given.size, given.itemsize, at(given), *given.shape, *given.strides


def _entry(name: str) -> Callable[..., None]:
    return lambda *given: entries()[name](NOWHERE, NOWHERE, *(number for each in given for number in _as_numba(each)))


own_attention, cross_attention, self_attention, put = map(_entry, ("own_attention", "cross_attention", "self_attention", "put"))
norm, add_norm, activate, embed = map(_entry, ("norm", "add_norm", "activate", "embed"))
top, allowed_top, pack, quantise, pack_bytes = map(_entry, ("top", "allowed_top", "pack", "quantise", "pack_bytes"))
_mixed, _row_top, _by_panels, _by_rows, _multiply_bytes = map(
    _entry, ("mixed", "row_top", "by_panels", "by_rows", "multiply_bytes")
)


def mixed(numbers: Any) -> int:
    """A checksum of int32 numbers (`kernels.mixed`)."""
    out = np.zeros(1, np.int64)
    _mixed(numbers, out)
    return int(out[0])


# -- kernels that split their work among threads ---------------------------------------------------------------------------


def _shared(n: int, least: int, run: Callable[[int, int], None]) -> None:
    """Run `run(begin, end)` on pieces of range(n), of at least `least` each, on several threads (`threads.parallel_for`)."""
    pieces = split_range(n, least)
    parallel_for(lambda i: run(*pieces[i]), len(pieces))


def row_top(x: Any, vocabulary: int, banned: Any, values: Any, tokens: Any) -> None:
    """Split by rows."""
    _shared(len(x), FEW, lambda a, b: _row_top(x[a:b], vocabulary, banned, values[a:b], tokens[a:b]))


def by_panels(x: Any, packed: Any, block: int, zeros: Any, out: Any) -> None:
    """Split by rows."""
    _shared(len(x), MANY, lambda a, b: _by_panels(x[a:b], packed, block, zeros, out[a:b]))


def by_rows(weights: Any, packed: Any, zeros: Any, out: Any) -> None:
    """Split by outputs."""
    _shared(len(weights), LEAST, lambda a, b: _by_rows(weights[a:b], packed, zeros, out[a:b]))


def multiply_bytes(x: Any, row_scales: Any, packed: Any, start: Any, scales: Any, out: Any) -> None:
    """Split by outputs, in whole panels."""
    assert HERE.eight is not None
    outputs, panel = len(packed), HERE.eight.lanes * HERE.eight.wide

    def multiply_panels(begin: int, end: int) -> None:
        first, last = begin * panel, min(outputs, end * panel)
        _multiply_bytes(x, row_scales, packed[first:last], start[first:last], scales[first:last], out, first)

    _shared(-(-outputs // panel), LEAST // panel, multiply_panels)
