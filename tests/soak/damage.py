"""Damaged files of a command: its state, its input, a model's folder. The command must resume, or say why it cannot."""

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


def damage_files(folder: Path, seed: int, times: int) -> Iterator[Counter[str]]:
    """Yields the counts after each damaged file. Of ten, eight are files of a job, one its input, one a model's."""
    rng = random.Random(seed)
    every = [(job, begun) for job in jobs(folder, rng) for begun in _job_folders(job, folder, rng)]
    model = folder / "model"
    shutil.copytree(str(files("bestfirst") / "data" / "tatoeba-de-en"), model)
    count: Counter[str] = Counter()
    for number in range(times):
        where = folder / f"damaged-{number}"
        if number % 10 == 9:
            fine, what = _damage_model(model, where, rng)
        else:
            fine, what = _damage_job(*rng.choice(every), where, rng, number % 10 == 8)
        count["files"] += 1
        count["wrong"] += not fine
        if fine:
            shutil.rmtree(where)
        else:
            count[f"wrong: {what} in {where}"] += 1
        yield count


def _job_folders(job: Job, folder: Path, rng: random.Random) -> Iterator[Path]:
    """Folders of the job: complete, and four times killed somewhere in its middle."""
    yield job.folder
    for number in range(4):
        where = folder / f"begun-{number}-{job.name}"
        job.begin(where)
        tries = 0
        while not list(where.glob("*.parts/0*")) and not job.right(where):
            tries += 1  # later each time: the machine may be slower now than when the job was timed
            command(*job.arguments(where), kill_after=rng.uniform(0.2, 1) * job.seconds * tries)
        yield where


def _damage_job(job: Job, begun: Path, where: Path, rng: random.Random, of_input: bool) -> tuple[bool, str]:
    shutil.copytree(begun, where)
    source = where / job.source
    own = [path for path in where.rglob("*") if path.is_file() and (path == source) == of_input]
    victim = rng.choice(own)
    how = _damage(victim, rng)
    ended = command(*job.arguments(where))
    what = f"{job.name}, {victim.relative_to(where)} {how}: {ended.code} {ended.errors.strip()[-300:]}"
    if not ended.clean:
        return False, what
    if of_input:
        return True, what  # any output: the text is another one now
    if ended.code == 2:  # refused: no file is lost, and --overwrite starts again
        again = command(*job.arguments(where), "--overwrite")
        return again.clean and job.right(where), f"{what} / {again.errors.strip()[-200:]}"
    return job.right(where), what


def _damage_model(model: Path, where: Path, rng: random.Random) -> tuple[bool, str]:
    shutil.copytree(model, where)
    victim = rng.choice([path for path in where.rglob("*") if path.is_file()])
    how = _damage(victim, rng)
    text = where / "one-line"
    text.write_text("Guten Morgen!\n", encoding="utf-8")
    ended = command("translate", text, "-o", where / "out", "--model", where, before=_set_alarm)
    return ended.clean or ended.code == -signal.SIGALRM, f"model {victim.name} {how}: {ended.code} {ended.errors.strip()[-300:]}"


def _set_alarm() -> None:
    signal.alarm(120)  # a damaged model may write without end


def _damage(path: Path, rng: random.Random) -> str:
    """Damage a file in a random way, and return a description."""
    data = path.read_bytes()
    ways: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: data[: rng.randrange(len(data) + 1)],
        lambda: _flip_bits(data, rng),
        lambda: data + data[: rng.randrange(len(data) + 1)],
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: b"\x00" * len(data),
        lambda: b"[" * rng.choice((10, 5000)),
    ]
    if path.suffix in (".json", ".jsonl") and data:
        ways += [lambda: _replace_value(data, rng)] * 6
    if rng.random() < 0.05:
        path.unlink()
        return "removed"
    way = rng.randrange(len(ways))
    path.write_bytes(ways[way]())
    return f"way {way}"


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], {}, [[[]]], {"a": None}, 10**400, "9" * 50)


def _replace_value(data: bytes, rng: random.Random) -> bytes:
    """Delete one value of the JSON in it, or replace it with one of any type."""
    lines = data.splitlines()
    number = rng.randrange(len(lines)) if len(lines) > 1 and lines[0].strip().endswith(b"}") else None
    try:
        tree = json.loads(data if number is None else lines[number])
    except ValueError:
        return _flip_bits(data, rng)
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


__all__ = ["Ended", "damage_files"]
