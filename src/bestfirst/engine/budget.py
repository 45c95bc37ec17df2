"""Which row budget suits a model: measured once, by timing a step for a few row counts."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..models.scorer import Budget
from .sources import Sources
from .tree import Tree

ROWS = (1, 8, 16, 32, 64, 128, 256, 512)
ENOUGH = 0.25  # seconds a step: a larger one is not tried
GAIN = 1.1  # more rows must do this much more work a second to be worth their memory
FREE = 2.0  # a step that takes this many times one row's still counts as costing little more


def measure(decoder: Any, device: torch.device, dtype: torch.dtype, encoder_layers: list[torch.Tensor]) -> Budget:
    """The fewest rows that reach nearly the model's best rate, and up to how many rows a step costs little more than for one.

    `encoder_layers`: a source's keys and values, (1, 2, heads, length, head size) for each layer, or nothing.
    """
    sources = Sources(device, dtype)
    if encoder_layers:
        sources.add(encoder_layers, [encoder_layers[0].shape[3]])
    best, free, first = 1, 1, seconds(decoder, 1, Tree(device, dtype), sources)
    rate = 1 / first
    for rows in ROWS[1:]:
        took = seconds(decoder, rows, Tree(device, dtype), sources)
        if took <= FREE * first:
            free = rows
        if rows / took >= GAIN * rate:
            best, rate = rows, rows / took
        if took > ENOUGH:
            break
    return Budget(rows=max(best, free), free=free)


@torch.inference_mode()
def seconds(decoder: Any, rows: int, tree: Tree, sources: Sources) -> float:
    """The time of a step with so many rows, each with one token before it: the better of two."""
    table = [(1, 1, slot, 0, 0) for slot in tree.allocate(rows)]
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        decoder.step(tree.rows(table, [rows]), tree, sources).argmax(-1).cpu()
        times.append(time.perf_counter() - begun)
    return min(times)
