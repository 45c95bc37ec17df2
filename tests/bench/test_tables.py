"""bench table and bench plot: they read nothing but saved rows, in every format."""

from __future__ import annotations

import csv
import io
import json

import pytest

from bench.conftest import GERMAN, call
from bestfirst_bench.bootstrap import line_metrics
from bestfirst_bench.summary import QualityMetrics
from bestfirst_bench.tables import Table, latex, markdown
from cli.process import only_line

TABLE = Table("A_title", ["k", "search"], [["5", "a|b & 100 %"], ["10", "γ"]], frozenset({"search"}), frozenset({1}), ["Why."])


def test_markdown_is_escaped():
    assert markdown(TABLE) == "**A_title**\n\n| k | search |\n| --: | --- |\n| 5 | a\\|b & 100 % |\n| 10 | γ |\n\nWhy.\n"


def test_latex_is_escaped():
    printed = latex(TABLE)
    assert r"5 & a$|$b \& 100 \% \\" in printed
    assert "\\midrule\n10 & $\\gamma$ \\\\" in printed
    assert r"\caption{A\_title. Why.}" in printed
    assert printed.count(r"\begin") == printed.count(r"\end") == 2


def test_every_format_has_all_settings_in_one_table(rows_file, capsys):
    def printed(form: str) -> str:
        assert call("bench", "table", rows_file, "--format", form, "--metrics", "bleu") == 0
        return capsys.readouterr().out

    cells = list(csv.reader(io.StringIO(printed("csv"))))
    assert len(cells) == 1 + 2 + 2 + 2 * 7 + 2  # headings; alone, by rows; two beams; two at another temperature
    assert {len(row) for row in cells} == {len(cells[0])}
    for form in ("text", "markdown", "latex"):
        out = printed(form)
        for row in cells[1:]:
            assert row[cells[0].index("calls")] in out
        assert "tok:none" in out


def test_each_model_has_a_table_of_its_own(rows_file, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    lines = rows_file.read_text(encoding="utf-8").replace("tatoeba-de-en@", "another-model@")
    other.write_text(lines, encoding="utf-8")
    assert call("bench", "table", rows_file, other, "--table", "results", "--metrics", "") == 0
    out = capsys.readouterr().out
    assert out.count("Calls (the paper's table of results)") == 2
    assert "another-model@" in out


@pytest.mark.parametrize("name", ["calls", "time", "bleu", "length", "sharpness"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_plot_is_drawn(rows_file, tmp_path, capsys, name, suffix):
    out = tmp_path / f"plot.{suffix}"
    assert call("bench", "plot", rows_file, "--plot", name, "-o", out) == 0
    begins = out.read_bytes()[:5]
    assert begins == (b"\x89PNG\r" if suffix == "png" else b"<?xml")
    assert out.stat().st_size > 10_000
    assert only_line(capsys.readouterr().err) == f"drawn in {str(out)!r}"


def test_growth_is_measured_once_and_drawn(tmp_path, capsys):
    rows, out = tmp_path / "growth.jsonl", tmp_path / "growth.png"
    command = ["bench", "growth", GERMAN, "--beam", "1,4", "--beam-lines", "3", "--lines", "3,6", "--at", "2", "--rows", rows]
    assert call(*command, "--format", "csv") == 0
    cells = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["what grows"], row["search"], row["k"], row["lines"]) for row in cells] == [
        ("beam", "beam", "1", "3"), ("beam", "best-first", "1", "3"),
        ("beam", "beam", "4", "3"), ("beam", "best-first", "4", "3"),
        ("lines", "best-first", "2", "3"), ("lines", "best-first", "2", "6"),
    ]  # fmt: skip
    saved = rows.read_bytes()
    assert call(*command) == 0
    assert rows.read_bytes() == saved
    assert json.loads(saved.splitlines()[0])["cache_tokens"] > 0
    assert call("bench", "plot", rows, "--plot", "growth", "-o", out) == 0
    assert out.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table", "missing.jsonl"], "cannot read 'missing.jsonl': no such file"),
        (["table", GERMAN], "line 1: not a row that bestfirst bench wrote"),
        (["table", "ROWS", "--table", "nonsense"], "the paper has no table 'nonsense'"),
        (["table", "ROWS", "--table", "length"], "no rows of the table length; make some with bench run or bench paper"),
        (["table", "ROWS", "--format", "html"], "'html' is not one of text, markdown, latex, csv"),
        (["plot", "ROWS", "--plot", "nonsense"], "there is no plot 'nonsense'; choose from calls, time, bleu"),
        (["plot", "ROWS", "--plot", "calls", "-o", "a.gif"], "that ends in .png, .svg, .pdf, not 'a.gif'"),
        (["plot", "missing.jsonl", "--plot", "calls"], "cannot read 'missing.jsonl': no such file"),
        (["plot", "ROWS", "--plot", "growth"], "not a measurement that bestfirst bench growth wrote"),
        (["plot", "EMPTY", "--plot", "time"], "nothing to plot: no rows of sentences decoded alone"),
        (["growth", GERMAN, "--lines", "100,1000"], "has 200 lines of text, 1000 were asked for"),
    ],
)
def test_usage_errors_are_reported_in_one_line(arguments, said, rows_file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").touch()
    assert call("bench", *[rows_file if argument == "ROWS" else argument for argument in arguments]) == 2
    assert said in only_line(capsys.readouterr().err)


def test_a_plot_that_cannot_be_written_is_an_error(rows_file, capsys):
    assert call("bench", "plot", rows_file, "--plot", "calls", "-o", "/no/such/folder/a.png") == 1
    assert "cannot write to '/no/such/folder/a.png': No such file or directory" in only_line(capsys.readouterr().err)


def test_metrics_and_their_signatures():
    metrics = QualityMetrics(line_metrics(["bleu", "chrf", "rouge-l"], "13a")[0])
    same = metrics.score(["the cat sat on the mat ."], ["the cat sat on the mat ."])
    assert same == pytest.approx({"bleu": 100, "chrf": 100, "rouge-l": 100})
    assert metrics.score(["a cat sat"], ["the cat sat down"])["rouge-l"] == pytest.approx(100 * 2 * 2 / 7)
    bleu, chrf, rouge = metrics.signatures()
    assert bleu.startswith("BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert chrf.startswith("chrF: nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert rouge.startswith("ROUGE-L: f-measure|stemmer:porter")
