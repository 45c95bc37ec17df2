"""The real command, killed with SIGKILL at random moments: the same command resumes, and the output is byte-identical."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.process import COMMAND, ENVIRONMENT, GERMAN, only_line, run, running
from scale import FULL

pytestmark = pytest.mark.xdist_group("kill")  # one worker, so that the uninterrupted job runs once

LINES, SHARD, TRIALS = (5000, 500, 20) if FULL else (100, 10, 1)


def translate(folder: Path) -> list[str]:
    """With scores and counts, which can differ where texts are equal."""
    return ["translate", str(folder / "text"), "-o", str(folder / "out"), "--json", "--shard-lines", str(SHARD)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The uninterrupted job and its seconds."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    lines = GERMAN.read_bytes().splitlines(keepends=True)
    (folder / "text").write_bytes(b"".join(lines[number % len(lines)] for number in range(LINES)))
    began = time.monotonic()
    process = run(*translate(folder))
    assert process.returncode == 0, process.stderr
    summary = only_line(process.stderr)
    assert summary.startswith(f"{LINES} lines, ")
    assert summary.endswith(f"written to '{folder / 'out'}'")
    return folder, time.monotonic() - began


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_job_killed_at_a_random_moment_resumes(uninterrupted, tmp_path: Path, trial: int, tally):
    before, seconds = uninterrupted
    shutil.copy(before / "text", tmp_path)
    moment = random.Random(trial).uniform(0, seconds)
    command = [*COMMAND, *translate(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
    kept = len(list(tmp_path.glob("out.parts/0*")))
    resumed = run(*translate(tmp_path))
    assert resumed.returncode == 0, resumed.stderr
    if 0 < kept < LINES // SHARD:
        assert b"going on: " in resumed.stderr
    same = (tmp_path / "out").read_bytes() == (before / "out").read_bytes()
    tally("jobs killed at random moments", 1, not same)
    assert same
    assert only_line(run(*translate(tmp_path)).stderr) == f"'{tmp_path / 'out'}' is complete: {LINES} lines; nothing to do"


def test_an_interrupt_reports_the_lines_kept(tmp_path: Path):
    (tmp_path / "text").write_bytes(GERMAN.read_bytes() * 50)  # minutes of work, interrupted after one shard
    with running(*translate(tmp_path)) as process:
        while process.poll() is None and not (tmp_path / "out.parts" / "00000000").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        message = only_line(process.stderr.read())
        assert process.wait() == 130
    assert re.fullmatch(r"interrupted; \d+ lines are kept: the same command goes on from there", message)
    assert not (tmp_path / "out").exists()


def test_a_complete_job_does_not_import_torch(uninterrupted):
    folder, _ = uninterrupted
    script = "import sys; from bestfirst.cli import run; code = run(sys.argv[1:]); sys.exit(code or 'torch' in sys.modules)"
    process = run(*translate(folder), command=[sys.executable, "-c", script])
    assert process.returncode == 0, process.stderr
    assert only_line(process.stderr).endswith("nothing to do")


def test_a_job_stopped_by_a_full_disk_resumes_when_there_is_room(uninterrupted, tmp_path: Path):
    """On a small file system of its own, which is then enlarged."""
    before, _ = uninterrupted
    disk = tmp_path / "disk"
    disk.mkdir()
    whole = (before / "out").stat().st_size
    size = 4096 * max(12, whole // 8192)
    script = f"""
        mount -t tmpfs -o size={size} none {disk} && cp {before}/text {disk}/text || exit 77
        "$@"; echo "code $?" >&2
        mount -o remount,size=64m {disk}
        "$@"; echo "code $?" >&2
        cp {disk}/out {tmp_path}/out
    """
    command = [*COMMAND, *translate(disk)]
    line = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    process = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    if process.returncode in (1, 77) and "code" not in process.stderr:
        pytest.skip(f"cannot mount a file system here: {process.stderr}")
    messages = process.stderr.splitlines()
    assert messages[0].startswith(f"bestfirst: cannot write to '{disk}/out"), process.stderr
    assert "No space left on device; " in messages[0]
    assert messages[0].endswith(" lines are kept: the same command goes on from there")
    assert messages[1] == "code 1"
    assert messages[2].startswith("bestfirst: going on: ")
    assert messages[4:] == ["code 0"]
    assert (tmp_path / "out").read_bytes() == (before / "out").read_bytes()


def test_a_job_is_the_same_however_its_settings_are_written(uninterrupted):
    folder, _ = uninterrupted
    for options in (["--length-penalty", "0"], ["--score", "logprob", "--temperature", "1.0"]):
        assert only_line(run(*translate(folder), *options).stderr).endswith("nothing to do")


def test_another_job_is_refused_without_overwrite(uninterrupted):
    folder, _ = uninterrupted
    process = run(*translate(folder), "--beam", 3)
    assert only_line(process.stderr) == (
        f"'{folder / 'out'}' is of another job (settings beam was 5, is 3); replace it with --overwrite, or name another output"
    )
    assert process.returncode == 2
    process = run("translate", "-o", folder / "out", stdin=b"Ja.\n")
    assert only_line(process.stderr).startswith(f"'{folder / 'out'}' exists, and is of another job")
    assert process.returncode == 2


@pytest.mark.skipif(not FULL, reason="minutes; docs/corpus.md has the figures")
def test_memory_of_the_command_does_not_grow_with_the_input(tmp_path: Path):
    lines = GERMAN.read_bytes().splitlines(keepends=True)
    peaks = []
    for count in (1000, 10_000):
        (tmp_path / "text").write_bytes(b"".join(lines[number % len(lines)] for number in range(count)))
        process = run("translate", tmp_path / "text", "-o", tmp_path / f"{count}", "--stats")
        peaks.append(int(next(line.split()[1] for line in process.stderr.decode().splitlines() if line.startswith("memory"))))
    assert peaks[1] <= 1.2 * peaks[0]
