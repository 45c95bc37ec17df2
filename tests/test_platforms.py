"""Nothing that only Unix or only Linux has is needed: these modules are taken away, and the file lock of Windows put in place."""

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
import mmap, signal
for owner, names in ((mmap, ("MADV_HUGEPAGE", "MAP_ANONYMOUS", "MAP_PRIVATE")), (signal, ("SIGKILL", "SIGHUP"))):
    for name in names:
        delattr(owner, name)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_is_translated_to_a_file_without_what_only_unix_has(tmp_path: Path):
    source, target = tmp_path / "in.de", tmp_path / "out.en"
    source.write_text("Guten Morgen!\nJa.\n", encoding="utf-8")
    command = ["translate", str(source), "-o", str(target), "--stats"]
    code = f"from bestfirst.cli.app import run; sys.exit(run({command!r}))"
    run(code)
    assert target.read_text(encoding="utf-8") == "Good morning.\nYes.\n"


def test_a_journal_has_one_writer_there_too(tmp_path: Path):
    code = f"""
from pathlib import Path
from bestfirst.journal import Journal
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


def test_the_server_and_the_benchmarks_can_be_imported():
    assert run("import bestfirst.serve.server as s, bestfirst_bench.cli; print(s.most_connections())") == "512\n"
