"""A failing line fails alone; a model that fails on every line ends the job, and finished shards are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestfirst import Decoding
from bestfirst.corpus import Record, Worker
from bestfirst.errors import Stopped
from corpus.models import Upper

LINES = [f"line {number}" for number in range(1, 21)]


class FailsAfter(Upper):
    """Decodes so many texts and then always raises, like a model whose device is lost."""

    def __init__(self, texts: int) -> None:
        self.left = texts

    def start(self, source):
        self.left -= 1
        return super().start(source)

    def score(self, batch):
        if self.left < 0:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().score(batch)


@pytest.mark.parametrize("texts", [0, 1, 2, 7, 19])
@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet", "out.gz"])
def test_a_model_that_always_fails_ends_the_job_and_the_next_run_resumes(do, tmp_path: Path, texts: int, name: str):
    (tmp_path / "text").write_text("\n".join(LINES))
    do(tmp_path / "text", tmp_path / f"expected.{name}")
    kept = []
    with pytest.raises(Stopped, match=r"the model fails on everything \(CUDA error: device-side assert triggered\)"):
        do(tmp_path / "text", tmp_path / name, model=FailsAfter(texts), notice=kept.append)
    assert not (tmp_path / name).exists()
    assert all(not result.failures for result in kept)
    assert len(kept) == texts // 3  # shards finished before the model failed
    redone = []
    checkpoint = do(tmp_path / "text", tmp_path / name, notice=redone.append)
    assert len(kept) + len(redone) == 7
    assert checkpoint.tally.failed == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / f"expected.{name}").read_bytes()


def test_occasional_out_of_memory_errors_fail_no_line(do, tmp_path: Path):
    class Once(Upper):
        calls = 0

        def score(self, batch):
            self.calls += 1
            if self.calls in (4, 5, 9):
                raise MemoryError
            return super().score(batch)

    (tmp_path / "text").write_text("\n".join(LINES))
    checkpoint = do(tmp_path / "text", tmp_path / "out", model=Once())
    assert (tmp_path / "out").read_text().splitlines() == [line.upper() for line in LINES]
    assert checkpoint.tally.failed == 0


def test_many_lines_that_fail_alone_do_not_end_the_job(do, tmp_path: Path):
    (tmp_path / "text").write_text("broken\n" * 7 + "fine\n" + "broken\n" * 4)
    checkpoint = do(tmp_path / "text", tmp_path / "out")
    assert (tmp_path / "out").read_text().splitlines() == [""] * 7 + ["FINE"] + [""] * 4
    assert checkpoint.manifest.complete.tally.failed == 11


class AcceptsAll(Upper):
    """Accepts all texts."""

    def start(self, source):
        return source.upper()


@pytest.mark.parametrize("name", ["out", "out.gz", "out.zst", "out.jsonl", "out.parquet"])
@pytest.mark.parametrize("broken_off", [False, True])
def test_retry_failed_decodes_only_the_shards_with_failed_lines(do, tmp_path: Path, name: str, broken_off: bool):
    lines = [*LINES[:4], "broken 1", *LINES[5:15], "broken 2", *LINES[16:]]
    (tmp_path / "text").write_text("\n".join(lines))
    do(tmp_path / "text", tmp_path / f"expected.{name}", model=AcceptsAll())
    do(tmp_path / "text", tmp_path / name)
    before = (tmp_path / name).read_bytes()
    redone = []
    do(tmp_path / "text", tmp_path / name, notice=redone.append, model=AcceptsAll())
    assert redone == []
    assert (tmp_path / name).read_bytes() == before

    def stop(result):
        redone.append(result)
        if broken_off:
            raise KeyboardInterrupt

    if broken_off:
        with pytest.raises(KeyboardInterrupt):
            do(tmp_path / "text", tmp_path / name, notice=stop, model=AcceptsAll(), retry_failed=True)
        assert (tmp_path / name).read_bytes() == before  # until the new output is complete
        do(tmp_path / "text", tmp_path / name, notice=redone.append, model=AcceptsAll())
    else:
        do(tmp_path / "text", tmp_path / name, notice=stop, model=AcceptsAll(), retry_failed=True)
    assert [result.index for result in redone] == [1, 5]
    assert (tmp_path / name).read_bytes() == (tmp_path / f"expected.{name}").read_bytes()
    assert do(tmp_path / "text", tmp_path / name, retry_failed=True).manifest.complete.tally.failed == 0
    assert sorted(path.name for path in tmp_path.glob(f"{name}*")) == [name, f"{name}.manifest.json"]


def test_retry_failed_also_works_on_an_unfinished_job(do, tmp_path: Path):
    (tmp_path / "text").write_text("a\nbroken\nc\n" * 3)

    def stop(result):
        if result.index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(tmp_path / "text", tmp_path / "out", notice=stop)
    redone = []
    do(tmp_path / "text", tmp_path / "out", notice=redone.append, model=AcceptsAll(), retry_failed=True)
    assert [result.index for result in redone] == [0, 1, 2]
    assert (tmp_path / "out").read_text() == "A\nBROKEN\nC\n" * 3


def test_the_command_reports_a_failing_model_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """200 lines; after the 50th input the model raises on every one."""
    import bestfirst.models.text_model as models
    from bestfirst.cli import run

    (tmp_path / "text").write_text("Guten Morgen!\nWo ist der Bahnhof?\n" * 100)
    command = ["translate", str(tmp_path / "text"), "-o", str(tmp_path / "out"), "--shard-lines", "20"]
    real, texts = models.TextModel.reader, []

    def reader(self, prefix=None):
        read = real(self, prefix)

        def reading(text):
            texts.append(text)
            if len(texts) > 50:
                raise RuntimeError("CUDA error: unspecified launch failure\nand more")
            return read(text)

        return reading

    with monkeypatch.context() as patch:
        patch.setattr(models.TextModel, "reader", reader)
        assert run(command) == 1
    messages = capsys.readouterr().err.splitlines()
    kept = "40 lines are kept: the same command goes on from there"
    assert messages == [f"bestfirst: the model fails on everything (CUDA error: unspecified launch failure); {kept}"]
    assert not (tmp_path / "out").exists()
    assert run(command) == 0
    assert (tmp_path / "out").read_text().splitlines() == ["Good morning.", "Where is the station?"] * 100


def test_memory_of_a_failed_step_is_released_before_a_smaller_one(do, tmp_path: Path):
    """The memory of a failed step must be free for the next: here two steps never fit together."""

    class Room:
        taken = 0

        def __init__(self) -> None:
            if Room.taken:
                raise MemoryError
            Room.taken += 1

        def __del__(self) -> None:
            Room.taken = 0

    class Large(Upper):
        def score(self, batch):
            room = Room()
            if len(batch) > 1:
                raise MemoryError(room)
            return super().score(batch)

    (tmp_path / "text").write_text("\n".join(LINES))
    checkpoint = do(tmp_path / "text", tmp_path / "out", model=Large())
    assert (tmp_path / "out").read_text().splitlines() == [line.upper() for line in LINES]
    assert checkpoint.tally.failed == 0


def test_a_model_that_always_fails_ends_a_stream():
    """Lines decoded before are passed on; no line is reported as failed."""
    done = []
    worker = Worker(FailsAfter(7), Decoding())
    worker.decode([Record(number, line) for number, line in enumerate(LINES[:5], 1)], lambda *each: done.append(each))
    with pytest.raises(Stopped, match="the model fails on everything"):
        worker.decode([Record(number, line) for number, line in enumerate(LINES[5:], 6)], lambda *each: done.append(each))
    assert sorted(record.number for record, _ in done) == [1, 2, 3, 4, 5]
    assert all(result.status == "complete" for _, result in done)
