"""Which row budget suits a model: measured once, by timing a step for a few row counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ...settings import Budget

FEW, MANY = 1, 96  # rows that are timed
LEAST, MOST = 48, 512  # rows in a step; products work through 48 at a time
SLOW = 0.25  # seconds: a step with FEW rows that takes so long gets no more than it has to
SHARE = 0.75  # of the best rate there is: more rows are more memory, and less of what is scored ahead is needed
TIMES = 5
STEP, ROW = 200e-6, 70e-6  # seconds of a search, for each step and for each row


def measure(decoder: Any, room: Callable[[], tuple[Any, Any]]) -> Budget:
    """As many rows as it takes to come near the model's best rate, if a step takes a time of its own and one for each row.

    All of them may be scored ahead of their turn: most of what the engine chooses comes to be needed (`docs/engine.md`), and
    a step costs as much as some dozens of rows before it has one.

    `room`: makes a tree and sources that hold one input.
    """
    few = seconds(decoder, FEW, *room())
    if few > SLOW:
        return Budget(LEAST, free=LEAST)
    many = seconds(decoder, MANY, *room())
    each = max((many - few) / (MANY - FEW), 1e-9)
    enough = SHARE / (1 - SHARE) * (few / each - FEW)
    rows = min(MOST, max(LEAST, LEAST * math.ceil(enough / LEAST)))
    alone = round(FEW + (few - FEW * each + STEP) / (each + ROW))  # guesses that cost as much as a step does before it has rows
    return Budget(rows, free=rows, alone=max(2, alone))


def seconds(decoder: Any, rows: int, tree: Any, sources: Any) -> float:
    """The time of a step with so many rows, each with one token before it: the best of a few."""
    table = [(1, 1, slot, 0, 0) for slot in tree.allocate(rows)]
    times: list[float] = []
    while len(times) < TIMES and sum(times) < SLOW:
        begun = time.perf_counter()
        logits = decoder.step(tree.rows(table, [rows]), tree, sources)
        decoder.best(logits, 1, None)[1].tolist()
        times.append(time.perf_counter() - begun)
    return min(times)
