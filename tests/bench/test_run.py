"""bench run: rows are saved as they are finished, none is made twice, and errors are one line."""

from __future__ import annotations

import gzip
import json
import signal
import time

import pytest

from bench.conftest import ENGLISH, GERMAN, call
from bestfirst.cli.console import CommandError
from bestfirst_bench.cli.measured_work import read_lines
from cli.process import only_line, running
from cli.process import run as run_process

SETTINGS = ["--strategy", "beam,best-first", "--beam", "3,8", "--limit", "40"]


def keys(file) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(row["signature"], row["line"]) for row in rows]


def test_a_killed_run_resumes_and_prints_the_same_table(tmp_path):
    killed, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    command = ["bench", "run", GERMAN, ENGLISH, *SETTINGS, "--metrics", "bleu"]
    for _ in range(5):  # it may finish before it is killed
        killed.unlink(missing_ok=True)
        with running(*command, "--rows", killed) as process:
            while process.poll() is None and not (killed.exists() and killed.read_bytes().count(b"\n") >= 10):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() in (0, -signal.SIGKILL), process.stderr.read()
        before = killed.read_bytes()
        if process.returncode and before.count(b"\n") < 160:
            break
    finished = before[: before.rfind(b"\n") + 1]
    assert 10 <= finished.count(b"\n") < 160
    resumed = run_process(*command, "--rows", killed)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{finished.count(bytes([10]))} of 160 rows are in" in resumed.stderr.decode()
    assert killed.read_bytes().startswith(finished)
    assert len(set(keys(killed))) == len(keys(killed)) == 160
    uninterrupted = run_process(*command, "--rows", whole)
    assert uninterrupted.stdout == resumed.stdout
    assert uninterrupted.stdout.count(b"\n") > 6


def test_an_interrupt_reports_the_rows_saved(tmp_path):
    file = tmp_path / "rows.jsonl"
    with running("bench", "run", GERMAN, *SETTINGS[:-1], "200", "--rows", file) as process:
        while not (file.exists() and file.read_bytes().count(b"\n") >= 5):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130
    message = only_line(stderr)
    assert message.startswith("interrupted; ")
    assert message.endswith(f"rows were made and are in {str(file)!r}: the same command goes on from there")
    assert int(message.split()[1]) == len(keys(file))


def test_every_combination_gives_a_row_per_line_and_a_rerun_makes_none(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    asked = [
        "--strategy",
        "beam,best-first,early",
        "--score",
        "logprob",
        "--score",
        "gnmt:alpha=0.6",
        "--beam",
        "2,3",
        "--limit",
        "2",
    ]
    assert call("bench", "run", GERMAN, ENGLISH, *asked, "--rows", file, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(set(keys(file))) == len(keys(file)) == 24
    assert len(lines) == 12
    for line in lines:
        assert line["lines"] == 2
        assert (line["against"] is None) == (line["search"] == "beam")
        if line["search"] == "best-first":
            assert (line["against"]["different"], line["exact"]) == (0, 2)
            assert line["against"]["increase"] >= 0
    saved = file.read_bytes()
    assert call("bench", "run", GERMAN, ENGLISH, *asked, "--rows", file) == 0
    assert "24 of 24 rows are in" in capsys.readouterr().err
    assert file.read_bytes() == saved


def test_a_larger_sample_contains_a_smaller_one_and_reuses_its_rows(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    command = ["bench", "run", GERMAN, "--strategy", "greedy", "--beam", "1", "--seed", "3", "--rows", file]
    assert call(*command, "--sample", "4") == 0
    assert call(*command, "--sample", "7") == 0
    assert "4 of 7 rows are in" in capsys.readouterr().err
    assert call(*command[:-4], "--seed", "4", "--rows", file, "--sample", "4") == 0
    assert len({line for _, line in keys(file)}) > 7


def test_lines_that_cannot_be_decoded_are_reported_and_the_others_decoded(tmp_path, capsys):
    source, file = tmp_path / "text", tmp_path / "rows.jsonl"
    source.write_text("Ja.\n\n" + "sehr " * 600 + "\nNein.\n", encoding="utf-8")
    assert call("bench", "run", source, "--beam", "2", "--rows", file) == 1
    out = capsys.readouterr()
    assert only_line(out.err).startswith("text, line 3: the input has ")
    assert {line for _, line in keys(file)} == {1, 4}
    assert "best-first" in out.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GERMAN, "missing.en"], "cannot read 'missing.en': No such file or directory"),
        (["missing.de", ENGLISH], "cannot read 'missing.de': No such file or directory"),
        ([GERMAN, __file__], "each needs its translation"),
        (["talks.jsonl"], "'talks.jsonl': a text is needed, one sentence a line, not records"),
        ([GERMAN, "--model", "/no/such/folder"], "no model folder at '/no/such/folder'"),
        ([GERMAN, "--strategy", "beem"], "unknown strategy 'beem'; choose from greedy, beam,"),
        ([GERMAN, "--score", "bleu"], "unknown score 'bleu'"),
        ([GERMAN, "--score", "gnmt"], "score 'gnmt' needs alpha"),
        ([GERMAN, "--score", "gnmt:alpha"], "a score is written name:parameter=number"),
        ([GERMAN, "--score", "mutual-information:weight=0.1,epsilon=0.1"], "needs a language model; name one with --lm"),
        ([GERMAN, "--beam", "5,x"], "--beam takes numbers separated by commas, got '5,x'"),
        ([GERMAN, "--finished", "keep", "--strategy", "hf-never"], "is for finished='leave'"),
        ([GERMAN, "--length-ratio", "0"], "--length-ratio must be above 0, got 0"),
        ([GERMAN, "--length-ratio", "2", "--max-length", "9"], "exclude each other"),
        ([GERMAN, "--metrics", "meteor"], "unknown metric 'meteor'; choose from bleu, chrf, rouge-l"),
        ([GERMAN, "--tokenize", "15b"], "sacrebleu has no tokenizer '15b'"),
        ([GERMAN, "--limit", "0"], "'0' is not a whole number from 1 up"),
        ([GERMAN, "--limit", "1", "--rows", GERMAN], "line 1: not a row that bestfirst bench wrote"),
        ([GERMAN, "--limit", "1", "--rows", "/proc/rows"], "cannot keep rows in '/proc/rows'"),
    ],
)
def test_usage_errors_are_reported_in_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = GERMAN.read_bytes()
    assert call("bench", "run", *arguments) == 2
    assert said in only_line(capsys.readouterr().err)
    assert GERMAN.read_bytes() == before


def test_a_compressed_text_is_read(tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress(GERMAN.read_bytes()))
    assert read_lines(tmp_path / "text.gz") == read_lines(GERMAN)
    (tmp_path / "text.gz").write_bytes(GERMAN.read_bytes())
    with pytest.raises(CommandError, match="Not a gzipped file"):
        read_lines(tmp_path / "text.gz")


def test_rows_of_another_model_are_refused(rows_file, other_model, capsys):
    saved = rows_file.read_bytes()
    assert call("bench", "run", GERMAN, ENGLISH, "--limit", "1", "--model", other_model, "--rows", rows_file) == 2
    message = only_line(capsys.readouterr().err)
    assert "has results of the model tatoeba-de-en@" in message
    assert message.endswith("name another file with --rows")
    assert rows_file.read_bytes() == saved
