"""Objects: kernels compiled ahead of time, so that neither numba is loaded nor anything compiled when a model is first used.

They are the package's (`libraries`). Elsewhere than on Linux on x86-64, or when the kernels' sources have changed since, they are
compiled by numba the first time and kept (`compiling`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from .libraries import PREFIX, shipped
from .registers import LEVEL
from .signatures import SIGNATURES

KINDS: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float}


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
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *(KINDS[each] for each in letters))
        made[name] = kind(address(PREFIX + name))
    return made


RESULT = ctypes.create_string_buffer(64)  # where an entry puts that it returns nothing, and why it failed, which it does not
NOWHERE = ctypes.addressof(RESULT)
