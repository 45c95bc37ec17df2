"""`bestfirst translate` on all kinds of text: its output, line by line, and its messages."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import bestfirst
from cli.process import GERMAN, only_line, run, running

MIXED = b"\n".join(
    [
        b"\xef\xbb\xbfGuten Morgen!\r",  # a byte order mark and a carriage return, as Windows writes them
        b"",
        b"Das ist \xff kein Text.",
        b"Haus " * 600,
        b" \t\r",
        "Ich liebe dich.\u2028Sehr.".encode(),  # a Unicode line separator, which does not end a line
        "Müde bin ich.".encode(),  # without a final line feed
    ]
)
TOO_LONG = "the input has 601 tokens, more than the model's 512 positions; split it"
NO_TEXT = "invalid UTF-8: byte 0xff at position 9 (invalid start byte)"


@pytest.fixture(scope="module")
def mixed() -> CompletedProcess[bytes]:
    return run("translate", "--json", stdin=MIXED)


def test_json_output_has_one_object_per_line(mixed):
    objects = [json.loads(line) for line in mixed.stdout.decode().split("\n")[:-1]]
    assert [o["line"] for o in objects] == [1, 2, 3, 4, 5, 6, 7]
    assert [o["status"] for o in objects] == ["complete", "complete", "error", "error", "complete", "complete", "complete"]
    assert [bool(o["text"]) for o in objects] == [True, False, False, False, False, True, True]
    assert [o.get("message") for o in objects] == [None, None, NO_TEXT, TOO_LONG, None, None, None]
    first = objects[0]
    assert first["text"] == first["hypotheses"][0]["text"] == "Good morning."
    assert set(first["hypotheses"][0]) == {"text", "tokens", "score", "logprob"}
    assert first["exact"] is True
    assert 0 < first["calls"] <= first["rows"]
    assert first["steps"] > 0
    assert objects[1]["hypotheses"] == []


def test_bad_lines_are_reported_and_the_exit_code_is_1(mixed):
    assert mixed.returncode == 1
    assert mixed.stderr.decode().splitlines() == [f"bestfirst: line 3: {NO_TEXT}", f"bestfirst: line 4: {TOO_LONG}"]


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompletedProcess[bytes], Path]:
    """Sixty lines from one file into another, which is overwritten, with statistics and a trace."""
    folder = tmp_path_factory.mktemp("translated")
    with GERMAN.open("rb") as german:
        (folder / "text").write_bytes(b"".join(islice(german, 60)))
    (folder / "out").write_text("what was there before\n" * 1000)
    side = ["--stats", "--trace", folder / "trace", "--overwrite"]
    process = run("translate", folder / "text", "-o", folder / "out", *side, "--threads", 1, "--dtype", "fp32", "--device", "cpu")
    return process, folder


def test_output_lines_are_the_texts_of_decode_in_order(translated):
    process, folder = translated
    assert process.returncode == 0, process.stderr
    assert process.stdout == b""
    lines = (folder / "text").read_text(encoding="utf-8").splitlines()
    expected = [result.text for result in bestfirst.decode(bestfirst.load(), lines)]
    assert (folder / "out").read_text(encoding="utf-8").splitlines() == expected


def test_stats_are_printed_to_stderr(translated):
    process, _ = translated
    lines = process.stderr.decode().splitlines()
    assert [line.split()[0] for line in lines] == [
        "sentences",
        "calls",
        "saved",
        "rows",
        "steps",
        "exact",
        "seconds",
        "memory",
        "signature",
    ]
    assert lines[0] == "sentences 60"
    assert lines[5].startswith("exact     60 of 60")
    assert "bestfirst|best-first|k:5|score:logprob|finished:leave|model:tatoeba-de-en|dtype:float32|v:" in lines[8]


def test_the_trace_has_events_of_every_line_in_order(translated):
    _, folder = translated
    header, *events = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    assert header == {"format": "bestfirst-trace", "version": 2}
    numbers = [event["line"] for event in events]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, 61))
    assert {event["event"] for event in events} >= {"begin", "push", "pop", "finish", "result", "text"}
    begin = next(event for event in events if event["event"] == "begin")
    assert (begin["source"], begin["beam"]) == ((folder / "text").read_text(encoding="utf-8").splitlines()[0], 5)


def test_lines_are_answered_at_once_and_a_closed_pipe_ends_the_command_silently():
    with running("translate") as process:
        process.stdin.write(b"Guten Morgen!\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"Good morning.\n"
        process.stdout.close()
        process.stdin.write(b"Ich liebe dich.\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141  # what a shell reports for SIGPIPE


def test_nbest_entries_have_their_line_number(call):
    ended = call("translate", "--nbest", 3, "--beam", 4, "--finished", "keep", text=b"Guten Morgen!\n\n\xff\n")
    assert only_line(ended.stderr).startswith("line 3: invalid UTF-8")
    assert ended.code == 1
    rows = [line.split(" ||| ") for line in ended.out.splitlines()]
    assert [number for number, _, _ in rows] == ["0", "0", "0", "1", "2"]
    assert [bool(text) for _, text, _ in rows] == [True, True, True, False, False]
    scores = [float(score) for _, _, score in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3:] == [0.0, float("-inf")]


def test_a_prefix_starts_every_output(call):
    ended = call("translate", "--prefix", "Have a", "--nbest", 2, text="Guten Morgen!\n")
    assert (ended.code, ended.stderr) == (0, "")
    assert [line.split(" ||| ")[1][:7] for line in ended.out.splitlines()] == ["Have a ", "Have a "]


def test_unfinished_outputs_are_reported_or_printed_with_partial(call):
    without = call("translate", "--max-length", 2, text="Guten Morgen!\n")
    assert (without.code, without.out) == (1, "\n")
    assert only_line(without.stderr).startswith("line 1: nothing finished within the maximum length; raise --max-length")
    with_partial = call("translate", "--max-length", 2, "--partial", "--json", text="Guten Morgen!\n")
    found = json.loads(with_partial.out)
    assert (with_partial.code, with_partial.stderr) == (0, "")
    assert (found["status"], found["text"], found["hypotheses"]) == ("incomplete", "Good morning", [])
    assert found["partial"]["text"] == "Good morning"


def test_max_calls_ends_a_search_without_pruning(call):
    ended = call("translate", "--strategy", "breadth-first", "--max-calls", 5, "--json", text="Guten Morgen!\n")
    found = json.loads(ended.out)
    assert (found["status"], found["calls"], found["exact"]) == ("budget", 5, False)
    assert ended.code == 1
    ended = call("translate", "--strategy", "breadth-first", text="\n")
    assert ended.stderr.startswith("bestfirst: warning: --strategy breadth-first scores all outputs there are, and may never end")


def test_answers_found_within_max_calls_are_written_and_reported_as_unproven(call):
    asked = ["translate", "--strategy", "a-star", "--max-calls", 3]
    ended = call(*asked, text="Guten Tag.\n")
    assert (ended.code, ended.out) == (1, "Good day\n")
    assert only_line(ended.stderr).startswith("line 1: the calls allowed did not suffice; what had finished by then is written")
    with_partial = call(*asked, "--partial", text="Guten Tag.\n")
    assert (with_partial.code, with_partial.out, with_partial.stderr) == (0, "Good day\n", "")


@pytest.mark.parametrize(
    ("arguments", "exact"),
    [
        (["--score", "length-normalized", "--alpha", 1], True),
        (["--score", "length-reward", "--beta", 0.5, "--method", "stopping"], False),
        (["--score", "bounded-length-reward", "--beta", 0.5, "--ratio", 1, "--finished", "keep"], True),
        (["--score", "gnmt", "--alpha", 0.6, "--method", "heuristic"], False),
        (["--strategy", "beam", "--stop", "patience", "--patience", 2], False),
        (["--strategy", "greedy", "--temperature", 2], True),
        (["--queue-capacity", 1, "--row-budget", 3, "--beam", 8], False),
    ],
)
def test_scores_methods_stops_and_queue_capacity_reach_the_search(call, arguments, exact):
    ended = call("translate", "--json", "--max-length", 6, *arguments, text="Guten Morgen!\n")
    found = json.loads(ended.out)
    assert (ended.code, ended.stderr) == (0, "")
    assert (found["status"], found["exact"]) == ("complete", exact)


def test_mutual_information_needs_a_language_model_of_the_same_vocabulary(call, tmp_path, capsys):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    for tokens in (6001, 50):
        config = GPT2Config(vocab_size=tokens, n_positions=64, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / str(tokens))
    capsys.readouterr()  # the progress bars of saving
    score = ["--score", "mutual-information", "--weight", 0.05, "--epsilon", 0.02, "--max-length", 6, "--json"]
    ended = call("translate", *score, "--lm", tmp_path / "6001", text="Guten Morgen!\n")
    assert (ended.code, ended.stderr) == (0, "")
    found = json.loads(ended.out)
    assert (found["text"], found["exact"]) == ("Good morning.", True)
    assert found["hypotheses"][0]["score"] > found["hypotheses"][0]["logprob"]
    ended = call("translate", *score, "--lm", tmp_path / "50", text="Guten Morgen!\n")
    assert only_line(ended.stderr).startswith("the language model '50' has 50 tokens, the model 'tatoeba-de-en' 6001: ")
    assert ended.code == 2
    ended = call("translate", "--draft", f"model:{tmp_path / '50'}", text="Guten Morgen!\n")
    assert (ended.code, ended.out) == (0, "Good morning.\n")
    assert only_line(ended.stderr).startswith("warning: no drafts: SmallerModel.")


def test_an_empty_file_gives_an_empty_file(call):
    ended = call("translate", "--stats", text="")
    assert (ended.code, ended.out) == (0, "")
    assert ended.stderr.startswith("sentences 0\n")
