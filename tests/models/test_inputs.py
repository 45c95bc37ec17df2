"""Inputs of a Hugging Face model: languages, prefixes and prompts, speech; and invalid inputs and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

import bestfirst
from bestfirst.models.folder import embedded_folder
from engine.builders import ARCHITECTURES, EOS, LANGUAGE, PAD, START


@pytest.fixture(scope="module")
def embedded() -> Any:
    return bestfirst.load()


# -- languages ---------------------------------------------------------------------------------------------------------


def m2m100_tokenizer(folder: Path) -> Any:
    """An M2M100 tokenizer with the embedded model's pieces; M2M100 puts its special tokens first."""
    embedded = Path(embedded_folder())
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [piece for piece in json.loads((embedded / "vocab.json").read_text()) if piece not in special]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(special + pieces)}))
    return transformers.M2M100Tokenizer(vocab_file=str(folder / "vocab.json"), spm_file=str(embedded / "source.spm"))


def multilingual(folder: Path, name: str, tokenizer: Any) -> Path:
    """A folder with a small model of this architecture and a tokenizer that knows languages."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = max(len(tokenizer), *(tokenizer.convert_tokens_to_ids(f"__{lang}__") or 0 for lang in ("de", "en", "zu"))) + 1
    model = ARCHITECTURES[name].build(vocab_size=size, decoder_start_token_id=tokenizer.eos_token_id, **ids)
    model.generation_config.forced_bos_token_id = None
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "make", "source", "target", "token"),
    [
        ("m2m100", m2m100_tokenizer, "de", "en", "__en__"),
        ("m2m100", lambda _: transformers.NllbTokenizer(), "deu_Latn", "eng_Latn", "eng_Latn"),
        ("mbart", lambda _: transformers.MBart50Tokenizer(), "de_DE", "en_XX", "en_XX"),
    ],
    ids=["M2M100", "NLLB", "mBART-50"],
)
def test_language_codes_set_the_start_tokens(tmp_path: Path, name: str, make: Any, source: str, target: str, token: str) -> None:
    folder = multilingual(tmp_path / "model", name, make(tmp_path))
    model = bestfirst.load(folder, source_lang=source, target_lang=target)
    code = model.tokenizer.convert_tokens_to_ids(token)
    assert model.start_tokens == (model.tokenizer.eos_token_id, code)
    first = model.read("Guten Morgen").payload.source[0]
    assert first == model.tokenizer.convert_tokens_to_ids(f"__{source}__" if token.startswith("__") else source)

    ids = model.tokenizer("Guten Morgen", return_tensors="pt").input_ids
    (result,) = bestfirst.decode(model, ["Guten Morgen"], beam=3, max_length=6, accept_truncated=True)
    theirs = model.model.generate(
        ids, forced_bos_token_id=code, num_beams=3, length_penalty=0.0, early_stopping="never", max_new_tokens=7
    )
    assert [model.tokenizer.eos_token_id, code, *result.hypotheses[0].tokens] == theirs[0].tolist()
    with pytest.raises(ValueError, match="unknown target language 'xyz' for model 'model'"):
        bestfirst.load(folder, target_lang="xyz")
    with pytest.raises(ValueError, match="unknown source language 'xyz'"):
        bestfirst.load(folder, source_lang="xyz")


def test_a_word_is_not_a_language_code(embedded: Any) -> None:
    assert embedded.tokenizer.convert_tokens_to_ids("en") != embedded.tokenizer.unk_token_id  # "en" is a piece of a word
    with pytest.raises(ValueError, match="unknown target language 'en'"):
        bestfirst.wrap(embedded.model, embedded.tokenizer, target_lang="en")


def test_a_forced_first_token_of_the_generation_config_is_obeyed() -> None:
    model = bestfirst.wrap(ARCHITECTURES["mbart"].build())
    assert model.start_tokens == (START, LANGUAGE)


# -- prefixes and prompts ----------------------------------------------------------------------------------------------


def test_a_forced_prefix_is_shown_and_not_scored(embedded: Any) -> None:
    source = "Ich habe keine Zeit."
    (free,) = bestfirst.decode(embedded, [source])
    (forced,) = bestfirst.decode(embedded, [source], prefix="There")
    assert free.text is not None
    assert not free.text.startswith("There")
    assert forced.text is not None
    assert forced.text.startswith("There")
    best = forced.hypotheses[0]
    prompt = embedded.read(source, "There").payload
    assert prompt.shown == 1
    with torch.inference_mode():
        logits = embedded.logits(prompt, torch.tensor([[*prompt.tokens, *best.tokens]]))[0].log_softmax(-1)
    again = sum(float(logits[len(prompt.tokens) - 1 + i, token]) for i, token in enumerate(best.tokens))
    assert best.logprob == pytest.approx(again, abs=1e-4)


def test_a_prefix_may_be_token_ids() -> None:
    model = bestfirst.wrap(ARCHITECTURES["bart"].build())
    assert model.read([5, 6, EOS], [7, 8]).payload.tokens == (START, 7, 8)
    with pytest.raises(ValueError, match="the prefix must be a text or token ids, got int"):
        model.read([5, 6, EOS], 7)  # type: ignore[arg-type]


def test_decoder_only_prompts_give_the_tokens_of_generate() -> None:
    architecture = ARCHITECTURES["llama"]
    model = bestfirst.wrap(architecture.build())
    source = model.read([5, 6, 7])
    assert source.payload.tokens == (5, 6, 7)
    assert source.payload.source is None
    assert source.limit == 64 - 3
    assert model.read([]).payload.tokens == (START,), "nothing is said: the beginning of a text"
    inputs = [[5], [6, 7, 8, 9], []]
    for prompt, result in zip(inputs, bestfirst.decode(model, inputs, beam=3, max_length=8, accept_truncated=True), strict=True):
        ids = torch.tensor([prompt or [START]])
        mask = torch.ones_like(ids)
        theirs = model.model.generate(
            ids, attention_mask=mask, num_beams=3, length_penalty=0.0, early_stopping="never", max_new_tokens=8
        )
        assert list(result.hypotheses[0].tokens) == theirs[0, ids.shape[1] :].tolist()


def test_an_empty_prompt_needs_a_bos_token() -> None:
    inner = ARCHITECTURES["llama"].build()
    inner.config.bos_token_id = inner.generation_config.bos_token_id = None
    (result,) = bestfirst.decode(bestfirst.wrap(inner), [[]])
    assert result.message == "an empty prompt needs a bos_token_id, and model 'LlamaForCausalLM' has none"


@pytest.mark.parametrize(
    ("name", "source", "prefix", "said"),
    [
        ("bart", [], None, "the input has no tokens; give at least one, such as the model's EOS"),
        ("bart", [5] * 41, None, "the input has 41 tokens, more than the model's 40 positions; split it"),
        ("bart", [5], [6] * 39, "the prompt of 40 tokens leaves no position to generate in; shorten it"),
        ("llama", [5] * 64, None, "the prompt of 64 tokens leaves no position to generate in; shorten it"),
        ("llama", 5, None, "the input must be a text or token ids, got int"),
        ("llama", ["a"], None, "the input must be a text or token ids, got list"),
    ],
)
def test_an_invalid_input_gives_an_error_and_the_others_are_decoded(name: str, source: Any, prefix: Any, said: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES[name].build())
    with pytest.raises(ValueError, match=said):
        model.read(source, prefix)
    if prefix is None:
        bad, good = bestfirst.decode(model, [source, [5, 6]], max_length=4, accept_truncated=True)
        assert (bad.status, bad.message) == ("error", said)
        assert (good.status, len(good.hypotheses)) == ("complete", 1)


def test_outputs_end_at_the_models_last_position() -> None:
    inner = ARCHITECTURES["gpt2"].build(n_positions=12)
    inner.generation_config.bad_words_ids = [[PAD], [EOS]]
    model = bestfirst.wrap(inner)
    (result,) = bestfirst.decode(model, [[5, 6, 7]], max_length=50, accept_truncated=True)
    assert len(result.hypotheses[0].tokens) == 12 - 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 2 * 3 + 10), ({"max_new_tokens": 7}, 7), ({"max_length": 30}, 29), ({"max_length": 20}, 2 * 3 + 10)],
    ids=["2|x| + 10", "max_new_tokens", "max_length counts the start", "20 is nobody's choice"],
)
def test_default_max_length(settings: dict[str, int], expected: int) -> None:
    inner = ARCHITECTURES["bart"].build()
    for name, value in settings.items():
        setattr(inner.generation_config, name, value)
    assert bestfirst.wrap(inner).read([5, 6, 7, EOS]).max_length == expected


# -- speech ------------------------------------------------------------------------------------------------------------


def test_whisper_takes_audio_features() -> None:
    architecture = ARCHITECTURES["whisper"]
    model = bestfirst.wrap(architecture.build())
    (features,) = architecture.inputs(1)
    given = [features, features.numpy(), features.double()]
    results = bestfirst.decode(model, given, max_length=8, accept_truncated=True)
    assert len({result.hypotheses[0].tokens for result in results}) == 1
    source = model.read(features)
    assert source.length == 10, "what the encoder gives"
    assert source.limit == 40 - 1, "what the decoder has positions for"


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        ([5, 6, 7], "list"),
        ("Guten Morgen", "str"),
        (numpy.zeros((8, 19)), r"an array of shape \(8, 19\)"),
        (torch.zeros(1, 8, 20), r"an array of shape \(1, 8, 20\)"),
    ],
)
def test_whisper_refuses_other_inputs(raw: Any, got: str) -> None:
    model = bestfirst.wrap(ARCHITECTURES["whisper"].build())
    with pytest.raises(ValueError, match=rf"takes audio features of shape \(8, 20\) \(mel bins, frames\), got {got}"):
        model.read(raw)


@pytest.mark.parametrize("tokens", [[99_999_999], [-6100, 3], [2**40]])
def test_suppressed_tokens_outside_the_vocabulary_are_ignored(tokens):
    """They used to reach a compiled kernel, which wrote outside its buffer."""
    model = ARCHITECTURES["marian"].build()
    expected = bestfirst.decode(bestfirst.wrap(model), [[5, 6, 7]], beam=3)[0].hypotheses
    model.generation_config.suppress_tokens = tokens
    found = bestfirst.decode(bestfirst.wrap(model), [[5, 6, 7]], beam=3)[0].hypotheses
    assert (found == expected) is (3 not in tokens or all(3 not in answer.tokens for answer in expected))


@pytest.mark.parametrize("token", [-1, 10**6])
def test_input_and_start_tokens_outside_the_vocabulary_are_refused(token):
    model = ARCHITECTURES["marian"].build()
    (result,) = bestfirst.decode(bestfirst.wrap(model), [[5, token, 7]])
    assert result.status == "error"
    assert f"include {token}; model" in result.message
    model.generation_config.decoder_start_token_id = token
    with pytest.raises(ValueError, match="the tokens that outputs start from include"):
        bestfirst.wrap(model)
