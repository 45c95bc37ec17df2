"""`bestfirst view` and `bestfirst explain`: output, messages and exit codes."""

from __future__ import annotations

import json
import re

import pytest

import bestfirst
from bestfirst.cli import run
from cli.process import only_line

TEXT = "Wie melkt man eine Kuh?"
HOSTILE = "<script>alert('\"ha\"')</script> [bold]Kuh[/bold] \u202e\x1b[31m 🐄"


def test_a_page_is_self_contained_and_has_both_searches(call):
    ended = call("view", TEXT)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.out.startswith("<!doctype html>")
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)[^\"']+|url\((?!data:)|@import", ended.out)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', ended.out, re.DOTALL)[1])
    assert data["title"] == TEXT
    fast, beam = data["searches"]
    assert (fast[0]["strategy"], beam[0]["strategy"]) == ("best-first", "beam")
    for events, strategy in ((fast, "best-first"), (beam, "beam")):
        (result,) = bestfirst.decode(bestfirst.load(), [TEXT], strategy=strategy)
        result_event = next(event for event in events if event["event"] == "result")
        assert (result_event["calls"], result_event["exact"]) == (result.calls, True)
        assert events[-1]["texts"] == [result.text]


def test_text_shows_surviving_hypotheses_and_call_counts(call):
    ended = call("view", "--text", "--beam", 10, TEXT)
    assert (ended.code, ended.stderr) == (0, "")
    assert "best-first, k = 10: 14 calls" in ended.out
    assert "beam, k = 10: 111 calls" in ended.out
    assert "★" in ended.out
    assert "more wait" in ended.out
    rows = [line.split() for line in ended.out.splitlines() if line.startswith(("  best-first ", "  beam "))]
    assert [row[:3] for row in rows] == [["best-first", "14", "14"], ["beam", "111", "111"]]
    assert "\x1b" not in ended.out


def test_markup_and_control_characters_reach_neither_terminal_nor_page(call):
    drawn = call("view", "--text", "--beam", 2, "--max-length", 5, HOSTILE)
    assert "\x1b" not in drawn.out
    assert "\u202e" not in drawn.out
    page = call("view", "--beam", 2, "--max-length", 5, HOSTILE)
    assert (drawn.code, page.code) == (0, 0)
    assert "<script>alert" not in page.out
    assert page.out.count("</script>") == 3


def test_json_is_a_trace_that_can_be_viewed_again(call, tmp_path):
    recorded = call("view", "--json", "--nbest", 2, TEXT)
    assert (recorded.code, recorded.stderr) == (0, "")
    trace = tmp_path / "trace.jsonl"
    trace.write_text(recorded.out, encoding="utf-8")
    again = call("view", "--json", "--trace", trace)
    assert (again.code, again.out) == (0, recorded.out)
    assert call("view", "--text", "--trace", trace).out == call("view", "--text", "--nbest", 2, TEXT).out


def test_one_line_of_a_translations_trace_can_be_viewed(call, tmp_path):
    trace = tmp_path / "trace.jsonl"
    call("translate", "--trace", trace, text="Guten Morgen!\nJa.\n")
    ended = call("view", "--trace", trace, "--line", 2, "--text")
    assert (ended.code, ended.stderr) == (0, "")
    assert "Yes." in ended.out
    missing = call("view", "--trace", trace, "--line", 3)
    assert only_line(missing.stderr) == f"there is no search of line 3 in '{trace}'; there is: 1, 2"
    assert missing.code == 2
    trace.write_text(call("view", "--json", "Ja.").out, encoding="utf-8")
    unnumbered = call("view", "--trace", trace, "--line", 2)
    assert only_line(unnumbered.stderr).endswith("; it is of a text, not of lines; leave out --line")


def test_damaged_and_older_traces_are_reported_and_still_shown(call, tmp_path):
    whole = call("view", "--json", "--strategy", "beam", TEXT).out
    trace = tmp_path / "trace.jsonl"
    trace.write_text(whole[: len(whole) // 2], encoding="utf-8")
    cut = call("view", "--trace", trace)
    assert re.fullmatch(r"'.*trace.jsonl' ends in the middle of line \d+; what is before it is shown", only_line(cut.stderr))
    assert (cut.code, cut.out.startswith("<!doctype html>")) == (1, True)
    assert "ends in the middle of line" in cut.out
    trace.write_text("".join(line + "\n" for line in whole.splitlines()[1:] if '"begin"' not in line), encoding="utf-8")
    old = call("view", "--trace", trace, "--text")
    assert "has no format version in its first line" in only_line(old.stderr)
    assert (old.code, "★" in old.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view"], "give a text to translate, or a file with --trace; one of them"),
        (["view", "Ja.", "--trace", "x"], "give a text to translate, or a file with --trace; one of them"),
        (["view", "Ja.", "--line", "2"], "--line chooses an input of a --trace"),
        (["view", " "], "the text is empty"),
        (["view", "Ja.", "--text", "--json"], "--text and --json are two ways to write a search; choose one of them"),
        *(
            (["view", "--trace", "x", *option], f"{option[0]} is for a search, and what is in a --trace was searched already")
            for option in (
                ["--beam", "20"],
                ["--row-budget", "2"],
                ["--must-contain", "a"],
                ["--alpha", "1"],
                ["--whole-sequence"],
                ["--nbest", "2"],
                ["--model", "m"],
                ["--threads", "1"],
            )
        ),
        (["view", "--trace", "no/such/file"], "cannot read 'no/such/file': No such file or directory"),
        (["view", "Ja.", "--beam", "0"], "Invalid value for '--beam' / '-k': '0' is not a whole number from 1 up"),
        (["explain", "Ja."], "Missing option '--want'"),
        (["explain", "Ja.", "--want", ""], "the wanted output is empty"),
    ],
)
def test_usage_errors_are_reported_in_one_line(call, arguments, said):
    ended = call(*arguments)
    assert only_line(ended.stderr).startswith(said)
    assert (ended.code, ended.out) == (2, "")


def test_the_trace_is_never_overwritten(call, tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(recorded := call("view", "--json", "--max-length", 3, "Ja.").out, encoding="utf-8")
    (tmp_path / "link").hardlink_to(trace)
    for name in ("trace.jsonl", "link"):
        assert run(["view", "--trace", str(trace), "-o", str(tmp_path / name)]) == 2
        message = only_line(capsys.readouterr().err)
        assert message == f"'{tmp_path / name}' is a file that this command reads or writes already; name another"
        assert trace.read_text(encoding="utf-8") == recorded


def test_no_page_is_written_if_the_trace_cannot_be_read(call, tmp_path):
    page = tmp_path / "page.html"
    ended = call("view", "--trace", tmp_path / "nowhere.jsonl", "-o", page)
    assert only_line(ended.stderr).startswith("cannot read")
    assert (ended.code, page.exists()) == (2, False)


def test_a_text_that_cannot_be_decoded_keeps_the_old_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    page.write_text("an old page")
    assert run(["view", "Haus " * 600, "-o", str(page)]) == 1
    assert only_line(capsys.readouterr().err).startswith("the input has 601 tokens")
    assert page.read_text() == "an old page"


def test_explain_reports_where_and_why_an_output_was_lost_and_the_smallest_beam(call):
    ended = call("explain", TEXT, "--want", "What do you milk a cow?", "--beam", 2)
    assert (ended.code, ended.stderr) == (0, "")
    words = " ".join(ended.out.split())
    assert re.search(
        r"'What do you milk a cow\?' left the beam at length \d, with '\w+': rank \d+, and there are 2 slots\.", words
    )
    smallest = re.search(r"The smallest beam that keeps it is (\d+): there it is answer number (\d+)", words)
    beam, place = int(smallest[1]), int(smallest[2])
    (result,) = bestfirst.decode(bestfirst.load(), [TEXT], beam=beam, nbest=place)
    assert result.hypotheses[-1].text == "What do you milk a cow?"
    explained = json.loads(call("explain", TEXT, "--want", "What do you milk a cow?", "--beam", 2, "--json").out)
    assert (explained["smallest"], explained["smallest_place"], explained["text"], explained["beam"]) == (beam, place, TEXT, 2)
    assert explained["steps"][explained["lost"] - 1]["rank"] == explained["rank"] > 2


def test_a_token_of_a_space_is_named_in_the_tree_in_the_table_and_in_words(call):
    assert "└── ● ␣ -0.03\n" in call("view", "--text", "Ja.").out
    assert "'qq' left the beam at length 1, with '␣': rank " in call("explain", TEXT, "--want", "qq", "--max-beam", 1).out
    assert ", and there is 1 slot.\n" in call("explain", TEXT, "--want", "qq", "--beam", 1, "--max-beam", 1).out


def test_explain_of_an_answer_and_of_a_runner_up(call):
    assert (
        "'Where is the station?' is the answer." in call("explain", "Wo ist der Bahnhof?", "--want", "Where is the station?").out
    )
    second = call("explain", "Wo ist der Bahnhof?", "--want", "Where is the train station?").out
    assert "was not lost: it is answer number 2" in second
    assert "--nbest 2" in second


def test_explain_tries_at_least_the_requested_beam(call):
    asked = ["explain", "Guten Morgen!", "--want", "Have a nice morning!", "--beam", 7]
    narrow = call(*asked, "--max-beam", 1)
    assert "was not lost: it is answer number 9" in narrow.out
    assert "No beam up to" not in narrow.out
    assert narrow.out == call(*asked).out


def test_explain_reports_outputs_outside_the_vocabulary(call):
    ended = call("explain", "Ja.", "--want", "東京")
    assert only_line(ended.stderr) == "model 'tatoeba-de-en' cannot write '東京': '東京' is not in its vocabulary"
    assert (ended.code, ended.out) == (1, "")
