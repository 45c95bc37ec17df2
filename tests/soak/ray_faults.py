"""Jobs on a real Ray cluster on this machine: a worker, the raylet or the GCS is killed; the same command resumes the job."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .forks import command
from .jobs import jobs

MARK = "BESTFIRST_SOAK"  # in the environment of all processes of a job: other clusters on this machine are not touched
VICTIMS = ("ray::ShardActor", "raylet/raylet", "gcs_server")


def kill_ray_processes(folder: Path, seed: int, times: int) -> Iterator[Counter[str]]:
    """Yields the counts after each job."""
    rng = random.Random(seed)
    job = next(job for job in jobs(folder, rng) if job.name == "out.json")
    count: Counter[str] = Counter()
    for number in range(times):
        where, victim = folder / f"ray-{number}", rng.choice(VICTIMS)
        job.begin(where)
        line = [sys.executable, "-m", "bestfirst", *map(str, job.arguments(where)), "--ray", "--workers", "2"]
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", MARK: str(where)}
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=env) as process:
            count["kills"] += _kill_one(victim, process, where, rng)
            try:
                errors = process.communicate(timeout=300)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                errors = "it did not end"
        for left in _processes_of(where):
            with suppress(ProcessLookupError):
                os.kill(int(left.name), signal.SIGKILL)
        ended = command(*job.arguments(where))
        right = job.right(where) and ended.clean and "Traceback" not in errors
        count["jobs"] += 1
        count["wrong"] += not right
        if not right:
            count[f"wrong: {victim} killed, in {where}: {errors.strip()[-300:]} / {ended.errors.strip()[-200:]}"] += 1
        yield count


def _kill_one(victim: str, process: subprocess.Popen[str], where: Path, rng: random.Random) -> bool:
    """Kill one such process as soon as it runs and a part of the output is written."""
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        found = [int(path.name) for path in _processes_of(where) if victim in _read(path / "cmdline")]
        if found and list(where.glob("*.parts/0*")):
            os.kill(rng.choice(found), signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False


def _processes_of(where: Path) -> list[Path]:
    """The processes of this job's cluster: those with the mark, and their children, which overwrite it with their names."""
    every = list(Path("/proc").glob("[0-9]*"))
    marked = {path.name for path in every if f"{MARK}={where} " in _read(path / "environ")}
    return [path for path in every if path.name in marked or _parent_id(path) in marked]


def _parent_id(process: Path) -> str:
    found = _read(process / "stat").rpartition(")")[2].split()
    return found[1] if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
