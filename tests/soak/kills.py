"""Jobs of all formats, killed at random moments and before random file operations; run again, they must finish correctly."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from .forks import command
from .jobs import jobs

OPERATIONS = {"fsync": 20, "replace": 8, "open": 8, "unlink": 5, "ftruncate": 5, "rmdir": 1, "mkdir": 1}
"""How many of each an undisturbed job does."""


def kill_jobs(folder: Path, seed: int, kills: int) -> Iterator[Counter[str]]:
    """Yields the counts after each job."""
    rng = random.Random(seed)
    every = jobs(folder, rng)
    count: Counter[str] = Counter()
    number = 0
    while count["kills"] < kills:
        job = rng.choice(every)
        where = folder / f"killed-{number}"
        number += 1
        job.begin(where)
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.5:
                name = rng.choice(list(OPERATIONS))
                ended = command(*job.arguments(where), before=_killing_before(name, rng.randint(1, OPERATIONS[name])))
            else:
                ended = command(*job.arguments(where), kill_after=rng.uniform(0, job.seconds))
            if ended.code != -signal.SIGKILL:
                count["unclean"] += not ended.clean
                break
            count["kills"] += 1
        ended = command(*job.arguments(where))
        count["jobs"] += 1
        count["wrong"] += not (job.right(where) and ended.clean)
        if not (job.right(where) and ended.clean):
            count[f"wrong: {job.name} in {where}: {ended.errors.strip()[-200:]}"] += 1
        else:
            shutil.rmtree(where)
        yield count


def _killing_before(name: str, times: int) -> Callable[[], None]:
    """A function that makes its process kill itself before the n-th call of this function of `os`."""

    def prepare() -> None:
        left, real = [times], getattr(os, name)

        def watched(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, watched)

    return prepare
