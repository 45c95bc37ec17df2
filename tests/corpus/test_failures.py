"""A line that fails costs itself; a model that fails on everything ends the job, and what is done is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestfirst import Decoding
from bestfirst.corpus import Record, Worker
from bestfirst.errors import Stopped
from corpus.models import Upper

LINES = [f"line {number}" for number in range(1, 21)]


class Mortal(Upper):
    """Decodes so many texts, and then nothing any more, as a model does whose device is lost."""

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
def test_a_model_that_dies_ends_the_job_and_the_next_goes_on(do, tmp_path: Path, texts: int, name: str):
    (tmp_path / "text").write_text("\n".join(LINES))
    do(tmp_path / "text", tmp_path / f"expected.{name}")
    kept = []
    with pytest.raises(Stopped, match=r"the model fails on everything \(CUDA error: device-side assert triggered\)"):
        do(tmp_path / "text", tmp_path / name, model=Mortal(texts), notice=kept.append)
    assert not (tmp_path / name).exists()
    assert all(not result.failures for result in kept)
    assert len(kept) == texts // 3  # shards that were done before it died
    redone = []
    checkpoint = do(tmp_path / "text", tmp_path / name, notice=redone.append)
    assert len(kept) + len(redone) == 7
    assert checkpoint.tally.failed == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / f"expected.{name}").read_bytes()


def test_a_model_that_runs_out_of_memory_once_costs_nothing(do, tmp_path: Path):
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


def test_lines_that_fail_alone_do_so_however_many(do, tmp_path: Path):
    (tmp_path / "text").write_text("broken\n" * 7 + "fine\n" + "broken\n" * 4)
    checkpoint = do(tmp_path / "text", tmp_path / "out")
    assert (tmp_path / "out").read_text().splitlines() == [""] * 7 + ["FINE"] + [""] * 4
    assert checkpoint.manifest.complete.tally.failed == 11


class Cured(Upper):
    """Bears all texts."""

    def start(self, source):
        return source.upper()


@pytest.mark.parametrize("name", ["out", "out.gz", "out.zst", "out.jsonl", "out.parquet"])
@pytest.mark.parametrize("broken_off", [False, True])
def test_failed_lines_are_done_again_on_request_and_the_others_are_not(do, tmp_path: Path, name: str, broken_off: bool):
    lines = [*LINES[:4], "broken 1", *LINES[5:15], "broken 2", *LINES[16:]]
    (tmp_path / "text").write_text("\n".join(lines))
    do(tmp_path / "text", tmp_path / f"expected.{name}", model=Cured())
    do(tmp_path / "text", tmp_path / name)
    before = (tmp_path / name).read_bytes()
    redone = []
    do(tmp_path / "text", tmp_path / name, notice=redone.append, model=Cured())
    assert redone == []
    assert (tmp_path / name).read_bytes() == before

    def stop(result):
        redone.append(result)
        if broken_off:
            raise KeyboardInterrupt

    if broken_off:
        with pytest.raises(KeyboardInterrupt):
            do(tmp_path / "text", tmp_path / name, notice=stop, model=Cured(), retry_failed=True)
        assert (tmp_path / name).read_bytes() == before  # until there is a better one
        do(tmp_path / "text", tmp_path / name, notice=redone.append, model=Cured())
    else:
        do(tmp_path / "text", tmp_path / name, notice=stop, model=Cured(), retry_failed=True)
    assert [result.index for result in redone] == [1, 5]
    assert (tmp_path / name).read_bytes() == (tmp_path / f"expected.{name}").read_bytes()
    assert do(tmp_path / "text", tmp_path / name, retry_failed=True).manifest.complete.tally.failed == 0
    assert sorted(path.name for path in tmp_path.glob(f"{name}*")) == [name, f"{name}.manifest.json"]


def test_failed_lines_of_a_job_that_is_not_done_are_done_again_too(do, tmp_path: Path):
    (tmp_path / "text").write_text("a\nbroken\nc\n" * 3)

    def stop(result):
        if result.index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(tmp_path / "text", tmp_path / "out", notice=stop)
    redone = []
    do(tmp_path / "text", tmp_path / "out", notice=redone.append, model=Cured(), retry_failed=True)
    assert [result.index for result in redone] == [0, 1, 2]
    assert (tmp_path / "out").read_text() == "A\nBROKEN\nC\n" * 3


def test_the_command_stops_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """200 lines, and from the 50th on the model raises on every input."""
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
    said = capsys.readouterr().err.splitlines()
    kept = "40 lines are kept: the same command goes on from there"
    assert said == [f"bestfirst: the model fails on everything (CUDA error: unspecified launch failure); {kept}"]
    assert not (tmp_path / "out").exists()
    assert run(command) == 0
    assert (tmp_path / "out").read_text().splitlines() == ["Good morning.", "Where is the station?"] * 100


def test_what_ran_out_of_memory_is_not_held_while_less_is_tried(do, tmp_path: Path):
    """A failed step's own memory has to be free for the next: here, two steps never fit beside each other."""

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


def test_a_model_that_dies_ends_a_stream_too():
    """What was decoded before is handed on; no line is given up for the model's sake."""
    done = []
    worker = Worker(Mortal(7), Decoding())
    worker.decode([Record(number, line) for number, line in enumerate(LINES[:5], 1)], lambda *each: done.append(each))
    with pytest.raises(Stopped, match="the model fails on everything"):
        worker.decode([Record(number, line) for number, line in enumerate(LINES[5:], 6)], lambda *each: done.append(each))
    assert sorted(record.number for record, _ in done) == [1, 2, 3, 4, 5]
    assert all(result.status == "complete" for _, result in done)
