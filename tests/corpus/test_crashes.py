"""A job that crashes at any point resumes when it is run again, and its output is that of an uninterrupted job.

Here the process ends, without cleanup, before each of its operations on the disk, one after another; after a simulated power
failure, data not yet `fsync`ed is lost too. `test_kill.py` kills the real command with SIGKILL.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

LINES = "".join(f"line {number}\n" for number in range(1, 11)) + "broken\n\nlast"
OPERATIONS = ("fsync", "replace", "unlink", "rmdir", "mkdir", "write")


class Disk:
    """Counts operations on the disk and ends the process before the `last`-th, as by a power failure if `power`."""

    def __init__(self, last: int, folder: Path, power: bool) -> None:
        self.left = last
        self.folder = folder
        self.power = power
        there = [path.stat() for path in folder.rglob("*") if path.is_file()]
        self.safe = {status.st_ino: status.st_size for status in there}  # by inode, the bytes certain to be on the disk

    def watch(self, module: object, name: str) -> None:
        real = getattr(module, name)

        def watched(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if not self.left:
                self.end()
            done = real(*args, **kwargs)
            if name == "fsync":
                status = os.fstat(args[0])
                self.safe[status.st_ino] = status.st_size
            return done

        setattr(module, name, watched)

    def end(self) -> None:
        for path in self.folder.rglob("*") if self.power else ():
            if path.is_file() and path.name != "text":
                status = path.stat()
                safe = self.safe.get(status.st_ino, 0)
                os.truncate(path, (safe + status.st_size) // 2)  # the rest may be on the disk in part
        os._exit(9)


def crashed(do: Callable, folder: Path, last: int, power: bool) -> bool:
    """Run the job in a process that ends before its `last`-th operation; False if the job finishes first."""
    child = os.fork()
    if child == 0:
        disk = Disk(last, folder, power)
        for name in OPERATIONS:
            disk.watch(os, name)
        try:
            do(folder / "text", folder / "out")
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power failure"])
def test_a_job_resumes_after_a_crash_before_any_disk_operation(do, tmp_path: Path, power: bool):
    (tmp_path / "text").write_text(LINES)
    do(tmp_path / "text", tmp_path / "expected")
    expected = (tmp_path / "expected").read_bytes()
    assert expected.decode().splitlines() == [f"LINE {n}" for n in range(1, 11)] + ["", "", "LAST"]
    last, kept = 0, 0
    while True:
        last += 1
        folder = tmp_path / f"{last}"
        folder.mkdir()
        shutil.copy(tmp_path / "text", folder)
        if not crashed(do, folder, last, power):
            break
        assert not (folder / "out").exists() or (folder / "out").read_bytes() == expected  # whole, or not at all
        redone = []
        do(folder / "text", folder / "out", notice=lambda finished, redone=redone: redone.append(finished.index))
        assert (folder / "out").read_bytes() == expected
        assert sorted(path.name for path in folder.iterdir()) == ["out", "out.manifest.json", "text"]
        kept += len(redone) < 5
    assert last > 35  # crashes tried: a job of five shards makes 38 operations
    assert kept > 20  # and finished shards were not decoded again


def test_a_job_that_crashes_repeatedly_finishes(do, tmp_path: Path):
    (tmp_path / "text").write_text(LINES)
    do(tmp_path / "text", tmp_path / "expected")
    times = 0
    while crashed(do, tmp_path, 17, power=True):
        times += 1
    assert times > 2
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()
