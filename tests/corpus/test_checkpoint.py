"""The files of earlier jobs decide whether a job resumes, begins, is complete or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bestfirst.corpus import Checkpoint, Input, Target
from bestfirst.durable_files import Journal
from bestfirst.errors import Conflict, Stopped, Unusable
from cli.process import only_line


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("".join(f"line {number}\n" for number in range(1, 11)))
    return path


def test_a_complete_job_is_not_repeated(do, text: Path):
    done = []
    out = text.with_name("out")
    for _ in range(2):
        store = do(text, out, notice=done.append)
    assert [finished.index for finished in done] == [0, 1, 2, 3]
    assert store.manifest.complete.tally.lines == 10
    assert not Path(f"{out}.parts").exists()
    do(text, out, overwrite=True, notice=done.append)
    assert len(done) == 8
    out.unlink()  # a removed output is made again
    do(text, out, notice=done.append)
    assert len(done) == 12
    assert out.exists()


def test_an_input_is_identified_by_content_not_by_name(do, text: Path, tmp_path: Path):
    done = []
    do(text, tmp_path / "out", notice=done.append)
    do(text.rename(tmp_path / "moved"), tmp_path / "out", notice=done.append)
    assert len(done) == 4


def test_the_output_of_another_job_is_overwritten_only_on_request(do, text: Path):
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


def test_an_output_changed_after_its_job_is_an_error(do, text: Path):
    out = text.with_name("out")
    do(text, out)
    out.write_text(out.read_text().replace("LINE 3", "LINE E"))
    with pytest.raises(Unusable, match="was changed after its job"):
        do(text, out)


def test_an_existing_empty_output_is_replaced(do, text: Path):
    text.with_name("out").touch()
    do(text, text.with_name("out"))
    assert text.with_name("out").read_text().startswith("LINE 1\n")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1}'])
def test_an_invalid_manifest_is_reported(do, text: Path, content: str):
    Path(f"{text}.out.manifest.json").write_text(content)
    with pytest.raises(Unusable, match="is not a manifest"):
        do(text, Path(f"{text}.out"))
    do(text, Path(f"{text}.out"), overwrite=True)


def test_a_damaged_shard_is_decoded_again(do, text: Path):
    """Even if its size is right."""
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


def test_only_one_process_at_a_time_may_write_an_output(text: Path, tmp_path: Path):
    with Checkpoint(str(tmp_path / "out"), {}, Target()), pytest.raises(Unusable, match="another process is at work on"):
        Checkpoint(str(tmp_path / "out"), {}, Target()).__enter__()
    assert not (tmp_path / "out.parts").exists()


def test_an_input_that_grows_during_the_job_is_an_error(do, text: Path):
    def change(finished):
        if finished.index == 1:
            with text.open("a") as more:
                more.write("and another\n")

    with pytest.raises(Stopped, match="was changed while it was read"):
        do(text, text.with_name("out"), notice=change)
    assert not text.with_name("out").exists()


def test_a_symbolic_link_as_output_is_followed(do, text: Path, tmp_path: Path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "far" / "away")
    do(text, tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "far" / "away").read_text().startswith("LINE 1\n")


def test_the_manifest_records_the_job_and_its_outcome(do, tmp_path: Path):
    (tmp_path / "text").write_text("fine\nbroken\n")
    do(tmp_path / "text", tmp_path / "out")
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    assert manifest["job"]["input"]["lines"] == 2
    assert len(manifest["signature"]) == 16
    assert manifest["complete"]["failures"] == [[2, "ZeroDivisionError: no such text"]]
    assert manifest["complete"]["tally"]["failed"] == 1


def test_shards_are_read_lazily(tmp_path: Path):
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


@pytest.mark.parametrize("name", ["text", "rows.jsonl", "rows.parquet"])
def test_an_input_that_is_rewritten_during_the_job_is_an_error(do, tmp_path: Path, name: str):
    """The new content has as many lines. When the old is restored, shards of the new are not used."""

    def content(line: str) -> bytes:
        if name.endswith("parquet"):
            out = pa.BufferOutputStream()
            pq.write_table(pa.table({"text": [f"{line} {number}" for number in range(1, 11)]}), out)
            return out.getvalue().to_pybytes()
        lines = [f"{line} {number}" for number in range(1, 11)]
        return "".join(json.dumps({"text": each}) + "\n" if "json" in name else each + "\n" for each in lines).encode()

    source, out = tmp_path / name, tmp_path / "out"
    source.write_bytes(content("line"))

    def rewrite(result):
        if result.index == 1:
            source.write_bytes(content("LIME"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bestfirst.corpus.records.BLOCK", 16)  # so that it is read during the job
        with pytest.raises(Stopped, match="was changed while it was read"):
            do(source, out, notice=rewrite)
    assert not out.exists()
    with pytest.raises(Conflict, match="input content is not the same"):
        do(source, out)
    source.write_bytes(content("line"))
    do(source, out)
    assert out.read_text().splitlines() == [f"LINE {number}" for number in range(1, 11)]


def test_foreign_files_in_the_parts_folder_are_kept(do, text: Path):
    out, parts = text.with_name("out"), text.with_name("out.parts")
    parts.mkdir()
    (parts / "thesis.txt").write_text("years of work")
    do(text, out)
    do(text, out, overwrite=True)
    assert [(path.name, path.read_text()) for path in parts.iterdir()] == [("thesis.txt", "years of work")]
    assert out.read_text().startswith("LINE 1\n")


@pytest.mark.parametrize("name", ["00000000", "output", "journal.jsonl"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_named_like_ours_are_kept_and_an_error(do, text: Path, name: str, overwrite: bool):
    out, parts = text.with_name("out"), text.with_name("out.parts")
    parts.mkdir()
    (parts / name).write_text("years of work")
    with pytest.raises(Unusable, match="has files of no job that is known here; move them, or name another output"):
        do(text, out, overwrite=overwrite)
    assert [(path.name, path.read_text()) for path in parts.iterdir()] == [(name, "years of work")]


def test_an_invalid_manifest_is_kept_under_another_name(do, text: Path):
    manifest = text.with_name("out.manifest.json")
    for content in ("mine", "mine too"):
        manifest.write_text(content)
        do(text, text.with_name("out"), overwrite=True)
    assert text.with_name("out.manifest.json.1").read_text() == "mine"
    assert text.with_name("out.manifest.json.2").read_text() == "mine too"


@pytest.mark.parametrize("name", ["out", "out.manifest.json", "out.parts/00000000"])
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_a_job_that_would_overwrite_its_input_is_refused(tmp_path: Path, capsys, name: str, options: list[str]):
    from bestfirst.cli import run

    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    source.write_text("Guten Morgen!\n")
    assert run(["translate", str(source), "-o", str(tmp_path / "out"), *options]) == 2
    message = only_line(capsys.readouterr().err)
    assert message == f"'{source}' is a file that this command reads or writes already; name another"
    assert source.read_text() == "Guten Morgen!\n"


def interrupted_job(do, text: Path, shards: int) -> Path:
    """The output of a job interrupted after so many shards."""
    done = []

    def stop(result):
        done.append(result.index)
        if len(done) == shards:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(text, text.with_name("out"), notice=stop)
    return text.with_name("out")


DEEP = "[" * 100_000
DAMAGES = {
    "job is null": lambda state: json.dumps({**json.loads(state), "job": None}),
    "job is of other types": lambda state: json.dumps({**json.loads(state), "job": {"input": 3}}),
    "no row budget": lambda state: json.dumps({**json.loads(state), "row_budget": "many"}),
    "complete is a text": lambda state: json.dumps({**json.loads(state), "complete": "yes"}),
    "nested": lambda state: DEEP,
    "torn": lambda state: state[:40],
    "empty": lambda state: "",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_finished_shards_survive_a_damaged_manifest(do, text: Path, damage):
    out, redone = interrupted_job(do, text, 3), []
    manifest = Path(f"{out}.manifest.json")
    manifest.write_text(damage(manifest.read_text()))
    do(text, out, notice=lambda result: redone.append(result.index))
    assert redone == [3]
    assert out.read_text().splitlines() == [f"LINE {number}" for number in range(1, 11)]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_manifest_of_a_complete_job_is_reported(do, text: Path, damage):
    out = text.with_name("out")
    do(text, out)
    manifest = Path(f"{out}.manifest.json")
    manifest.write_text(damage(manifest.read_text()))
    with pytest.raises(Unusable, match="is not a manifest"):
        do(text, out)
    do(text, out, overwrite=True)


@pytest.mark.parametrize(
    "change",
    [
        {"shard": "one"}, {"shard": -1}, {"size": None}, {"sha256": 3}, {"tally": None}, {"tally": {"lines": 3}},
        {"failures": 7}, {"failures": [[1]]}, {"more": 1}, {"source": ""}, {"job": 1},
    ],
    ids=str,
)  # fmt: skip
def test_only_the_shard_of_a_damaged_journal_line_is_decoded_again(do, text: Path, change: dict):
    out, redone = interrupted_job(do, text, 3), []
    journal = Path(f"{out}.parts") / "journal.jsonl"
    lines = journal.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    journal.write_text("\n".join([DEEP, *lines, "null", "no JSON"]))
    checkpoint = do(text, out, notice=lambda result: redone.append(result.index))
    assert redone == [1, 3]
    assert checkpoint.tally.lines == 10
    assert out.read_text().splitlines() == [f"LINE {number}" for number in range(1, 11)]


@pytest.mark.parametrize("lines", [2, 4, -1, "many", 3.5, True])
def test_a_wrong_line_count_in_the_journal_is_recovered_from(do, text: Path, lines: object):
    out, redone = interrupted_job(do, text, 2), []
    journal = Path(f"{out}.parts") / "journal.jsonl"
    first, second = map(json.loads, journal.read_text().splitlines())
    second["tally"]["lines"] = lines
    journal.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    checkpoint = do(text, out, notice=lambda result: redone.append(result.index))
    assert redone == [1, 2, 3]
    assert checkpoint.manifest.complete.tally.lines == 10


def test_shards_are_verified_when_the_output_is_assembled(do, text: Path):
    out, done = text.with_name("out"), []

    def damage(result):
        done.append(result.index)
        if done == [0, 1, 2, 3]:
            (text.with_name("out.parts") / "00000001").write_text("LIMA 4\nLIMA 5\nLIMA 6\n")
            (text.with_name("out.parts") / "00000002").unlink()

    do(text, out, notice=damage)
    assert done == [0, 1, 2, 3, 1, 2]
    assert out.read_text().splitlines() == [f"LINE {number}" for number in range(1, 11)]


def test_a_disk_that_corrupts_shards_repeatedly_ends_the_job(do, text: Path):
    def damage(result):
        (text.with_name("out.parts") / f"{result.index:08d}").write_text("nothing of that kind")

    with pytest.raises(Stopped, match="does not stay as it was written"):
        do(text, text.with_name("out"), notice=damage)
    assert not text.with_name("out").exists()


def test_a_journal_that_could_not_be_appended_to_is_closed_without_an_error(tmp_path: Path):
    """The error at closing replaced the message that says what is kept."""
    resource = pytest.importorskip("resource")
    journal = Journal(tmp_path / "journal")
    journal.append(b"first\n")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9, usual[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(b"second\n")
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    journal = Journal(tmp_path / "journal")
    assert ([*journal.lines()], journal.torn) == ([b"first\n"], b"sec")
    journal.append(b"third\n")
    assert [*journal.lines()] == [b"first\n", b"third\n"]
    journal.close()
