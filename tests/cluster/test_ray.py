"""A real Ray cluster of two workers gives the results of one machine, also when a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bestfirst
from bestfirst.cli import run, with_values
from bestfirst.corpus import Checkpoint, ShardResult
from cli.process import GERMAN, only_line
from scale import FULL

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")  # one cluster

LINES = 200 if FULL else 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    settings["_system_config"] = {"memory_monitor_refresh_ms": 0}  # no worker is killed for the memory of other processes
    for tries in range(4, -1, -1):  # Ray waits 30 s for its processes to start, too short on a busy machine
        try:
            ray.init(num_cpus=2, object_store_memory=128 << 20, **settings)
            break
        except Exception:  # its class depends on the version of Ray
            ray.shutdown()
            if not tries:
                raise
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "text"
    path.write_text("\n".join([*GERMAN.read_text(encoding="utf-8").splitlines()[:LINES], "", "Haus " * 600]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(text: Path) -> bytes:
    """The output of one process, with scores and counts."""
    out = text.with_name("alone")
    assert run(["translate", str(text), "-o", str(out), "--json", "--shard-lines", "20"]) == 1
    return out.read_bytes()


def test_output_is_byte_identical_when_a_killed_worker_is_replaced(cluster, text: Path, alone: bytes, capsys, monkeypatch):
    out = text.with_name("out")
    killed: list[int] = []
    commit = Checkpoint.commit

    def kill_one(self: Checkpoint, result: ShardResult) -> None:
        """Kill a worker when the first shard is committed, while others are decoded."""
        commit(self, result)
        if not killed:
            killed.append(worker_pids("ray::ShardActor")[0])
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(Checkpoint, "commit", kill_one)
    asked = ["--json", "--shard-lines", "20", "--ray", "--workers", "2"]
    assert run(["translate", str(text), "-o", str(out), *asked]) == 1  # one line is too long
    assert len(killed) == 1
    assert out.read_bytes() == alone
    assert f"line {LINES + 2}: the input has 601 tokens" in capsys.readouterr().err


def test_deeply_nested_json_reaches_the_workers(cluster, text: Path, capsys):
    source, out = text.with_name("deep.jsonl"), text.with_name("deep.out.jsonl")
    line = '{"text": "Guten Morgen!", "deep": ' + "[" * 500 + "]" * 500 + "}"
    source.write_text(f"{line}\n" * 3)
    assert run(["translate", str(source), "-o", str(out), "--ray", "--workers", "1"]) == 0
    assert out.read_text() == (line[:-1] + ', "translation": "Good morning."}\n') * 3
    out = text.with_name("deep.parquet")
    assert run(["translate", str(source), "-o", str(out), "--ray", "--workers", "1"]) == 1
    messages = capsys.readouterr().err
    assert "line 3: field 'deep' does not fit into Parquet: nested more than 50 deep" in messages
    assert "Traceback" not in messages


def test_decode_dataset_keeps_the_rows_and_adds_their_translations(cluster, text: Path):
    from bestfirst.cluster import decode_dataset

    lines = [*text.read_text(encoding="utf-8").split("\n"), None]
    ds = ray.data.from_items([{"id": number, "text": line} for number, line in enumerate(lines)], override_num_blocks=4)
    rows = sorted(decode_dataset(ds, workers=2, beam=4, nbest=2, batch_size=50).take_all(), key=lambda row: row["id"])
    assert [row["text"] for row in rows] == lines
    expected = bestfirst.decode(bestfirst.load(), lines[:LINES], beam=4, nbest=2)
    assert [row["translation"] for row in rows] == [*(result.text for result in expected), "", None, None]
    assert [row["calls"] for row in rows[:LINES]] == [result.calls for result in expected]
    assert [[each["text"] for each in row["nbest"]] for row in rows[:LINES]] == [
        [answer.text for answer in result.hypotheses] for result in expected
    ]
    assert rows[0]["score"] == pytest.approx(expected[0].hypotheses[0].score, abs=1e-4)
    assert [row["status"] for row in rows[-3:]] == ["complete", "error", "complete"]
    assert rows[-2]["message"].startswith("the input has 601 tokens")


def test_errors_on_a_worker_are_reported_in_one_line(cluster, text: Path, capsys):
    out = text.with_name("never")
    code = run(["translate", str(text), "-o", str(out), "--ray", "--workers", "1", "--target-lang", "xx_Yyyy"])
    assert only_line(capsys.readouterr().err).startswith("unknown target language 'xx_Yyyy'")
    assert code == 2
    assert not list(out.parent.glob("never*"))


def test_an_unreachable_cluster_is_reported_with_its_address(text: Path, capsys):
    if ray.is_initialized():
        ray.shutdown()
    code = run(["translate", str(text), "-o", f"{text}.out", "--ray", "127.0.0.1:1"])
    assert only_line(capsys.readouterr().err).startswith("cannot reach Ray at '127.0.0.1:1': ")
    assert code == 2


def test_ray_needs_an_output_file(capsys):
    assert run(["translate", str(GERMAN), "--ray"]) == 2
    assert only_line(capsys.readouterr().err).startswith("--ray goes from file to file")


def test_the_ray_address_is_optional():
    assert with_values(["translate", "--ray", "a.de", "-o", "b"]) == ["translate", "--ray", "local", "a.de", "-o", "b"]
    assert with_values(["translate", "a.de", "--ray"]) == ["translate", "a.de", "--ray", "local"]
    for address in ("auto", "10.0.0.1:6379", "ray://head:10001"):
        assert with_values(["translate", "--ray", address]) == ["translate", "--ray", address]


def parent_pid(process: str) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1]


def worker_pids(name: str) -> list[int]:
    """PIDs of the grandchildren of this process with this name: the workers of the cluster started here."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            grandparent = parent_pid(parent_pid(folder.name))
        except (OSError, IndexError):
            continue
        if command.startswith(name) and grandparent == str(os.getpid()):
            found.append(int(folder.name))
    return found
