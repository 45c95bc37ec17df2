"""Libraries: kernels compiled ahead of time, so that neither numba is loaded nor anything compiled when a model is first used.

They are the package's, one for every level of x86-64 on Linux (`registers`), made by `make kernels`, and known by the kernels'
sources and the kind of CPU. Elsewhere, or when the sources have changed since, they are compiled by numba the first time and kept
(`compiling`).
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .registers import LEVEL, SIGNATURES

HERE = Path(__file__).parent
SOURCES = (
    "attention.py", "code.py", "entries.py", "int8.py", "kernels.py", "level_searches.py", "registers.py", "search_plan.py",
    "search_state.py", "searches.py", "step_searches.py", "strict_searches.py", "tiles.py", "tops.py",
)  # fmt: skip
SHIPPED = HERE / "built"
PREFIX = "bestfirst_"  # of an entry's symbol
KINDS: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float}


@cache
def available() -> bool:
    """Whether there are compiled kernels, or numba to compile them."""
    return shipped(LEVEL).is_file() or find_spec("numba") is not None


def shipped(level: str | None) -> Path:
    """Where the library of a level lies, if there is one."""
    return SHIPPED / f"{sys.platform}-{platform.machine()}-{level}-{key(level)}.so"


def key(level: str | None) -> str:
    """What compiled kernels are known by: their sources, and the kind of CPU."""
    digest = sha256(b"".join((HERE / name).read_bytes().replace(b"\r\n", b"\n") for name in SOURCES))
    digest.update(f"{platform.machine()} {sys.platform} {level}".encode())
    return digest.hexdigest()[:16]


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
