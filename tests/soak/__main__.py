"""Soak tests: one line for each part, with what it did and the outcome; exit code 1 if anything was wrong.

    make soak                                          a few minutes
    make soak SOAK='--kills 1000 --damage 10000 --requests 100000 --load 120 --ray 5'
    make soak SOAK='--seed 7 --kills 50 --only kills'   one part of a run again

It runs in temporary folders, on the loopback address only, and ends by itself.
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

from .damage import damage_files
from .forks import GERMAN
from .kills import kill_jobs
from .ray_faults import kill_ray_processes
from .requests import send_requests

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
        "kills": lambda folder: kill_jobs(folder, options.seed, options.kills),
        "damage": lambda folder: damage_files(folder, options.seed, options.damage),
        "ray": lambda folder: kill_ray_processes(folder, options.seed, options.ray),
        "requests": lambda _: _run_requests(options.seed, options.requests),
    }
    for name, part in parts.items():
        if options.only in (None, name) and getattr(options, name):
            folder = tempfile.mkdtemp(prefix=f"soak-{name}-")
            wrong += _report(name, part(Path(folder)))
    if options.only in (None, "load") and options.load:
        wrong += _run_load(options.load)
    print("nothing was wrong" if not wrong else f"{wrong} parts found something wrong", flush=True)
    return 1 if wrong else 0


def _report(name: str, counts: Iterable[Counter[str]]) -> bool:
    """Print the counts of a part, every 30 seconds and at its end, and what was wrong; returns whether anything was."""
    begun = reported = time.monotonic()
    count: Counter[str] = Counter()
    for count in counts:
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            print(f"  {name}: {_format(count)}", file=sys.stderr, flush=True)
    print(f"{name}: {_format(count)}, {time.monotonic() - begun:.0f} s", flush=True)
    for what in [what for what in count if ": " in what][:20]:
        print(f"  {count[what]} x {what}", flush=True)
    return any(count[bad] for bad in BAD)


def _format(count: Counter[str]) -> str:
    plain = {what: times for what, times in count.items() if ": " not in what}
    return ", ".join(f"{times} {what}" for what, times in {**dict.fromkeys(BAD[:1], 0), **plain}.items())


def _run_requests(seed: int, times: int) -> Iterable[Counter[str]]:
    served = Served("--deadline", 600)  # so that a machine that sleeps meanwhile causes no failure
    try:
        yield from send_requests(served, seed, times)
    finally:
        served.stop()


def _run_load(seconds: float) -> bool:
    served = Served()
    try:
        options = [
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
        return subprocess.run([sys.executable, str(LOAD), served.url, str(GERMAN), *options], check=False).returncode != 0
    finally:
        served.stop()


if __name__ == "__main__":
    sys.exit(main())
