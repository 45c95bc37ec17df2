"""Packed: a matrix in eight bits, as `int8` multiplies with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import calls
from .registers import COPIES, HERE, QUAD

LANES = 1 if HERE.eight is None else HERE.eight.lanes


def suit(outputs: int) -> bool:
    """Whether this CPU has the instructions, and a matrix of so many outputs fills its registers."""
    return HERE.eight is not None and outputs % LANES == 0


def room(inputs: int) -> int:
    """Bytes that a row of so many inputs takes in eight bits."""
    return COPIES * (-(-inputs // QUAD) * QUAD)


class Packed(NamedTuple):
    """A matrix (outputs, inputs); outputs are filled up to a multiple of LANES."""

    weights: Any  # (outputs, padded inputs) in memory, not in meaning
    start: Any  # (outputs,) what each sum begins with
    scales: Any  # (outputs,)

    @classmethod
    def of(cls, matrix: Any) -> Packed:
        outputs, inputs = -(-len(matrix) // LANES) * LANES, room(matrix.shape[1]) // COPIES
        packed = cls(np.empty((outputs, inputs), np.int8), np.empty(outputs, np.int32), np.empty(outputs, np.float32))
        calls.pack_bytes(np.ascontiguousarray(matrix, np.float32), *packed)
        return packed

    def multiply(self, x: Any, out: Any) -> None:
        """x (rows, inputs) times its transpose, into `out` (rows, outputs)."""
        rows, scales = np.empty((len(x), COPIES * self.weights.shape[1]), np.uint8), np.empty(len(x), np.float32)
        calls.quantise(x, rows, scales)
        calls.multiply_bytes(rows, scales, *self, out)
