"""Libraries: kernels compiled ahead of time, so that neither numba is loaded nor anything compiled when a model is first used.

They are the package's, one for every level of x86-64 on Linux (`registers`), made by `make kernels`, and known by the kernels'
sources and the kind of CPU. Elsewhere, or when the sources have changed since, they are compiled by numba the first time and kept
(`compiling`).
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from .registers import LEVEL

HERE = Path(__file__).parent
SOURCES = (
    "attention.py", "code.py", "entries.py", "int8.py", "kernels.py", "level_searches.py", "registers.py", "search_plan.py",
    "search_state.py", "searches.py", "step_searches.py", "strict_searches.py", "tiles.py", "tops.py",
)  # fmt: skip
SHIPPED = HERE / "built"
PREFIX = "bestfirst_"  # of an entry's symbol


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
