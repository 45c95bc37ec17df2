"""Registers: what a CPU's tiles are cut to, and what entries take. Known before anything is compiled, or loaded that was."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

UNROLLED = 2  # inputs at a time
BLOCK = 512  # inputs of a panel that is gone through at once: it stays in the inner caches
ROWS = 192  # that stay in the inner caches, too
LINE = 64  # bytes: what is fetched at a time


class TileShape(NamedTuple):
    """Of a tile, whose sums fill the registers."""

    lanes: int  # numbers in a register
    wide: int  # registers of a panel's outputs
    tall: int  # rows, at most


class Level(NamedTuple):
    """A kind of CPU: what it must have, what kernels are compiled as, and what tiles are cut to."""

    needs: tuple[str, ...]
    cpu: str
    more: str
    shape: TileShape
    eight: TileShape | None  # of products in eight bits; None where there are no instructions for them
    vnni: bool = False  # these are VNNI's


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
"""Those that kernels are shipped for, the best first: every x86-64 is one of them."""
OTHER = Level((), "", "", SMALL, None)


def features() -> set[str]:
    """What this CPU has, by the names that LLVM has for it."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="ignore") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
        return {name.replace("_", "") for name in flags.split()}
    except OSError:  # no Linux
        pass
    try:
        import llvmlite.binding as llvm

        return {name for name, has in llvm.get_host_cpu_features().items() if has}
    except (ImportError, RuntimeError):  # a system that does not tell
        return set()


def level() -> str | None:
    """That of this CPU, or the one that is compiled for (BESTFIRST_CPU_LEVEL); None for one that is no x86-64."""
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
QUAD = 4  # inputs whose products a register adds up in eight bits
COPIES = 1 if HERE.vnni else 2  # of a row in eight bits: itself, and its magnitudes


def suit(inputs: int, outputs: int = LANES) -> bool:
    """Whether a matrix can be cut into tiles."""
    return inputs % UNROLLED == 0 and outputs % LANES == 0


SIGNATURES = {
    "own_attention": "iiiiiiiiiiifi", "cross_attention": "iiiiiiiiiifi", "self_attention": "iiiiiiifi", "put": "i" * 11,
    "norm": "iiifiii", "add_norm": "iiiiifiii", "relu": "iiii", "gelu": "iiii", "gelu_tanh": "iiii", "silu": "iiii",
    "embed": "iiiifiiiii", "top": "i" * 9, "row_top": "i" * 9, "allowed_top": "i" * 12, "pack": "i" * 6, "by_panels": "i" * 8,
    "by_rows": "i" * 7, "mixed": "iii", "decoder": "iiifff", "encoder": "iiifff", "search": "iiiifff",
    **({"quantise": "i" * 5, "pack_bytes": "i" * 8, "multiply_bytes": "i" * 10} if HERE.eight is not None else {}),
}  # fmt: skip
"""The arguments of every entry (`entries`): 64-bit integers, addresses among them ("i"), and float32 ("f")."""
