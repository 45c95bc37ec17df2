"""Hugging Face models from `load` and `wrap`: their files and configs, what they accept, and what they refuse."""

from __future__ import annotations

import json
import shutil
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bestfirst
from bestfirst.models.folder import ModelNotFound
from bestfirst.models.model import Query
from bestfirst.models.transformers import evaluating
from bestfirst.testing import check_model
from engine.builders import ARCHITECTURES, EOS, PAD, START


@pytest.fixture(scope="module")
def embedded() -> Any:
    return bestfirst.load()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder of a small Marian model, without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    ARCHITECTURES["marian"].build().save_pretrained(folder)
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of it, for tests that damage it."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


# -- load --------------------------------------------------------------------------------------------------------------


def test_without_a_name_the_embedded_translator_is_loaded(embedded: Any) -> None:
    assert embedded.name == "tatoeba-de-en"
    assert not embedded.model.training
    (result,) = bestfirst.decode(embedded, ["Guten Morgen!"])
    assert result.text == "Good morning."
    assert result.hypotheses[0].tokens[-1] in embedded.eos


def test_a_folder_without_a_tokenizer_takes_token_ids(tiny: Path) -> None:
    model = bestfirst.load(tiny)
    text, ids = bestfirst.decode(model, ["Guten Morgen!", [5, 6, EOS]])
    assert (text.status, text.message) == ("error", "model 'tiny' has no tokenizer: give token ids instead of text")
    assert ids.status == "complete"
    assert ids.hypotheses[0].text is None


@pytest.mark.parametrize(("name", "dtype"), [(None, torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_load_takes_a_dtype_by_name_or_as_an_object(tiny: Path, name: str | None, dtype: torch.dtype) -> None:
    assert bestfirst.load(tiny, dtype=name).model.dtype == dtype
    assert bestfirst.load(tiny, dtype=dtype).model.dtype == dtype


def test_an_unknown_dtype_or_device_is_named(tiny: Path) -> None:
    with pytest.raises(ValueError, match=r"^unknown dtype 'fp8'; choose from fp32, fp16, bf16, int8$"):
        bestfirst.load(tiny, dtype="fp8")
    with pytest.raises(ValueError, match=r"^cannot use device 'nowhere'"):
        bestfirst.load(tiny, device="nowhere")


def test_a_missing_folder_is_never_looked_up_elsewhere(tmp_path: Path) -> None:
    for name in (tmp_path / "nothing", "./nothing", "a/b/c"):
        with pytest.raises(ModelNotFound, match=f"no model folder at '{name}'"):
            bestfirst.load(name)


def remove(*names: str) -> Any:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


def truncate(folder: Path) -> None:
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1000)


def drop_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "decoder.layers.1.fc" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove("config.json"), "has no config.json"),
        (remove("model.safetensors"), "has no weights"),
        (write("config.json", "{"), "cannot load a model from"),
        (write("config.json", json.dumps({"model_type": "nosuch"})), "cannot load a model from"),
        (write("tokenizer_config.json", json.dumps({"tokenizer_class": "MarianTokenizer"})), "cannot load a model from"),
        (truncate, "cannot load a model from"),
        (drop_tensors, r"its weights lack 'model.decoder.layers.1.fc1.bias' and 3 more"),
    ],
    ids=["no config", "no weights", "no JSON", "unknown kind", "no tokenizer files", "cut off", "tensors missing"],
)
def test_an_incomplete_folder_gives_an_error_of_one_line(copy: Path, damage: Any, said: str) -> None:
    damage(copy)
    with pytest.raises(ModelNotFound, match=said) as caught:
        bestfirst.load(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_instead_of_a_folder_is_refused(tiny: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file; a model is a folder"):
        bestfirst.load(tiny / "config.json")


# -- wrap --------------------------------------------------------------------------------------------------------------


def test_wrap_keeps_the_model_and_reads_its_config() -> None:
    inner = ARCHITECTURES["bart"].build()
    model = bestfirst.wrap(inner)
    assert model.model is inner
    assert model.name == "BartForConditionalGeneration"
    assert model.eos == {EOS}
    assert model.start_tokens == (START,)
    check_model(model, [5, 6, EOS], normalized=False)  # the probability of banned tokens is missing


def test_training_modes_are_restored_per_module_and_after_an_exception() -> None:
    model = ARCHITECTURES["bart"].build().train()
    model.get_encoder().eval()
    before = [module.training for module in model.modules()]
    with evaluating(model.modules()):
        assert not any(module.training for module in model.modules())
    with pytest.raises(KeyError), evaluating(model.modules()):
        raise KeyError
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [("bart", "eos_token_id", "has no eos_token_id"), ("bart", "decoder_start_token_id", "has no decoder_start_token_id")],
)
def test_a_missing_eos_or_start_token_is_named(name: str, setting: str, said: str) -> None:
    inner = ARCHITECTURES[name].build()
    for config in (inner.config, inner.generation_config):
        for each in {setting, "bos_token_id"}:
            setattr(config, each, None)
    with pytest.raises(ValueError, match=said):
        bestfirst.wrap(inner)


def test_several_tokens_may_end_an_output() -> None:
    inner = ARCHITECTURES["llama"].build()
    inner.generation_config.eos_token_id = [EOS, 7]
    model = bestfirst.wrap(inner)
    results = bestfirst.decode(model, ARCHITECTURES["llama"].inputs(6), nbest=3, max_length=12)
    last = [answer.tokens[-1] for result in results for answer in result.hypotheses]
    assert set(last) == {EOS, 7}
    assert not any({EOS, 7} & set(answer.tokens[:-1]) for result in results for answer in result.hypotheses)


# -- tokens that may not be generated ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_banned_tokens_are_never_generated(name: str) -> None:
    inner = ARCHITECTURES[name].build()
    inputs = ARCHITECTURES[name].inputs(4)
    results = bestfirst.decode(bestfirst.wrap(inner), inputs, max_length=8, accept_truncated=True)
    usual = {token for result in results for token in result.hypotheses[0].tokens} - {EOS}
    first, second, *_ = sorted(usual)
    inner.generation_config.bad_words_ids = [[PAD], [first], [second, 5]]
    inner.generation_config.suppress_tokens = [second]
    model = bestfirst.wrap(inner)
    assert model.banned == (PAD, first, second)
    results = bestfirst.decode(model, inputs, nbest=5)
    assert not {PAD, first, second} & {token for result in results for answer in result.hypotheses for token in answer.tokens}
    (scored,) = model.score([Query(model.start(inputs[0]), ())])
    assert [scored.logprobs[token] for token in model.banned] == [-inf] * 3


@pytest.mark.parametrize(
    ("kind", "field", "place"), [("gpt2", "n_layer", "transformer.h"), ("llama", "num_hidden_layers", "model.layers")]
)
@pytest.mark.parametrize("layers", [1, -1])
def test_weights_of_more_layers_than_the_config_has_are_named(tmp_path, kind, field, place, layers) -> None:
    """transformers leaves these layers out, so that another model would answer."""
    ARCHITECTURES[kind].build().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: layers}))
    with pytest.warns(UserWarning, match=rf"config.json makes {max(0, layers)} layers of {place}, and there is .*left out"):
        bestfirst.load(tmp_path)
