"""Which row budget suits a model: measured once, by timing a step for a few row counts."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..models.scorer import Budget
from .sources import Sources
from .tree import Tree

ROWS = (1, 8, 16, 32, 48, 96, 144, 192, 288, 384, 512)  # products work through 48 rows at a time, or 16
LEAST = 48  # a step has room for so many rows, unless even fewer take long: it is inputs in flight that fill it
ENOUGH = 0.25  # seconds a step: a larger one is not tried
NEARLY = 0.85  # of the best rate is as good: fewer rows are less memory, and what is scored ahead is likelier to be needed


def measure(decoder: Any, device: torch.device, dtype: torch.dtype, encoder_layers: list[torch.Tensor]) -> Budget:
    """The fewest rows that reach nearly the model's best rate.

    All of them may be scored ahead of their turn: nine in ten of the rows that the scheduler chooses come to be needed
    (`docs/engine.md`), and a step with few rows costs nearly as much as a full one.

    `encoder_layers`: a source's keys and values, (1, 2, heads, length, head size) for each layer, or nothing.
    """
    sources = Sources(device, dtype)
    if encoder_layers:
        sources.add(encoder_layers, [encoder_layers[0].shape[3]])
    times: dict[int, float] = {}
    for rows in ROWS:
        times[rows] = seconds(decoder, rows, Tree(device, dtype), sources)
        if times[rows] > ENOUGH:
            break
    best = max(rows / took for rows, took in times.items())
    enough = min(rows for rows, took in times.items() if rows / took >= NEARLY * best)
    rows = max(enough, min(LEAST, max(times)))
    return Budget(rows, free=rows)


@torch.inference_mode()
def seconds(decoder: Any, rows: int, tree: Tree, sources: Sources) -> float:
    """The time of a step with so many rows, each with one token before it: the best of three."""
    table = [(1, 1, slot, 0, 0) for slot in tree.allocate(rows)]
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        logits = decoder.step(tree.rows(table, [rows]), tree, sources)
        decoder.best(logits.float(), 1, None)[1].cpu()
        times.append(time.perf_counter() - begun)
    return min(times)
