"""Model folders that are damaged or contain code: one line names the file or field, and no code runs."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cli.process import only_line, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model, to be changed."""
    return Path(shutil.copytree(str(files("bestfirst") / "data" / "tatoeba-de-en"), tmp_path / "model"))


def set_config(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))

    return change


def set_generation_config(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps({**config, **fields}))

    return change


def retyped(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.fc1.weight"
    save_file({**weights, name: weights[name].astype(np.int8)}, folder / "model.safetensors")


def without_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    for name in ("vocab.json", "source.spm", "target.spm"):
        (folder / name).unlink()


def with_a_list_as_tokenizer(folder: Path) -> None:
    without_tokenizer_json(folder)
    (folder / "tokenizer.json").write_text("[1]")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": print}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_config(d_model=64), r"its weights and config.json differ: .* is \(256,\), config.json makes it \(64,\)"),
        (set_config(decoder_layers="six"), r"config.json: Field 'decoder_layers' expected int, got str \(value: 'six'\)"),
        (set_config(decoder_layers="3"), r"config.json: Field 'decoder_layers' expected int, got str \(value: '3'\)"),
        (set_config(scale_embedding="false"), r"config.json: Field 'scale_embedding' expected bool, got str .*"),
        (set_config(activation_function="nosuch"), "config.json: 'activation_function' is 'nosuch', which transformers .*"),
        (set_config(vocab_size=7), "its weights and config.json differ: there are 6001 tokens, and vocab_size is 7"),
        (set_config(decoder_layers=2), "its weights and config.json differ: there are 3 layers in the decoder, not 2"),
        (
            set_config(encoder_layers=10**6),
            "its weights and config.json differ: there are 3 layers in the encoder, not 1000000",
        ),
        (set_config(decoder_attention_heads=-4), "decoder_attention_heads in config.json must be at least 1, got -4"),
        (retyped, r"its weight 'model.decoder.layers.0.fc1.weight' is of type I8, not F32, F16 or BF16"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "config.json must be a JSON object, and is a list"),
        (lambda folder: (folder / "vocab.json").write_text("{"), "vocab.json is no JSON: .*"),
        (lambda folder: (folder / "vocab.json").unlink(), "its tokenizer lacks vocab.json"),
        (without_tokenizer_json, "its tokenizer lacks tokenizer.json"),
        (with_a_list_as_tokenizer, "tokenizer.json must be a JSON object, and is a list"),
        (lambda folder: (folder / "target.spm").unlink(), "its tokenizer lacks target.spm"),
        (lambda folder: (folder / "source.spm").write_bytes(b""), "source.spm is empty"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "model.safetensors is damaged: .*"),
        (pickled, "pytorch_model.bin is damaged, or holds more than weights; have model.safetensors instead"),
    ],
)
def test_damage_is_reported_with_its_file_or_field(call, folder: Path, change: Callable[[Path], None], said: str):
    change(folder)
    ended = call("translate", "--model", folder, text="Ja.\n")
    line = only_line(ended.stderr)
    assert line.startswith(f"cannot load a model from '{folder}': ")
    assert re.fullmatch(said, line.partition("': ")[2])
    assert ended.code == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"eos_token_id": 1.5}, "eos_token_id in its files must be a token's number, or a list of such, got 1.5"),
        ({"eos_token_id": [[0]]}, "eos_token_id in its files must be a token's number, or a list of such, got [[0]]"),
        ({"eos_token_id": True}, "eos_token_id in its files must be a token's number, or a list of such, got True"),
        ({"decoder_start_token_id": [1, 2]}, "decoder_start_token_id in its files must be a token's number, got [1, 2]"),
        ({"suppress_tokens": "a"}, "suppress_tokens in its files must be a token's number, or a list of such, got 'a'"),
        ({"bad_words_ids": [5]}, "bad_words_ids in its files must be a list of lists, got [5]"),
        ({"max_length": "12"}, "max_length in its files must be a whole number, got '12'"),
    ],
)
def test_an_invalid_generation_config_is_reported_with_its_field(call, folder: Path, fields: dict[str, object], said: str):
    set_generation_config(**fields)(folder)
    ended = call("translate", "--model", folder, text="Ja.\n")
    assert only_line(ended.stderr) == f"model 'model': {said}"
    assert ended.code == 2


def test_position_tables_are_only_as_long_as_needed(call, folder: Path):
    """A table of ten million took all memory there was."""
    set_config(max_position_embeddings=10**7)(folder)
    ended = call("translate", "--model", folder, text="Ja.\n")
    assert (ended.code, ended.out) == (0, "Yes.\n")


CODE = """
from pathlib import Path
from transformers import MarianConfig
Path({ran!r}).touch()
class OwnConfig(MarianConfig):
    model_type = "own"
"""


@pytest.mark.parametrize("kind", ["own", "marian"])
def test_code_of_a_model_folder_runs_only_when_trusted(folder: Path, kind: str, tmp_path: Path):
    """The text on standard input must not answer transformers' question whether to trust the code."""
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(CODE.format(ran=str(ran)))
    set_config(model_type=kind, auto_map={"AutoConfig": "own.OwnConfig"})(folder)
    process = run("translate", "--model", folder, stdin=b"Hallo.\n1\n")
    assert not ran.exists()
    if kind == "own":
        message = "it needs Python files that come with it; read them, and if you trust them, load it with --trust-remote-code"
        assert only_line(process.stderr) == f"cannot load a model from '{folder}': {message}"
        assert (process.returncode, process.stdout) == (2, b"")
        run("translate", "--model", folder, "--trust-remote-code", stdin=b"Hallo.\n1\n")
        assert ran.exists()
    else:
        assert (process.returncode, process.stdout.count(b"\n")) == (0, 2)
