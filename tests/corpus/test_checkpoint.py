"""What is there already decides: go on, begin, nothing to do, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bestfirst.corpus import Checkpoint, Input, Target
from bestfirst.errors import Conflict, Stopped, Unusable


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("".join(f"line {number}\n" for number in range(1, 11)))
    return path


def test_a_complete_job_is_not_done_again(do, text: Path):
    done = []
    out = text.with_name("out")
    for _ in range(2):
        store = do(text, out, notice=done.append)
    assert [finished.index for finished in done] == [0, 1, 2, 3]
    assert store.manifest.complete.tally.lines == 10
    assert not Path(f"{out}.parts").exists()
    do(text, out, overwrite=True, notice=done.append)
    assert len(done) == 8
    out.unlink()  # whoever removes it wants it again
    do(text, out, notice=done.append)
    assert len(done) == 12
    assert out.exists()


def test_the_content_is_what_matters_not_the_name(do, text: Path, tmp_path: Path):
    done = []
    do(text, tmp_path / "out", notice=done.append)
    do(text.rename(tmp_path / "moved"), tmp_path / "out", notice=done.append)
    assert len(done) == 4


def test_another_job_is_refused_and_overwrites_on_request(do, text: Path):
    out = text.with_name("out")
    out.write_text("mine\n")
    with pytest.raises(Conflict, match="exists, and is of another job"):
        do(text, out)
    assert out.read_text() == "mine\n"
    do(text, out, overwrite=True)
    with pytest.raises(Unusable, match=r"of another job \(output form was \"text\", is \"json\"\)"):
        do(text, out, Target("json"))
    text.write_text("line 1\nline two\n")
    with pytest.raises(Unusable, match="input lines was 10, is 2; input content is not the same"):
        do(text, out)
    assert len(out.read_text().splitlines()) == 10


def test_an_output_that_was_changed_is_not_taken_for_complete(do, text: Path):
    out = text.with_name("out")
    do(text, out)
    out.write_text(out.read_text().replace("LINE 3", "LINE E"))
    with pytest.raises(Unusable, match="was changed after its job"):
        do(text, out)


def test_an_empty_output_that_exists_is_no_job(do, text: Path):
    text.with_name("out").touch()
    do(text, text.with_name("out"))
    assert text.with_name("out").read_text().startswith("LINE 1\n")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1}'])
def test_what_is_no_manifest_is_named(do, text: Path, content: str):
    Path(f"{text}.out.manifest.json").write_text(content)
    with pytest.raises(Unusable, match="is not a manifest"):
        do(text, Path(f"{text}.out"))
    do(text, Path(f"{text}.out"), overwrite=True)


def test_a_damaged_shard_is_done_again(do, text: Path):
    """Also one whose size is right."""
    out, done = text.with_name("out"), []

    def stop_at_third(finished):
        done.append(finished.index)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(text, out, notice=stop_at_third)
    parts = Path(f"{out}.parts")
    assert sorted(path.name for path in parts.glob("0*")) == ["00000000", "00000001", "00000002"]
    (parts / "00000001").write_bytes((parts / "00000001").read_bytes().lower())
    done.clear()
    store = do(text, out, notice=lambda finished: done.append(finished.index))
    assert done == [1, 3]
    assert store.tally.lines == 10
    assert out.read_text().splitlines() == [f"LINE {number}" for number in range(1, 11)]


def test_one_process_at_a_time(text: Path, tmp_path: Path):
    with Checkpoint(str(tmp_path / "out"), {}, Target()), pytest.raises(Unusable, match="another process is at work on"):
        Checkpoint(str(tmp_path / "out"), {}, Target()).__enter__()
    assert not (tmp_path / "out.parts").exists()


def test_an_input_that_changes_meanwhile_is_noticed(do, text: Path):
    def change(finished):
        if finished.index == 1:
            with text.open("a") as more:
                more.write("and another\n")

    with pytest.raises(Stopped, match="was changed while it was read"):
        do(text, text.with_name("out"), notice=change)
    assert not text.with_name("out").exists()


def test_a_link_is_followed(do, text: Path, tmp_path: Path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "far" / "away")
    do(text, tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "far" / "away").read_text().startswith("LINE 1\n")


def test_the_manifest_says_what_the_job_is_and_what_came_of_it(do, tmp_path: Path):
    (tmp_path / "text").write_text("fine\nbroken\n")
    do(tmp_path / "text", tmp_path / "out")
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert manifest["job"]["input"]["lines"] == 2
    assert len(manifest["signature"]) == 16
    assert manifest["complete"]["failures"] == [[2, "ZeroDivisionError: no such text"]]
    assert manifest["complete"]["tally"]["failed"] == 1


def test_shards_are_read_as_they_are_used(tmp_path: Path):
    (tmp_path / "text").write_bytes(b"eine Zeile\n" * 200_000)
    source = Input(str(tmp_path / "text"))
    taken = []

    def work(shards):
        for shard in shards:
            taken.append(shard.index)
            raise KeyboardInterrupt
        return []

    with Checkpoint(str(tmp_path / "out"), {}, Target()) as checkpoint:
        checkpoint.state()
        checkpoint.begin(None)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.run(source, source.survey(), work)
    assert taken == [0]
