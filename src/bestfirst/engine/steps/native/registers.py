"""Registers: what a CPU's tiles are cut to. Known before anything is compiled, or loaded that was."""

from __future__ import annotations

import os

import llvmlite.binding as llvm
import numpy as np

UNROLLED = 2  # inputs at a time
BLOCK = 512  # inputs of a panel that is gone through at once: it stays in the inner caches
ROWS = 192  # that stay in the inner caches, too
LINE = 64  # bytes: what is fetched at a time

NEEDED = {"v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"), "v3": ("avx2", "fma", "bmi2", "f16c")}
"""The levels of x86-64 that there are objects for, the best first, and what a CPU must have for each."""

SHAPES = {"v4": (16, 3, 8), "v3": (8, 2, 6), None: (4, 2, 4)}
"""By level: numbers in a register, registers of outputs in a panel, and rows of a tile, whose sums fill the registers."""


def features() -> dict[str, bool]:
    """What this CPU has."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # a system that does not tell
        return {}


def level() -> str | None:
    """That of this CPU, or the one that is compiled for (BESTFIRST_CPU_LEVEL)."""
    named = os.environ.get("BESTFIRST_CPU_LEVEL")
    if named in NEEDED:
        return named
    found = features()
    return next((each for each, needed in NEEDED.items() if all(found.get(name, False) for name in needed)), None)


LEVEL = level()
LANES, WIDE, TALL = SHAPES[LEVEL]
PANEL = WIDE * LANES
ZEROS = np.zeros(PANEL, np.float32)


def suit(inputs: int, outputs: int = LANES) -> bool:
    """Whether a matrix can be cut into tiles."""
    return inputs % UNROLLED == 0 and outputs % LANES == 0
