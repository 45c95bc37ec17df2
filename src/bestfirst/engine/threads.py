"""Threads: how many threads a decode may use, and a parallel loop for kernels that release the GIL.

Idle threads, the caller included, take the next piece of work: a thread that the system suspends delays one piece at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock

_configured: int | None = None
_pool: ThreadPoolExecutor | None = None
_sharing = 0  # decodes that run side by side and share the threads
_lock = Lock()


def _drop_pool() -> None:
    """Forgets the pool: in a forked process its threads do not exist, and work given to it would be kept forever, undone."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)


def use_threads(n: int) -> None:
    """Sets the number of threads from now on, torch's only if torch is imported: call it after loading the model. ValueError
    below 1."""
    global _configured, _pool
    if n < 1:
        raise ValueError(f"threads must be at least 1, got {n}")
    _configured, _pool = n, None
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(n)


def threads() -> int:
    """The number of threads to use: as configured, by OMP_NUM_THREADS, or all available CPUs, divided among decodes side by
    side."""
    return max(1, _total() // max(1, _sharing))


def _total() -> int:
    global _configured
    if _configured is None:
        environment = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _configured = int(environment) if environment.isdigit() and int(environment) else allowed
    return _configured


@contextmanager
def side_by_side() -> Iterator[None]:
    """Within this context this thread shares the thread budget with the other threads that are in one."""
    global _sharing
    with _lock:
        _sharing += 1
    try:
        yield
    finally:
        with _lock:
            _sharing -= 1


def parallel_for(work: Callable[[int], None], pieces: int) -> None:
    """Calls `work(i)` for i in range(pieces), each once, on all threads. `work` should release the GIL."""
    global _pool
    helpers = min(threads(), pieces) - 1
    if helpers < 1:
        for piece in range(pieces):
            work(piece)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(_total() - 1, thread_name_prefix="bestfirst")
    pieces_left = iter(range(pieces))  # `next` is atomic under the GIL

    def help_out() -> None:
        for piece in pieces_left:
            work(piece)

    helping = [_pool.submit(help_out) for _ in range(helpers)]
    help_out()
    for done in wait([each for each in helping if not each.cancel()]).done:
        done.result()


def split_range(n: int, least: int) -> Sequence[tuple[int, int]]:
    """range(n) in pieces of at least `least` items, as (first, last + 1): two pieces per thread, if there are enough."""
    pieces = 1 if threads() == 1 else max(1, min(2 * threads(), n // least))
    ends = [n * i // pieces for i in range(pieces + 1)]
    return list(pairwise(ends))
