"""No feature of Unix or Linux alone is needed: their modules and functions are removed, the file lock of Windows is added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRELUDE = """
import sys, types
import asyncio, subprocess, multiprocessing  # others look for Unix in their own ways
for name in "numba torch transformers sentencepiece rich typer fastapi uvicorn prometheus_client".split():
    try:
        __import__(name)
    except ImportError:
        pass
try:
    from transformers import MarianMTModel, MarianTokenizer
except ImportError:
    pass
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp", "pty", "syslog"):
    sys.modules[name] = None
held = set()
def locking(descriptor, mode, count):
    import os
    where = os.fstat(descriptor).st_ino
    if where in held:
        raise PermissionError(13, "Permission denied")
    held.add(where)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
import mmap, os, signal
GONE = {
    mmap: "MADV_HUGEPAGE MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_READ",
    signal: "SIGKILL SIGHUP SIGALRM SIGUSR1 SIGCHLD SIGPIPE alarm pthread_sigmask",
    os: "sched_getaffinity getuid geteuid getgid fork uname nice sysconf O_NONBLOCK O_DIRECTORY fchmod chown killpg setsid",
}
for owner, names in GONE.items():
    for name in names.split():
        delattr(owner, name)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_is_translated_without_unix_modules_and_functions(tmp_path: Path):
    source, target = tmp_path / "in.de", tmp_path / "out.en"
    source.write_text("Guten Morgen!\nJa.\n", encoding="utf-8")
    command = ["translate", str(source), "-o", str(target), "--stats"]
    code = f"from bestfirst.cli import run; sys.exit(run({command!r}))"
    run(code)
    assert target.read_text(encoding="utf-8") == "Good morning.\nYes.\n"


def test_a_journal_has_one_writer_with_the_file_lock_of_windows(tmp_path: Path):
    code = f"""
from pathlib import Path
from bestfirst.durable_files import Journal
path = Path({str(tmp_path / "journal")!r})
first = Journal(path)
first.append(b"a line\\n")
try:
    Journal(path)
except BlockingIOError:
    print("held")
print(list(first.lines()))
"""
    assert run(code).split("\n")[:2] == ["held", "[b'a line\\n']"]


def test_every_module_can_be_imported_without_unix_modules_and_functions():
    """Except the GPU kernels (Triton), and the modules for a Ray cluster."""
    code = """
import importlib, pkgutil
import bestfirst, bestfirst_bench
sys.modules["triton"] = None
elsewhere = ("bestfirst.engine.device", "bestfirst.cluster", "bestfirst.integrations.hub", "bestfirst.__main__")
for package in (bestfirst, bestfirst_bench):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith(elsewhere):
            importlib.import_module(found.name)
from bestfirst.serve.server import most_connections
print(most_connections())
"""
    assert run(code) == "512\n"
