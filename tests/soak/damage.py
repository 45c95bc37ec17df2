"""Files that were damaged behind a command's back: its state, its input, a model's folder. It goes on, or says why not."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from .forks import Ended, command
from .jobs import Job, jobs


def damaged(folder: Path, seed: int, times: int) -> Iterator[Counter[str]]:
    """Yields what has been counted so far, file by file. Of ten, eight are a job's own, one its input, one a model's."""
    rng = random.Random(seed)
    every = [(job, begun) for job in jobs(folder, rng) for begun in _begun(job, folder, rng)]
    model = folder / "model"
    shutil.copytree(str(files("bestfirst") / "data" / "tatoeba-de-en"), model)
    count: Counter[str] = Counter()
    for number in range(times):
        where = folder / f"damaged-{number}"
        if number % 10 == 9:
            fine, what = _model(model, where, rng)
        else:
            fine, what = _job(*rng.choice(every), where, rng, number % 10 == 8)
        count["files"] += 1
        count["wrong"] += not fine
        if fine:
            shutil.rmtree(where)
        else:
            count[f"wrong: {what} in {where}"] += 1
        yield count


def _begun(job: Job, folder: Path, rng: random.Random) -> Iterator[Path]:
    """The job broken off somewhere in its middle, a few times; and complete."""
    yield job.folder
    for number in range(4):
        where = folder / f"begun-{number}-{job.name}"
        job.begin(where)
        tries = 0
        while not list(where.glob("*.parts/0*")) and not job.right(where):
            tries += 1  # with more time each: the machine may be slower now than when the job was timed
            command(*job.arguments(where), kill_after=rng.uniform(0.2, 1) * job.seconds * tries)
        yield where


def _job(job: Job, begun: Path, where: Path, rng: random.Random, of_input: bool) -> tuple[bool, str]:
    shutil.copytree(begun, where)
    source = where / job.source
    own = [path for path in where.rglob("*") if path.is_file() and (path == source) == of_input]
    victim = rng.choice(own)
    how = _harm(victim, rng)
    ended = command(*job.arguments(where))
    what = f"{job.name}, {victim.relative_to(where)} {how}: {ended.code} {ended.said.strip()[-300:]}"
    if not ended.clean:
        return False, what
    if of_input:
        return True, what  # whatever it says now is another text
    if ended.code == 2:  # refused: nothing of what was there is lost, and there is a way on
        again = command(*job.arguments(where), "--overwrite")
        return again.clean and job.right(where), f"{what} / {again.said.strip()[-200:]}"
    return job.right(where), what


def _model(model: Path, where: Path, rng: random.Random) -> tuple[bool, str]:
    shutil.copytree(model, where)
    victim = rng.choice([path for path in where.rglob("*") if path.is_file()])
    how = _harm(victim, rng)
    text = where / "one-line"
    text.write_text("Guten Morgen!\n", encoding="utf-8")
    ended = command("translate", text, "-o", where / "out", "--model", where, before=_alarm)
    return ended.clean or ended.code == -signal.SIGALRM, f"model {victim.name} {how}: {ended.code} {ended.said.strip()[-300:]}"


def _alarm() -> None:
    signal.alarm(120)  # a folder may ask for an output without an end


def _harm(path: Path, rng: random.Random) -> str:
    """Damage a file in one of the ways that files are damaged in."""
    data = path.read_bytes()
    ways: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: data[: rng.randrange(len(data) + 1)],
        lambda: _flipped(data, rng),
        lambda: data + data[: rng.randrange(len(data) + 1)],
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: b"\x00" * len(data),
        lambda: b"[" * rng.choice((10, 5000)),
    ]
    if path.suffix in (".json", ".jsonl") and data:
        ways += [lambda: _retyped(data, rng)] * 6
    if rng.random() < 0.05:
        path.unlink()
        return "removed"
    way = rng.randrange(len(ways))
    path.write_bytes(ways[way]())
    return f"way {way}"


def _flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], {}, [[[]]], {"a": None}, 10**400, "9" * 50)


def _retyped(data: bytes, rng: random.Random) -> bytes:
    """One value of the JSON in it is another, of whatever type."""
    lines = data.splitlines()
    number = rng.randrange(len(lines)) if len(lines) > 1 and lines[0].strip().endswith(b"}") else None
    try:
        tree = json.loads(data if number is None else lines[number])
    except ValueError:
        return _flipped(data, rng)
    places = list(_places(tree))
    if not places:
        return json.dumps(rng.choice(ODD)).encode()
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(ODD)
    changed = json.dumps(tree).encode()
    return changed if number is None else b"\n".join([*lines[:number], changed, *lines[number + 1 :]]) + b"\n"


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(value)


__all__ = ["Ended", "damaged"]
