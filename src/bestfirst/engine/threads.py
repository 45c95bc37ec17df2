"""Threads: how many a decode may use, whatever computes it, and pieces of work that they share.

Whoever is free takes the next piece, the one who asked included: a thread that a busy machine holds up holds up one at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock

_asked: int | None = None
_pool: ThreadPoolExecutor | None = None
_at_work = 0  # how many share the threads
_lock = Lock()


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
    """How many may be used: as was asked for, as OMP_NUM_THREADS says, or as many as the machine lets this process have.
    Those that work side by side have a part of them each."""
    return max(1, _all() // max(1, _at_work))


def _all() -> int:
    global _asked
    if _asked is None:
        named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _asked = int(named) if named.isdigit() and int(named) else allowed
    return _asked


@contextmanager
def side_by_side() -> Iterator[None]:
    """Work in a thread of its own, beside others that say so too."""
    global _at_work
    with _lock:
        _at_work += 1
    try:
        yield
    finally:
        with _lock:
            _at_work -= 1


def share(work: Callable[[int], None], pieces: int) -> None:
    """Call `work` with 0 to pieces - 1, each once, from as many threads as there are. Work that lets others run meanwhile."""
    global _pool
    helpers = min(threads(), pieces) - 1
    if helpers < 1:
        for piece in range(pieces):
            work(piece)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(_all() - 1, thread_name_prefix="bestfirst")
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
