"""bench generate: `generate` without and with the drop-in, on a few lines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.conftest import GERMAN, call
from bestfirst.engine.model_record import record_of
from bestfirst.models.transformers import wrap
from bestfirst_bench.costs import fastest_batch
from bestfirst_bench.peers import PeerRun
from bestfirst_bench.speed import compare_generate
from cli.process import only_line
from engine.builders import ARCHITECTURES


def run(*arguments):
    command = [sys.executable, "-m", "bestfirst", "bench", "generate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_setting_gives_the_same_sequences():
    done = run(GERMAN, "--limit", 5, "--repeat", 1, "--batch-size", 3, "--num-beams", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["setting"] for line in found] == ["defaults", "early_stopping=True", "never, penalty 0"]
    assert all(line["same"] + line["near_ties"] == line["lines"] == 5 and line["gaps"] == [] for line in found)
    assert all(0 < line["calls"] <= line["rows"] and line["ratio"] > 0 for line in found)
    assert {(line["engine"], line["clock"], line["batch"]) for line in found} == {("host", "CPU", 3)}


def test_given_settings_replace_the_defaults_and_a_table_is_printed(capsys):
    settings = ["--length-penalty", 0.6, "--early-stopping", "never", "--no-repeat-ngram-size", 3, "--max-new-tokens", 12]
    assert call("bench", "generate", GERMAN, "--limit", 3, "--num-beams", "2,3", "--repeat", 1, *settings) == 0
    printed = capsys.readouterr().out
    assert printed.count("length_penalty=0.6, early_stopping=never") == 2
    assert printed.count("3 of 3") == 2


def test_prompts_of_a_decoder_only_model_are_padded_on_the_left():
    class Digits:
        """A tokenizer whose texts are token ids."""

        def __call__(self, text):
            each = [[int(token) for token in one.split()] for one in ([text] if isinstance(text, str) else text)]
            return type("Encoding", (), {"input_ids": each[0] if isinstance(text, str) else each})

    model = wrap(ARCHITECTURES["gpt2"].build(), Digits())
    (row,) = compare_generate(model, ["4 5 6", "7", "8 9"], [3], {"plain": {}}, repeat=1, max_new_tokens=6)
    assert row.agreement.same + len(row.agreement.near_ties) == 3
    assert row.stats.engine in ("host", "generate")  # whichever was measured to be faster


def test_the_batch_size_doubles_until_it_is_slower_or_out_of_memory():
    import torch

    def timed(seconds):
        def run(size):
            if size not in seconds:
                raise torch.OutOfMemoryError
            return PeerRun(seconds[size], [])

        return run

    slower = {64: 3.0, 128: 2.0, 256: 2.1, 512: 2.5, 1024: 1.0}
    assert fastest_batch(timed(slower), 5000)[0] == 128
    assert fastest_batch(timed({64: 3.0, 128: 2.0}), 5000)[0] == 128
    assert fastest_batch(timed({64: 3.0, 128: 2.0}), 50)[0] == 64
    assert fastest_batch(timed({8: 3.0, 4: 1.0}), 5000)[0] == 8
    with pytest.raises(ValueError, match="does not fit"):
        fastest_batch(timed({}), 5000)


def test_invalid_input_is_reported_in_one_line(tmp_path, capsys):
    empty = tmp_path / "empty.de"
    empty.touch()
    asked = {
        (tmp_path / "missing.de",): "missing.de",
        (empty,): "has no text",
        (GERMAN, "--num-beams", 0): "--num-beams must be at least 1, got 0",
        (GERMAN, "--model", tmp_path): "has no config.json",
        (GERMAN, "--early-stopping", "maybe"): "'maybe' is not one of true, false, never",
    }
    for arguments, message in asked.items():
        assert call("bench", "generate", *arguments) == 2
        assert message in only_line(capsys.readouterr().err)


def test_a_model_set_to_eight_bits_is_decoded_in_eight_bits():
    model = wrap(ARCHITECTURES["marian"].build())
    model.eight_bits = True
    next(compare_generate(model, [[5, 6, 1]], [2], {"defaults": {}}, repeat=1, max_new_tokens=4))
    assert record_of(model).step is not None
