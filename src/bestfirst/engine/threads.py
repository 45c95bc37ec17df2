"""Threads: how many a decode may use, whatever computes it, and pieces of work that they share.

Whoever is free takes the next piece, the one who asked included: a thread that a busy machine holds up holds up one at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

_asked: int | None = None
_pool: ThreadPoolExecutor | None = None


def use_threads(n: int) -> None:
    """As many as `n` from now on; to be called when the model is loaded."""
    global _asked, _pool
    if n < 1:
        raise ValueError(f"threads must be at least 1, got {n}")
    _asked, _pool = n, None
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(n)


def threads() -> int:
    """How many may be used: as was asked for, as OMP_NUM_THREADS says, or as many as the machine lets this process have."""
    global _asked
    if _asked is None:
        named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _asked = int(named) if named.isdigit() and int(named) else allowed
    return _asked


def share(work: Callable[[int], None], pieces: int) -> None:
    """Call `work` with 0 to pieces - 1, each once, from as many threads as there are. Work that lets others run meanwhile."""
    global _pool
    helpers = min(threads(), pieces) - 1
    if helpers < 1:
        for piece in range(pieces):
            work(piece)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(threads() - 1, thread_name_prefix="bestfirst")
    left = iter(range(pieces))  # whose next is one instruction of Python's

    def help_out() -> None:
        for piece in left:
            work(piece)

    helping = [_pool.submit(help_out) for _ in range(helpers)]
    help_out()
    for done in wait([each for each in helping if not each.cancel()]).done:
        done.result()


def cuts(n: int, least: int) -> Sequence[tuple[int, int]]:
    """range(n) in pieces of at least `least`, as (first, last + 1): two for each thread, where there are so many."""
    pieces = 1 if threads() == 1 else max(1, min(2 * threads(), n // least))
    ends = [n * i // pieces for i in range(pieces + 1)]
    return list(pairwise(ends))
