"""Calls: every kernel and tile as a function of arrays, without numba. What they do is said where they are written.

Arrays are C-contiguous, of the types that the kernels are compiled for (`SIGNATURES`). Where the package brings no library for
the CPU (`registers.shipped`), or the sources have changed since, numba compiles them the first time (`compiling`).
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

LEAST, MANY, FEW = 1024, 48, 8  # outputs, rows of a product, rows to find the best of, that are worth a thread

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
    for name, signature in SIGNATURES.items():
        kinds = [kind for each in signature.split() for kind in _c_kinds(each)]
        made[name] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *kinds)(address(PREFIX + name))
    return made


def _c_kinds(kind: str) -> list[Any]:
    if kind == "float":
        return [ctypes.c_float]
    return [ctypes.c_int64] * (1 if kind == "int" else 5 + 2 * int(kind[1]))


def at(array: Any) -> int:
    """Where an array's numbers are."""
    return array.__array_interface__["data"][0]


def _as_numba(given: Any) -> tuple[Any, ...]:
    """A number, or an array as numba hands it over: nobody's memory, its size, where it lies, its shape and strides."""
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
    out = np.zeros(1, np.int64)
    _mixed(numbers, out)
    return int(out[0])


# -- those whose work threads share ----------------------------------------------------------------------------------------


def _shared(n: int, least: int, run: Callable[[int, int], None]) -> None:
    """Threads share range(n), pieces of at least `least`; `run` gets the first of a piece, and its end."""
    pieces = split_range(n, least)
    parallel_for(lambda i: run(*pieces[i]), len(pieces))


def row_top(x: Any, vocabulary: int, banned: Any, values: Any, tokens: Any) -> None:
    """Threads share the rows."""
    _shared(len(x), FEW, lambda a, b: _row_top(x[a:b], vocabulary, banned, values[a:b], tokens[a:b]))


def by_panels(x: Any, packed: Any, block: int, zeros: Any, out: Any) -> None:
    """Threads share the rows."""
    _shared(len(x), MANY, lambda a, b: _by_panels(x[a:b], packed, block, zeros, out[a:b]))


def by_rows(weights: Any, packed: Any, zeros: Any, out: Any) -> None:
    """Threads share the outputs."""
    _shared(len(weights), LEAST, lambda a, b: _by_rows(weights[a:b], packed, zeros, out[a:b]))


def multiply_bytes(x: Any, row_scales: Any, packed: Any, start: Any, scales: Any, out: Any) -> None:
    """Threads share the outputs, whole panels."""
    assert HERE.eight is not None
    outputs, panel = len(packed), HERE.eight.lanes * HERE.eight.wide

    def some(begin: int, end: int) -> None:
        first, last = begin * panel, min(outputs, end * panel)
        _multiply_bytes(x, row_scales, packed[first:last], start[first:last], scales[first:last], out, first)

    _shared(-(-outputs // panel), LEAST // panel, some)
