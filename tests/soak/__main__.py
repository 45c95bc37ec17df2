"""A soak that anyone can run: what it did and what came of it, a line for each part; exit code 1 where anything was wrong.

    make soak                                          a few minutes
    make soak SOAK='--kills 1000 --damage 10000 --requests 100000 --load 120 --ray 5'
    make soak SOAK='--seed 7 --kills 50 --only kills'   the same again

It runs in a folder of its own, on the loopback address only, and stops by itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from serve.served import Served

from .damage import damaged
from .forks import GERMAN
from .kills import killed
from .ray_faults import faulted
from .requests import asked

BAD = ("wrong", "unclean", "5xx", "unanswered", "tracebacks", "crashes")
LOAD = Path(__file__).parents[1] / "serve" / "load.py"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="by default the time, and printed")
    parser.add_argument("--kills", type=int, default=60, help="kill -9 of corpus jobs, over all formats")
    parser.add_argument("--damage", type=int, default=200, help="damaged files")
    parser.add_argument("--requests", type=int, default=3000, help="requests of every kind to a server")
    parser.add_argument("--load", type=float, default=15, help="seconds of 200 honest clients beside greedy and sleeping ones")
    parser.add_argument("--ray", type=int, default=1, help="jobs on a Ray cluster of which a part is killed")
    parser.add_argument("--only", choices=["kills", "damage", "requests", "load", "ray"], help="this part alone")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    wrong = 0
    parts: dict[str, Callable[[Path], Iterable[Counter[str]]]] = {
        "kills": lambda folder: killed(folder, options.seed, options.kills),
        "damage": lambda folder: damaged(folder, options.seed, options.damage),
        "ray": lambda folder: faulted(folder, options.seed, options.ray),
        "requests": lambda _: _requests(options.seed, options.requests),
    }
    for name, part in parts.items():
        if options.only in (None, name) and getattr(options, name):
            folder = tempfile.mkdtemp(prefix=f"soak-{name}-")
            wrong += _told(name, part(Path(folder)))
    if options.only in (None, "load") and options.load:
        wrong += _load(options.load)
    print("nothing was wrong" if not wrong else f"{wrong} parts found something wrong", flush=True)
    return 1 if wrong else 0


def _told(name: str, counts: Iterable[Counter[str]]) -> bool:
    """Print what a part counts, now and then, and at its end what was wrong."""
    begun = said = time.monotonic()
    count: Counter[str] = Counter()
    for count in counts:
        if time.monotonic() - said > 30:
            said = time.monotonic()
            print(f"  {name}: {_line(count)}", file=sys.stderr, flush=True)
    print(f"{name}: {_line(count)}, {time.monotonic() - begun:.0f} s", flush=True)
    for what in [what for what in count if ": " in what][:20]:
        print(f"  {count[what]} x {what}", flush=True)
    return any(count[bad] for bad in BAD)


def _line(count: Counter[str]) -> str:
    plain = {what: times for what, times in count.items() if ": " not in what}
    return ", ".join(f"{times} {what}" for what, times in {**dict.fromkeys(BAD[:1], 0), **plain}.items())


def _requests(seed: int, times: int) -> Iterable[Counter[str]]:
    served = Served("--deadline", 600)  # a machine that sleeps meanwhile is not what is tried here
    try:
        yield from asked(served, seed, times)
    finally:
        served.stop()


def _load(seconds: float) -> bool:
    served = Served()
    try:
        asked_for = [
            "--clients",
            "200",
            "--greedy",
            "10",
            "--unread",
            "20",
            "--seconds",
            str(seconds),
            "--pid",
            str(served.process.pid),
        ]
        return subprocess.run([sys.executable, str(LOAD), served.url, str(GERMAN), *asked_for], check=False).returncode != 0
    finally:
        served.stop()


if __name__ == "__main__":
    sys.exit(main())
