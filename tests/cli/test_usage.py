"""What is wrong with a command line, an input or an output is said in one line, before a model is loaded; exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
        (["translate", "--dtype", "int3"], "Invalid value for '--dtype': 'int3' is not one of fp32, fp16, bf16"),
        (["translate", "--finished", "keep", "--beam", "2", "--nbest", "3"], "nbest (3) must not exceed beam (2)"),
        (["translate", "no/such/file"], "cannot read 'no/such/file': No such file or directory"),
        (["translate", "."], "cannot read '.': Is a directory"),
        (["translate", "-o", "no/such/folder/out"], "cannot write to 'no/such/folder/out': No such file or directory"),
        (["translate", "-o", "."], "cannot write to '.': Is a directory"),
        (["translate", "a", "b"], "Got unexpected extra argument"),
        (["translate", "--beem", "3"], "No such option: --beem"),
        (["compare"], "Missing argument 'TEXT...'"),
        (["compare", "ja", " "], "text 2 is empty"),
        (["transcribe"], "No such command 'transcribe'"),
    ],
)
def test_a_wrong_command_line_is_named_in_one_line(arguments: list[str], said: str):
    process = run(*arguments)
    assert only_line(process.stderr).startswith(said)
    assert process.returncode == 2
    assert process.stdout == b""


def test_the_input_is_never_overwritten(tmp_path: Path):
    text = tmp_path / "text"
    text.write_text("Guten Morgen!\n")
    for arguments in ([text, "-o", text], [text, "--trace", text], ["-o", text, text]):
        process = run("translate", *arguments)
        assert only_line(process.stderr) == f"'{text}' is a file that this command reads or writes already; name another"
        assert process.returncode == 2
    with text.open("ab") as appended:  # like cat, which would read for ever what it writes
        process = run("translate", text, stdout=appended)
    assert only_line(process.stderr).startswith("standard output is a file that this command reads or writes already")
    assert text.read_text() == "Guten Morgen!\n"


def test_an_unreadable_or_unwritable_file_is_named(tmp_path: Path):
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


def test_help_teaches_and_loads_no_torch():
    for arguments, words in (
        ([], ["translate", "compare"]),
        (["translate"], ["Examples:", "Exit codes:", "130", "--nbest", "|||", "--row-budget", "status"]),
        (["compare"], ["Examples:", "Exit codes:", "--max-calls"]),
        (["view"], ["Examples:", "Exit codes:", "--text", "--trace"]),
        (["explain"], ["Examples:", "Exit codes:", "--want", "smallest"]),
    ):
        script = "import sys; from bestfirst.cli.app import run; run(sys.argv[1:]); assert 'torch' not in sys.modules"
        process = run(*arguments, "--help", command=[sys.executable, "-c", script])
        assert process.returncode == 0, process.stderr
        assert all(word in process.stdout.decode() for word in words)


def test_both_ways_to_start_it_print_the_version():
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
def test_standard_streams_may_be_closed_or_useless(line: str, said: str, code: int):
    shell = ["sh", "-c", f'exec "$0" -m bestfirst {line}', sys.executable]
    process = subprocess.run(shell, capture_output=True, env=ENVIRONMENT, check=False)
    assert only_line(process.stderr) == said
    assert process.returncode == code


def test_errors_are_not_printed_to_standard_output_when_stderr_is_closed():
    shell = ["sh", "-c", 'exec "$0" -m bestfirst translate --beam 0 2>&-', sys.executable]
    process = subprocess.run(shell, capture_output=True, env=ENVIRONMENT, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", b"")
