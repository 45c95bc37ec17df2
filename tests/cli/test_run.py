"""The parts of `translate` on a toy model: batches of lines, order, and one bad line among good ones."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path

import pytest

from bestfirst import Decoding, Model, Scored
from bestfirst.cli.console import Output, progress_bar, silence_libraries
from bestfirst.cli.corpus import CostSummary, show_saved
from bestfirst.cli.translate import Stream
from bestfirst.corpus import Record, Tally, Worker
from bestfirst.corpus.records import batches, read_line
from bestfirst.search import Answer, Result


class Upper(Model):
    """Upper-cases its input, one token per character; raises if it contains `broken`."""

    eos = (0,)

    def __init__(self) -> None:
        self.batches: list[int] = []

    def start(self, source):
        if "broken" in source:
            raise ZeroDivisionError("no such text")
        return source.upper()

    def score(self, batch):
        self.batches.append(len(batch))
        out = []
        for text, prefix in batch:
            wanted = ord(text[len(prefix)]) if len(prefix) < len(text) else 0
            out.append(Scored([0.0 if token == wanted else -9.0 for token in range(128)], text))
        return out

    def text(self, source, tokens):
        return "".join(chr(token) for token in tokens if token)


@pytest.fixture
def translated(tmp_path: Path):
    """`translated([b"one", ...])`: the output lines, the trace's lines, and the `Stream`."""

    def translated(raw: list[bytes]):
        out, events = Output(str(tmp_path / "out")), Output(str(tmp_path / "events"))
        run = Stream(Worker(Upper(), Decoding()), out, events, lambda **_: None)
        run.translate([read_line(number, line) for number, line in enumerate(raw, 1)])
        out.close(), events.close()
        return (tmp_path / "out").read_text().splitlines(), (tmp_path / "events").read_text().splitlines(), run

    return translated


def test_an_exception_in_the_models_code_fails_only_its_line(translated, capsys):
    lines = [b"line %d" % number for number in range(1, 40)]
    lines[6] = lines[30] = b"broken"
    out, events, run = translated(lines)
    expected = [line.decode().upper() for line in lines]
    expected[6] = expected[30] = ""
    assert out == expected
    assert run.summary.tally.failed == 2
    assert capsys.readouterr().err.splitlines() == [f"bestfirst: line {n}: ZeroDivisionError: no such text" for n in (7, 31)]
    pushed = [json.loads(event) for event in events[1:]]  # after the header
    roots = [event["line"] for event in pushed if event["event"] == "push" and event["parent"] is None]
    assert roots == list(range(1, 40))  # every search once, also those batched with a broken line


def test_lines_without_text_do_not_reach_the_model(translated, capsys):
    out, _, run = translated([b"", b"  ", b"\xff", b"\t\r"])
    assert (out, run.worker.model.batches, run.summary.tally.failed) == (["", "", "", ""], [], 1)
    assert capsys.readouterr().err.startswith("bestfirst: line 3: invalid UTF-8: byte 0xff at position 1")


def test_line_breaks_in_an_output_become_spaces(translated):
    out, _, _ = translated([b"a\rb\x0bc"])
    assert out == ["A B C"]


def test_results_are_written_in_order_as_early_as_possible(tmp_path: Path):
    out = Output(str(tmp_path / "out"))
    run = Stream(Worker(Upper(), Decoding()), out, None, lambda **_: None)
    for number, after in ((2, []), (1, [1, 2]), (4, [1, 2]), (5, [1, 2]), (3, [1, 2, 3, 4, 5])):
        run.done(Record(number, ""), Result([Answer((), 0.0, 0.0, str(number))], status="complete"))
        assert (tmp_path / "out").read_text().split() == [str(n) for n in after]


def test_only_line_feeds_end_a_line_for_any_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "a\r\n\nb\u2028c\x85d\r\rä\n\nlast"
    (tmp_path / "text").write_bytes(text.encode())
    expected = ["a", "", "b\u2028c\x85d\r\rä", "", "last"]
    for size in (1, 2, 3, 7, 1000):
        monkeypatch.setattr("bestfirst.corpus.records.BLOCK", size)
        with io.FileIO(str(tmp_path / "text")) as stream:
            lines = [line for batch in batches(stream) for line in batch]
        assert [(line.number, line.text) for line in lines] == list(enumerate(expected, 1))


def test_a_long_file_is_read_lazily(tmp_path: Path):
    (tmp_path / "text").write_bytes(b"eine Zeile\n" * 200_000)
    with io.FileIO(str(tmp_path / "text")) as stream:
        first = next(batches(stream))
        assert 1000 < len(first) < 50_000
        assert stream.tell() < 1 << 20


def test_a_byte_order_mark_is_dropped_at_the_start_only():
    mark = "\ufeff".encode()
    assert read_line(1, mark + b"ja").text == "ja"
    assert read_line(2, mark + b"ja").text == "\ufeffja"


def test_a_single_line_is_one_line():
    assert CostSummary(Tally(lines=1, sentences=1)).line().startswith("1 line, ")
    assert CostSummary(Tally(lines=2, sentences=2)).line().startswith("2 lines, ")


@pytest.mark.parametrize("hidden", [False, True])
def test_the_progress_bar_counts_lines_if_stderr_is_a_terminal(monkeypatch: pytest.MonkeyPatch, hidden: bool):
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar(lambda: 3, hidden=hidden) as bar:
            bar(start=True, description="translating")
            bar(advance=1)
            show_saved(bar, Tally(calls=1, beam_calls=4))
        terminal.write("end")
    drawn = ""
    while not drawn.endswith("end"):
        drawn += os.read(ours, 1000).decode(errors="replace")
    os.close(ours)
    assert ("1/3" in drawn) is not hidden
    assert ("75% of calls saved" in drawn) is not hidden
    assert (drawn == "end") is hidden


def test_no_savings_are_reported_if_beam_search_needs_fewer_calls():
    """Level by level it printed "saved 0% of beam search's calls at least, of 1.0 a sentence"."""
    table = CostSummary(Tally(lines=2, sentences=2, calls=30, beam_calls=20)).table("signature")
    assert "saved     nothing: beam search needs 10.0 a sentence at least" in table.splitlines()
    table = CostSummary(Tally(lines=2, sentences=2, calls=10, beam_calls=20)).table("signature")
    assert "saved     50% of beam search's calls at least, of 10.0 a sentence" in table.splitlines()


def test_only_user_warnings_are_printed(capsys, monkeypatch: pytest.MonkeyPatch):
    """A file left open by other code gives a warning while ours runs, which would seem to be the cause."""
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        silence_libraries()
        for category in (UserWarning, ResourceWarning):
            warnings.warn_explicit("said", category, "console.py", 1, module="bestfirst.cli.console")
    assert capsys.readouterr().err == "bestfirst: warning: said\n"
