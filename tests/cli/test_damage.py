"""Failures of the command or its model: one line on stderr, the right exit code, and what is written stays."""

from __future__ import annotations

import json
import shutil
import signal
from importlib.resources import files
from pathlib import Path

import pytest

from cli.process import GERMAN, only_line, run, running

TOKENIZER = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model, to be damaged."""
    return Path(shutil.copytree(str(files("bestfirst") / "data" / "tatoeba-de-en"), tmp_path / "model"))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ((".",), "no model folder at {!r}"),
        (("config.json",), "the model folder {!r} has no config.json"),
        (("model.safetensors",), "the model folder {!r} has no weights (model.safetensors)"),
        (TOKENIZER, "the model folder {!r} has no tokenizer, so it takes no text; add its tokenizer's files"),
    ],
)
def test_a_missing_or_incomplete_model_folder_is_reported(folder: Path, missing: tuple[str, ...], said: str):
    for name in missing:
        shutil.rmtree(folder) if name == "." else (folder / name).unlink()
    for arguments in (["translate"], ["compare", "Guten Morgen!"]):
        process = run(*arguments, "--model", folder, stdin=b"Guten Morgen!\n")
        assert only_line(process.stderr) == said.format(str(folder))
        assert (process.returncode, process.stdout) == (2, b"")


def test_an_unknown_model_is_reported_without_the_hub():
    process = run("translate", "--model", "nothing-of-that-name")
    assert only_line(process.stderr).startswith(
        "no model folder at 'nothing-of-that-name', and the hub, where it may be, cannot be reached: "
    )
    assert process.returncode == 2


@pytest.mark.parametrize("damage", ["weights", "tokenizer", "config"])
def test_a_damaged_model_folder_is_reported(folder: Path, call, damage: str):
    if damage == "tokenizer":
        (folder / "source.spm").unlink()
    else:
        file = folder / ("config.json" if damage == "config" else "model.safetensors")
        file.write_bytes(file.read_bytes()[:500])
    ended = call("translate", "--model", folder, text="Guten Morgen!\n")
    assert only_line(ended.stderr).startswith(f"cannot load a model from '{folder}': ")
    assert ended.code == 2


@pytest.fixture
def nan(folder: Path) -> Path:
    """A model whose scores are NaN."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "decoder" in name and "norm" in name)
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


NAN = "the scores after [] are not finite: check the model's weights and dtype"


def test_a_model_that_computes_nan_fails_every_line_of_a_stream(nan: Path):
    process = run("translate", "--model", nan, stdin=b"Guten Morgen!\n\nIch liebe dich.\n")
    assert (process.returncode, process.stdout) == (1, b"\n\n\n")
    messages = [line for line in process.stderr.decode().splitlines() if not line.startswith("bestfirst: warning: ")]
    assert messages == [f"bestfirst: line {number}: {NAN}" for number in (1, 3)]


def test_a_model_that_computes_nan_stops_a_job_on_files(nan: Path, call):
    ended = call("translate", "--model", nan, text="Guten Morgen!\n\nIch liebe dich.\n")
    messages = [line for line in ended.stderr.splitlines() if not line.startswith("bestfirst: warning: ")]
    kept = "0 lines are kept: the same command goes on from there"
    assert messages == [f"bestfirst: the model fails on everything ({NAN}); {kept}"]
    assert (ended.code, ended.out) == (1, "")


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_an_unusable_device_is_named(call, device: str):
    ended = call("translate", "--device", device, text="Guten Morgen!\n")
    assert ended.code == 2
    assert only_line(ended.stderr).startswith(f"cannot use device '{device}': ")


def test_a_full_disk_behind_standard_output_is_reported():
    with Path("/dev/full").open("wb") as full:
        process = run("translate", stdin=b"Guten Morgen!\n", stdout=full)
    assert only_line(process.stderr) == "cannot write to standard output: No space left on device"
    assert process.returncode == 1


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_full_disk_is_reported_with_the_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str):
    from bestfirst.cli import run

    (tmp_path / "text").write_text("Guten Morgen!\n")
    out = [] if option == "-o" else ["-o", str(tmp_path / "out")]
    assert run(["translate", str(tmp_path / "text"), option, "/dev/full", *out]) == 1
    assert only_line(capsys.readouterr().err) == "cannot write to '/dev/full': No space left on device"


def test_translated_lines_stay_written_after_an_interrupt(tmp_path: Path):
    text = tmp_path / "text"
    text.write_bytes(GERMAN.read_bytes() * 20)
    with running("translate", text, "--json", "--row-budget", 4) as process:
        written = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        written += process.stdout.read()
        assert only_line(process.stderr.read()) == "interrupted; the lines translated so far are written"
        assert process.wait() == 130
    numbers = [json.loads(line)["line"] for line in written.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) < 4000
