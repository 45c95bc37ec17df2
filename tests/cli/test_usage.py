"""Errors in the command line, an input or an output: one line before a model is loaded, and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bestfirst.cli import run as command
from bestfirst.cli.console import CommandError
from bestfirst.cli.model_choice import decoding_from
from bestfirst.cli.options import AllSearchOptions
from bestfirst.strategies import STOPS
from cli.process import COMMAND, ENVIRONMENT, only_line, run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translate", "--beam", "0"], "Invalid value for '--beam' / '-k': '0' is not a whole number from 1 up"),
        (["translate", "--beam", "x"], "Invalid value for '--beam' / '-k': 'x' is not a whole number from 1 up"),
        (
            ["translate", "--strategy", "depth-first"],
            "Invalid value for '--strategy': 'depth-first' is not one of greedy, beam, ",
        ),
        (["translate", "--finished", "stay"], "Invalid value for '--finished': 'stay' is not one of keep, leave"),
        (["translate", "--max-length", "-1"], "Invalid value for '--max-length': '-1' is not a whole number from 1 up"),
        (["translate", "--dtype", "int3"], "Invalid value for '--dtype': 'int3' is not one of fp32, fp16, bf16, int8"),
        (["translate", "--finished", "keep", "--beam", "2", "--nbest", "3"], "--nbest (3) must not exceed --beam (2)"),
        (["translate", "--retry-failed"], "--retry-failed goes from file to file: name an input file and, with -o, an output"),
        (["translate", "--shard-lines", "3"], "--shard-lines goes from file to file: name an input file and, with -o, an output"),
        (["translate", "--shard-lines", "3", "no/such/file"], "cannot read 'no/such/file': No such file or directory"),
        (["translate", "--workers", "3"], "--workers goes with --ray"),
        (["translate", "--workers", "3", __file__, "-o", "no/such/folder/out"], "--workers goes with --ray"),
        (["translate", "--input-field", "foo"], "--input-field is for records: name a .jsonl or .parquet file, or say --input-"),
        (["translate", "--output-field", "foo", "--json"], "--output-field is for records: name a .jsonl or .parquet file"),
        (["translate", "--output-field", "foo", "--input-format", "jsonl"], "--output-field is for records: name a .jsonl"),
        (["translate", "--output-format", "jsonl", "--output-field", "text"], "--input-field and --output-field are both 'text'"),
        (["translate", __file__, "-o", "x.jsonl.bz2"], "'x.jsonl.bz2': .bz2 is not among the compressions; there are .gz, .zst"),
        (["translate", "no/such/file.xz"], "'no/such/file.xz': .xz is not among the compressions; there are .gz, .zst, and none"),
        (["translate", __file__, "-o", "x.parquet.gz"], "'x.parquet.gz': Parquet is compressed inside; name a .parquet file"),
        (["translate", "--trace", "x.gz"], "a trace is written without compression, not as 'x.gz'"),
        (["translate", "--model", ""], "the model folder '' has no config.json"),
        (["translate", "--trace", ""], "cannot write to '': "),
        (
            ["translate", "--must-contain", "a|"],
            "--must-contain has an empty word, which says nothing; leave it out of ['a', '']",
        ),
        (["translate", __file__, "-o", ""], "cannot write to '': Is a directory"),
        (["translate", "--row-budget", "9" * 5000], "Invalid value for '--row-budget': a number of 5000 digits is out of range"),
        (["translate", "--shard-lines", "9" * 16], "Invalid value for '--shard-lines': a number of 16 digits is out of range"),
        (["translate", "no/such/file"], "cannot read 'no/such/file': No such file or directory"),
        (["translate", "."], "cannot read '.': Is a directory"),
        (["translate", "-o", "no/such/folder/out"], "cannot write to 'no/such/folder/out': No such file or directory"),
        (["translate", "-o", "."], "cannot write to '.': Is a directory"),
        (["translate", "a", "b"], "Got unexpected extra argument"),
        (["translate", "--beem", "3"], "No such option: --beem"),
        (["compare"], "Missing argument 'TEXT...'"),
        (["compare", "ja", " "], "text 2 is empty"),
        (
            ["translate", "--max-length", "0x"],
            "Invalid value for '--max-length': '0x' is not a whole number from 1 up, or a mult",
        ),
        (
            ["view", "ja", "--length-penalty", "1", "--score", "gnmt"],
            "--length-penalty is a score of its own, so is --score gnmt",
        ),
        (["view", "ja", "--score", "mutual-information"], "--score mutual-information needs --lm and --weight and --epsilon"),
        (["view", "ja", "--device", "meta"], "cannot use device 'meta': it computes nothing; choose cpu, cuda or mps"),
        (["view", "ja", "--alpha", "1e308"], "Invalid value for '--alpha': '1e308' is out of range; use a number from -50 to 50"),
        (["view", "ja", "--beta", "nan"], "Invalid value for '--beta': 'nan' is out of range; use a number from -1e+09 to 1e+09"),
        (["view", "ja", "--threads", "100000"], "Invalid value for '--threads': '100000' is too many for this machine, which"),
        (["translate", "--temperature", "0"], "--temperature must be a number above 0, got 0.0"),
        (["translate", "--patience", "0"], "--patience goes with --stop patience"),
        (
            ["translate", "--strategy", "beam", "--stop", "patience", "--patience", "0"],
            "--patience must be a number above 0, got 0.0",
        ),
        (["translate", "--stop", "hf-true", "--patience", "2"], "--patience goes with --stop patience or ctranslate2"),
        (
            ["translate", "--must-contain", "a", "--trace", "t"],
            "--must-contain does not go with --trace: its searches leave none",
        ),
        (["view", "ja", "--must-contain", "a"], "searches with --must-contain leave no trace to view; leave it out"),
        (["view", "\udcff"], "Invalid value for '[TEXT]': '\\udcff' is not valid UTF-8; check the encoding of your terminal"),
        (["compare", "\udcff"], "Invalid value for 'TEXT...': '\\udcff' is not valid UTF-8"),
        (["explain", "ja", "--want", "\udcff"], "Invalid value for '--want': '\\udcff' is not valid UTF-8"),
        (["translate", "--prefix", "\udcff"], "Invalid value for '--prefix': '\\udcff' is not valid UTF-8"),
        (["transcribe"], "No such command 'transcribe'"),
    ],
)
def test_command_line_errors_are_reported_in_one_line(arguments: list[str], said: str):
    process = run(*arguments)
    assert only_line(process.stderr).startswith(said)
    assert process.returncode == 2
    assert process.stdout == b""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"must_contain": ["a"], "stop": "hf-true"}, "--must-contain does not go with --stop; leave one of them out"),
        ({"must_contain": ["a"], "max_calls": 9}, "--must-contain does not go with --max-calls; leave one of them out"),
        ({"must_contain": ["a"], "prefix": "a b"}, "--must-contain does not go with --prefix; leave one of them out"),
        ({"must_contain": ["a"], "strategy": "a-star"}, "--must-contain does not go with --strategy a-star; leave one of them"),
        ({"allowed": "x", "prefix": "a"}, "--allowed does not go with --prefix: it is of whole outputs"),
        ({"stop": "shrinking"}, "--stop shrinking goes level by level, --strategy best-first does not; use --strategy beam"),
        ({"score": "gnmt", "score_options": {"beta": 1}}, "--score gnmt has no parameter --beta; it has --alpha"),
        ({"draft": "x"}, "--draft must be one of 'source', 'outputs', 'model:FOLDER', 'none', got 'x'"),
    ],
)
def test_messages_about_settings_name_the_options(settings, said):
    with pytest.raises(CommandError) as caught:
        decoding_from(**settings)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("stop", STOPS)
def test_the_help_lists_the_stops_that_need_strategy_beam(stop):
    about = next(each.metadata["about"]["help"] for each in fields(AllSearchOptions) if each.name == "stop")
    if stop in about.partition(". ")[2].partition(" go with --strategy beam")[0].replace(" and", ",").split(", "):
        with pytest.raises(CommandError, match="use --strategy beam"):
            decoding_from(stop=stop)
    else:
        decoding_from(stop=stop)
    decoding_from(stop=stop, strategy="beam")


def test_the_input_is_never_overwritten(tmp_path: Path):
    text = tmp_path / "text"
    text.write_text("Guten Morgen!\n")
    for arguments in ([text, "-o", text], [text, "--trace", text], ["-o", text, text]):
        process = run("translate", *arguments)
        assert only_line(process.stderr) == f"'{text}' is a file that this command reads or writes already; name another"
        assert process.returncode == 2
    with text.open("ab") as appended:  # refused as by `cat`: it would read its own output for ever
        process = run("translate", text, stdout=appended)
    assert only_line(process.stderr).startswith("standard output is a file that this command reads or writes already")
    assert text.read_text() == "Guten Morgen!\n"


def test_an_unreadable_or_unwritable_file_is_reported(tmp_path: Path):
    locked = tmp_path / "locked"
    locked.touch(mode=0o000)
    try:
        locked.open("rb").close()
    except PermissionError:
        for arguments, verb in (([locked], "read"), (["-o", locked], "write to")):
            process = run("translate", *arguments)
            assert only_line(process.stderr) == f"cannot {verb} '{locked}': Permission denied"
            assert process.returncode == 2
    else:
        pytest.skip("this user may read everything")


def test_without_a_command_the_help_is_shown():
    process = run()
    assert (process.returncode, process.stderr) == (2, b"")
    assert b"translate" in process.stdout


def test_alpha_and_length_penalty_can_be_zero(call):
    ended = call("translate", "--json", "--score", "gnmt", "--alpha", 0, text="Ja.\n")
    plain = call("translate", "--json", "--length-penalty", 0, text="Ja.\n")
    assert (ended.code, ended.stderr, plain.code) == (0, "", 0)
    assert ended.out == plain.out


def test_max_length_can_be_a_multiple_of_the_input_length(call):
    events = [json.loads(call("view", "--json", "--max-length", asked, "Ja.").out.splitlines()[1]) for asked in ("1x", "2.5x")]
    assert [event["max_length"] for event in events] == [2, 5]


def test_length_penalty_is_the_length_normalized_score(call):
    named = call("translate", "--json", "--score", "length-normalized", "--alpha", 0.6, text="Ja.\n")
    short = call("translate", "--json", "--length-penalty", 0.6, text="Ja.\n")
    assert (short.code, short.out) == (0, named.out)


def test_a_prefix_outside_the_vocabulary_is_reported(call):
    ended = call("translate", "--prefix", "東京", text="Ja.\n")
    assert only_line(ended.stderr) == "model 'tatoeba-de-en' cannot write '東京': '東京' is not in its vocabulary"
    assert (ended.code, ended.out) == (2, "")


def test_only_the_line_with_a_lone_surrogate_fails(tmp_path, capsys):
    (tmp_path / "text.jsonl").write_text('{"text": "Ja \\ud800"}\n{"text": "Ja."}\n')
    assert command(["translate", str(tmp_path / "text.jsonl"), "-o", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err.splitlines()[0]
    assert message.startswith("bestfirst: line 1: the input has '\\ud800' at position 4, which is no character; replace it")
    assert (tmp_path / "out").read_text() == "\nYes.\n"


def test_an_existing_field_conflicts_only_with_an_output_field_of_that_name(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "Ja.", "translation": "no"}\n')
    assert run("translate", tmp_path / "rows.jsonl").stdout == b"Yes.\n"
    assert command(["translate", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "out.txt")]) == 0
    assert (tmp_path / "out.txt").read_text() == "Yes.\n"
    assert command(["translate", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "there is a field 'translation' already; name another output field" in capsys.readouterr().err


def test_the_same_job_with_another_field_is_another_job(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"german": "Ja."}\n')
    arguments = ["translate", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert command(arguments) == 1
    assert "no field 'text' among 'german'; name another input field" in capsys.readouterr().err
    assert command([*arguments, "--input-field", "german"]) == 2
    assert 'is of another job (input field was "text", is "german"); replace it' in capsys.readouterr().err


def test_a_language_that_the_model_does_not_know_is_a_usage_error():
    for side in ("source", "target"):
        process = run("translate", f"--{side}-lang", "de", stdin=b"Ja.\n")
        assert process.returncode == 2
        said = f"unknown {side} language 'de' for model 'tatoeba-de-en'; leave it out unless the model has several"
        assert only_line(process.stderr) == said


def test_the_columns_of_a_stream_are_checked_before_it_begins(tmp_path):
    pq.write_table(pa.table({"id": [1], "text": [2]}), tmp_path / "rows.parquet")
    for arguments, said in (
        ([], "column 'text' of "),
        (["--input-field", "german"], f"'{tmp_path / 'rows.parquet'}' has no column"),
    ):
        process = run("translate", tmp_path / "rows.parquet", *arguments)
        assert only_line(process.stderr).startswith(said)
        assert (process.returncode, process.stdout) == (2, b"")


@pytest.mark.parametrize("host", ["", "*", "http://x"])
def test_an_invalid_allowed_host_is_rejected(host):
    process = run("serve", "--port", 0, "--allowed-host", host)
    message = f"bestfirst: --allowed-host takes a name or an address, without scheme, port or path, got {host!r}\n"
    assert (process.returncode, process.stderr.decode()) == (2, message)


def test_help_has_examples_and_loads_no_torch():
    for arguments, words in (
        ([], ["translate", "compare"]),
        (["translate"], ["Examples:", "Exit codes:", "130", "--nbest", "|||", "--row-budget", "status"]),
        (["compare"], ["Examples:", "Exit codes:", "--max-calls"]),
        (["view"], ["Examples:", "Exit codes:", "--text", "--trace"]),
        (["explain"], ["Examples:", "Exit codes:", "--want", "smallest"]),
        (["bench"], ["paper", "growth"]),
        (["bench", "speed"], ["bestfirst[bench]"]),
        (["tune", "--help"], ["--budget", "--margin", "--length-reward", "--dtypes"]),
    ):
        heavy = "{'torch', 'transformers', 'numpy', 'matplotlib'} & sys.modules.keys()"
        script = f"import sys; from bestfirst.cli import run; run(sys.argv[1:]); assert not {heavy}, {heavy}"
        process = run(*arguments, "--help", command=[sys.executable, "-c", script])
        assert process.returncode == 0, process.stderr
        assert all(word in process.stdout.decode() for word in words)


def test_the_overview_lists_the_existing_commands():
    from bestfirst.cli import OVERVIEW
    from bestfirst.cli.commands import commands_for

    lines = OVERVIEW.partition("Commands\n")[2].partition("\n\n")[0].splitlines()
    found = {each.callback.__name__: each.callback.__doc__ for each in commands_for("nothing").registered_commands}
    assert [line.split()[0] for line in lines] == list(found)
    for line in lines:
        name, _, about = line.strip().partition(" ")
        assert found[name].startswith(about.strip().rstrip("."))


def test_a_command_does_not_import_other_commands():
    others = "sys.exit('bestfirst.cli.serve' in sys.modules)"
    script = f"import sys; from bestfirst.cli import run; run(['view', '--help']); {others}"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_missing_dependency_of_tune_is_named(monkeypatch, capsys, tmp_path):
    import bestfirst_bench.growth  # noqa: F401 - imported before the patch, so that it does not keep the patched function

    (tmp_path / "text").write_text("Ja.\n", encoding="utf-8")
    monkeypatch.setattr("bestfirst_bench.row.identity", lambda model: __import__("torch_of_nowhere"))
    assert command(["tune", str(tmp_path / "text"), "--rows", str(tmp_path / "rows")]) == 2
    assert only_line(capsys.readouterr().err) == "bestfirst tune needs torch_of_nowhere: pip install 'bestfirst[bench]'"


def test_missing_benchmarks_are_reported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bestfirst_bench.cli", None)
    assert command(["bench", "run", "--beam", "3"]) == 2
    assert only_line(capsys.readouterr().err).startswith("the benchmarks are not installed; install bestfirst again: pip install")


def test_module_and_script_print_the_same_version():
    script = [str(Path(sys.executable).parent / "bestfirst")]
    outputs = [run("--version", command=command).stdout for command in (COMMAND, script)]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(b"bestfirst 0.")


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [
        ("translate >&-", "standard output is closed; name an output file with -o", 2),
        ("translate <&-", "standard input is closed; name an input file", 2),
        ("translate --help >/dev/full", "No space left on device", 1),
    ],
)
def test_closed_or_full_standard_streams_are_reported(line: str, said: str, code: int):
    shell = ["sh", "-c", f'exec "$0" -m bestfirst {line}', sys.executable]
    process = subprocess.run(shell, capture_output=True, env=ENVIRONMENT, check=False)
    assert only_line(process.stderr) == said
    assert process.returncode == code


def test_errors_are_not_printed_to_standard_output_when_stderr_is_closed():
    shell = ["sh", "-c", 'exec "$0" -m bestfirst translate --beam 0 2>&-', sys.executable]
    process = subprocess.run(shell, capture_output=True, env=ENVIRONMENT, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", b"")
