"""Registers: tile shapes of each kind of CPU, signatures of compiled entries, paths of libraries. Imports no compiler."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

UNROLLED = 2  # inputs per iteration of a tile's loop
BLOCK = 512  # inputs of a panel that are processed together: they stay in the inner caches
ROWS = 192  # rows that stay in the inner caches, too
LINE = 64  # bytes of a cache line, the unit of prefetching


class TileShape(NamedTuple):
    """The shape of a tile, whose sums fill the registers."""

    lanes: int  # numbers in a register
    wide: int  # registers across: a panel has wide * lanes outputs
    tall: int  # rows, at most


class Level(NamedTuple):
    """A kind of CPU: the features it must have, LLVM's name for it, further LLVM features, and its tile shapes."""

    needs: tuple[str, ...]
    cpu: str
    more: str
    shape: TileShape
    eight: TileShape | None  # of int8 matmuls; None without instructions for them
    vnni: bool = False  # whether these instructions are VNNI's


V3 = ("avx2", "fma", "bmi2", "f16c")
V4 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *V3)
SMALL, MIDDLE, LARGE = TileShape(4, 2, 4), TileShape(8, 2, 6), TileShape(16, 3, 8)
LEVELS = {
    "v4-vnni": Level((*V4, "avx512vnni"), "x86-64-v4", "+avx512vnni", LARGE, LARGE, vnni=True),
    "v4": Level(V4, "x86-64-v4", "", LARGE, MIDDLE),
    "v3-vnni": Level((*V3, "avxvnni"), "x86-64-v3", "+avxvnni", MIDDLE, MIDDLE, vnni=True),
    "v3": Level(V3, "x86-64-v3", "", MIDDLE, MIDDLE),
    "v1": Level(("sse2",), "x86-64", "", SMALL, None),
}
"""The kinds of CPU that kernels are shipped for, best first: every x86-64 is one of them."""
OTHER = Level((), "", "", SMALL, None)


def features() -> set[str]:
    """This CPU's features, by LLVM's names."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="ignore") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
        return {name.replace("_", "") for name in flags.split()}
    except OSError:  # not Linux
        pass
    try:
        import llvmlite.binding as llvm

        return {name for name, has in llvm.get_host_cpu_features().items() if has}
    except (ImportError, RuntimeError):  # no llvmlite, or it cannot tell
        return set()


def level() -> str | None:
    """This CPU's level, or the one to compile for (BESTFIRST_CPU_LEVEL); None if it is not an x86-64."""
    named = os.environ.get("BESTFIRST_CPU_LEVEL")
    if named in LEVELS:
        return named
    found = features()
    return next((name for name, each in LEVELS.items() if found.issuperset(each.needs)), None)


LEVEL = level()
HERE = OTHER if LEVEL is None else LEVELS[LEVEL]
LANES, WIDE, TALL = HERE.shape
PANEL = WIDE * LANES
ZEROS = np.zeros(PANEL, np.float32)
QUAD = 4  # int8 products that one lane adds up
COPIES = 1 if HERE.vnni else 2  # of a quantised row: itself, and with AVX2 its magnitudes


def suit(inputs: int, outputs: int = LANES) -> bool:
    """Whether tiles can multiply a matrix of this shape."""
    return inputs % UNROLLED == 0 and outputs % LANES == 0


SIGNATURES = {
    "own_attention": "f2 f1 f2 i2 i1 i1 int float f2", "cross_attention": "f2 f1 f5 l1 i1 float f2",
    "self_attention": "f2 f1 l1 int float f2", "put": "f2 f1 l1 int f5", "norm": "f2 f1 f1 float f2",
    "add_norm": "f2 f2 f1 f1 f1 float f2", "activate": "f2 f1 int", "embed": "i1 i1 f2 float f2 f2", "top": "f2 l1 f2 l2",
    "row_top": "f2 int l1 f2 l2", "allowed_top": "f2 l1 i1 l1 f2 l2", "mixed": "i1 l1", "pack": "f2 int f1",
    "by_panels": "f2 f1 int f1 f2", "by_rows": "f2 f1 f1 f2", "decoder": "int int int float float float",
    "encoder": "int int int float float float", "search": "int int int int float float float",
}  # fmt: skip
"""The arguments of every entry (`entries`): int64 (also addresses), float32, and C-contiguous arrays of so many dimensions, of
float32 (f), int32 (i), int64 (l), int8 (b) or uint8 (u)."""
if HERE.eight is not None:
    SIGNATURES |= {"quantise": "f2 u3 f1", "pack_bytes": "f2 b1 i1 f1", "multiply_bytes": "u3 f1 b2 i1 f1 f2 int"}


# -- libraries -------------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent
SOURCES = (
    "attention.py", "code.py", "entries.py", "int8.py", "kernels.py", "level_searches.py", "registers.py", "search_plan.py",
    "search_state.py", "searches.py", "step_searches.py", "strict_searches.py", "tiles.py", "tops.py",
)  # fmt: skip
PREFIX = "bestfirst_"  # of an entry's symbol
SHIPPED = FOLDER / "built"
"""Libraries shipped for Linux, one per level, so that a model's first use neither imports numba nor compiles anything. `make
kernels` makes them; their names have a digest of the kernels' sources and the kind of CPU."""


@cache
def available() -> bool:
    """Whether there are compiled kernels for this CPU, or numba to compile them."""
    return shipped(LEVEL).is_file() or find_spec("numba") is not None


def shipped(level: str | None) -> Path:
    """The path of a level's library, whether it exists or not."""
    return SHIPPED / f"{sys.platform}-{platform.machine()}-{level}-{key(level)}.so"


def key(level: str | None) -> str:
    """A digest of the kernels' sources and the kind of CPU, which names their compiled form."""
    digest = sha256(b"".join((FOLDER / name).read_bytes().replace(b"\r\n", b"\n") for name in SOURCES))
    digest.update(f"{platform.machine()} {sys.platform} {level}".encode())
    return digest.hexdigest()[:16]
