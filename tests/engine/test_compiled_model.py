"""Models read from their files straight into compiled steps equal those of transformers, which is never imported."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bestfirst
from bestfirst.engine.compiled_model import DEFAULTS, CompiledModel
from bestfirst.models.folder import ModelNotFound, NeedsTransformers, WeightFiles, embedded_folder
from bestfirst.models.transformers import load_transformers
from engine.builders import ARCHITECTURES, EOS, PAD

NAMES = ["marian", "bart", "mbart", "pegasus", "m2m100"]
INPUTS = [[5, 6, 7, EOS], [9, EOS], [12, 13, 14, 15, 16, 17, 18, 19, 20, EOS], [30] * 20 + [EOS]]


def folder_of(name: str, path: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> str:
    model = ARCHITECTURES[name].build(seed=4, **changes).to(dtype)
    model.save_pretrained(path)
    return str(path)


def assert_alike(mine: list[bestfirst.Result], its: list[bestfirst.Result]) -> None:
    for one, other in zip(mine, its, strict=True):
        assert [y.tokens for y in one.hypotheses] == [y.tokens for y in other.hypotheses]
        assert [y.score for y in one.hypotheses] == pytest.approx([y.score for y in other.hypotheses], abs=1e-4)
        assert (one.calls, one.exact, one.status) == (other.calls, other.exact, other.status)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_results_equal_those_with_transformers(name, dtype, tmp_path):
    """For each dtype that the weights are stored in."""
    folder = folder_of(name, tmp_path, dtype)
    mine, its = bestfirst.load(folder), load_transformers(folder)
    assert isinstance(mine, CompiledModel)
    assert (mine.eos, mine.banned, mine.start_tokens) == (its.eos, its.banned, its.start_tokens)
    assert (mine.vocabulary, mine.positions, mine.source_positions) == (its.vocabulary, its.positions, its.source_positions)
    for settings in ({"beam": 4, "nbest": 3}, {"beam": 3, "length_penalty": 0.7}):
        assert_alike(bestfirst.decode(mine, INPUTS, **settings), bestfirst.decode(its, INPUTS, **settings))


@pytest.mark.parametrize("name", NAMES)
def test_scores_from_scratch_and_attention_equal_transformers(name, tmp_path):
    folder = folder_of(name, tmp_path)
    mine, its = bestfirst.load(folder), load_transformers(folder)
    for prefix in ((), (7,), (7, 8, 9)):
        query = [bestfirst.Query(mine.start(INPUTS[2]), prefix)]
        np.testing.assert_allclose(mine.score(query)[0].logprobs, its.score(query)[0].logprobs, atol=1e-4)
    score = bestfirst.Coverage(0.3)
    assert_alike(bestfirst.decode(mine, INPUTS, beam=3, score=score), bestfirst.decode(its, INPUTS, beam=3, score=score))
    assert not mine.decoder.records_attention  # recording would slow down all later decodes


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_new", "silu", "swish"])
def test_activations_and_untied_weights_equal_transformers(activation, tmp_path):
    folder = folder_of("bart", tmp_path, activation_function=activation, tie_word_embeddings=False)
    assert_alike(
        bestfirst.decode(bestfirst.load(folder), INPUTS, beam=4), bestfirst.decode(load_transformers(folder), INPUTS, beam=4)
    )


def test_the_embedded_model_equals_transformers_on_many_lines_and_settings():
    lines = Path(__file__).parents[1].joinpath("data", "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:60]
    mine, its = bestfirst.load(), load_transformers(embedded_folder())
    for settings in (
        {"beam": 5, "nbest": 2}, {"beam": 5, "strategy": "beam", "finished": "keep"}, {"beam": 4, "length_penalty": 1.0},
        {"beam": 2, "prefix": "I "}, {"beam": 3, "score": bestfirst.LogProbability(0.8)},
    ):  # fmt: skip
        found, expected = bestfirst.decode(mine, lines, **settings), bestfirst.decode(its, lines, **settings)
        assert [result.text for result in found] == [result.text for result in expected]
        assert_alike(found, expected)


def test_the_tree_and_the_sources_grow_with_many_rows():
    model = bestfirst.load()
    lines = ["Ich " + "sehr " * (n % 40) + "gut." for n in range(90)]
    one_by_one = [bestfirst.decode(model, [line], beam=3)[0].text for line in lines[:20]]
    assert [result.text for result in bestfirst.decode(model, lines, beam=3, row_budget=96)][:20] == one_by_one


def test_models_that_are_not_compiled_are_loaded_by_transformers(tmp_path):
    folder = tmp_path / "t5"
    ARCHITECTURES["t5"].build().save_pretrained(folder)
    with pytest.raises(NeedsTransformers, match="models of type 't5' are not compiled here"):
        CompiledModel(str(folder))
    assert not isinstance(bestfirst.load(folder), CompiledModel)
    assert not isinstance(bestfirst.load(dtype="bf16"), CompiledModel)
    small = folder_of("bart", tmp_path / "odd", activation_function="quick_gelu")
    assert not isinstance(bestfirst.load(small), CompiledModel)


def test_config_defaults_equal_those_of_transformers():
    import transformers

    for kind, defaults in DEFAULTS.items():
        config = transformers.CONFIG_MAPPING[kind]()
        assert {name: getattr(config, name) for name in defaults} == defaults
        missing = {"decoder_start_token_id", "bos_token_id"} - set(defaults)
        assert all(getattr(config, name, None) is None for name in missing)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda header: header["model.shared.weight"].update(data_offsets=[0, 1 << 40]), "does not lie in it"),
        (lambda header: header["model.shared.weight"].update(shape=[3]), "does not lie in it"),
        (lambda header: header["model.shared.weight"].pop("dtype"), "its header is not one of safetensors"),
        (lambda header: header.pop("model.decoder.layers.0.fc1.weight"), "its weights lack 'model.decoder.layers.0.fc1.weight'"),
    ],
)
def test_damaged_weights_are_reported(damage, said, tmp_path):
    folder = folder_of("bart", tmp_path)
    path = Path(folder, "model.safetensors")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    damage(header)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + length :])
    with pytest.raises(ModelNotFound, match=said):
        CompiledModel(folder)


@pytest.mark.parametrize("padding", ["eos_token_id", "decoder_start_token_id"])
def test_an_m2m100_that_begins_or_ends_texts_with_padding_equals_transformers(padding, tmp_path):
    """Its positions count all tokens but padding."""
    changes = {"decoder_start_token_id": EOS} if padding == "eos_token_id" else {"decoder_start_token_id": PAD}
    pad = EOS if padding == "eos_token_id" else PAD
    model = bestfirst.load(folder_of("m2m100", tmp_path, pad_token_id=pad, **changes))
    for source, result in zip(INPUTS, bestfirst.decode(model, INPUTS, beam=3, max_length=6, accept_truncated=True), strict=True):
        tokens, best = [*model.start_tokens, *result.hypotheses[0].tokens], result.hypotheses[0]
        with torch.inference_mode():
            given = {"input_ids": torch.tensor([source]), "attention_mask": torch.ones(1, len(source))}
            logprobs = model.model(**given, decoder_input_ids=torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
        expected = sum(logprobs[i - 1, tokens[i]].item() for i in range(len(model.start_tokens), len(tokens)))
        assert best.score == pytest.approx(expected, abs=1e-4)


def test_padding_inside_an_input_of_m2m100_fails_that_input(tmp_path):
    """Its tokens after the padding would get other positions than in the model."""
    padded, plain = bestfirst.decode(bestfirst.load(folder_of("m2m100", tmp_path)), [[5, PAD, 6, EOS], [5, 6, EOS]], beam=2)
    assert (padded.status, plain.status) == ("error", "complete")
    assert f"the input contains padding (token {PAD})" in padded.message


def test_weights_that_differ_from_the_config_are_reported(tmp_path):
    folder = folder_of("bart", tmp_path)
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "d_model": 64}))
    with pytest.raises(ModelNotFound, match=r"config.json differ: .* is \(.*, 32\), config.json makes it \(.*, 64\)"):
        CompiledModel(folder)


def test_a_config_without_the_padding_token_that_positions_need_is_reported_on_loading(tmp_path):
    path = Path(folder_of("m2m100", tmp_path), "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": None}))
    with pytest.raises(ModelNotFound, match="NoneType"):
        CompiledModel(str(tmp_path))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", NAMES)
def test_weight_files_are_unmapped_after_loading(name, tmp_path):
    model = CompiledModel(folder_of(name, tmp_path))
    bestfirst.decode(model, INPUTS, max_length=3)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def test_tensors_equal_those_of_safetensors(tmp_path):
    from safetensors.torch import save_file

    stored = {
        "a": torch.randn(3, 5), "b": torch.randn(4).half(), "c": torch.randn(2, 2).bfloat16(), "d": torch.tensor(2.5).double(),
    }  # fmt: skip
    save_file(stored, tmp_path / "model.safetensors")
    tensors = WeightFiles(tmp_path)
    assert set(tensors) == set(stored)
    for name, tensor in stored.items():
        assert tensors[name].dtype == np.float32
        assert np.array_equal(tensors[name], tensor.float().numpy())


COLD = """
import sys, bestfirst
{code}
heavy = {{"torch", "transformers", "numba", "numpy", "typer", "rich", "pydantic"}}
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & heavy))
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("", ""),
        ("import bestfirst.cli", ""),
        ("bestfirst.Decoding(beam=5)", ""),
        ("assert bestfirst.decode(bestfirst.load(), ['Guten Morgen!'])[0].text == 'Good morning.'", "numpy"),
        ("from bestfirst.cli import run; assert run(['--version']) == 0", ""),
        ("from bestfirst.cli import run; assert run(['--help']) == 0", ""),
    ],
)
def test_heavy_imports_of_a_new_process(code, loaded):
    ran = subprocess.run([sys.executable, "-c", COLD.format(code=code)], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == loaded


def test_a_decode_releases_its_memory():
    """Keys and values are freed with their decode, however many there are."""
    model = bestfirst.load()

    def maps_after_decode() -> int:
        bestfirst.decode(model, ["Guten Morgen!", "Wo ist der Bahnhof?"])
        return sum(type(each) is mmap for each in gc.get_objects())

    gc.collect()  # what other tests left behind
    first = maps_after_decode()
    assert [maps_after_decode() for _ in range(3)] == [first] * 3
