"""The drop-in for `generate` on the device: `generate`'s preparations are deferred, and outputs are `generate`'s."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from transformers.generation import logits_process as hf

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Stats
from bestfirst.engine.device import admission, cuda_graphs, device_step
from bestfirst.engine.device.device_step import CapturedStep
from bestfirst.models.transformers import TransformersModel
from device.tiny import build, inputs
from engine.builders import ARCHITECTURES
from generate.differences import padded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    monkeypatch.setattr(TransformersModel, "on_gpu", True)


def call(model, batch, **asked):
    """Outputs of the drop-in, and its stats."""
    stats = Stats()
    return model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats), stats


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "m2m100", "pegasus"])
def test_generates_own_encoder_and_cache_are_not_used(name, monkeypatch):
    """The device encodes without padding; inputs that are packed already are not flattened again."""
    architecture = ARCHITECTURES[name]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(3, seed=2)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 3}
    theirs = model.generate(**batch, **asked)
    forward, encoded = type(model.get_encoder()).forward, []
    # Replaced before the first call: a class whose `forward` changes later is another model.
    noting = wraps(forward)(lambda self, *given, **named: encoded.append(self) or forward(self, *given, **named))
    monkeypatch.setattr(type(model.get_encoder()), "forward", noting)
    ours, stats = call(model, batch, **asked)  # the first call compares the encoders, and the first answer
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())
    encoded.clear()

    def never(*_, **__):
        raise AssertionError("not needed")

    monkeypatch.setattr("transformers.generation.utils.DynamicCache", never)
    monkeypatch.setattr(admission, "chain", None)
    assert call(model, batch, **asked)[0].tolist() == theirs.tolist()
    assert not encoded, "not needed"


def test_generates_own_loop_gets_its_encoder_and_cache():
    architecture = ARCHITECTURES["bart"]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(2, seed=3)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 4, "output_logits": True, "return_dict_in_generate": True}
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)
    assert stats.engine == "generate"
    assert torch.equal(ours.sequences, theirs.sequences)
    assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length() > 0


def test_weights_changed_through_data_are_noticed():
    architecture = ARCHITECTURES["marian"]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(2, seed=4)).items()}
    asked = {"num_beams": 2, "max_new_tokens": 3}
    before = call(model, batch, **asked)[0]
    for weight in model.get_decoder().parameters():
        weight.data.view(-1)[-1] += 1.0
    model.get_encoder().layers[0].fc1.weight.data[3] += 3.0
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())
    assert ours.tolist() != before.tolist()


def test_an_empty_input_fails_as_in_generate():
    """It fails in the model's own encoder, whether or not there is a session."""
    model = ARCHITECTURES["marian"].build().to(DEVICE)
    asked = {"num_beams": 2, "max_new_tokens": 3}
    nothing = {"input_ids": torch.zeros(2, 0, dtype=torch.long, device=DEVICE)}
    with pytest.raises(RuntimeError) as theirs:
        model.generate(**nothing, **asked)
    for _ in range(2):
        with pytest.raises(RuntimeError) as ours:
            call(model, nothing, **asked)
        assert str(ours.value) == str(theirs.value)
        call(model, {"input_ids": torch.tensor([[5, 7, 1]], device=DEVICE)}, **asked)


PROCESSED = {
    "n-grams": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 3, "min_length": 9},
    "a penalty": {"repetition_penalty": 1.6, "min_new_tokens": 2, "renormalize_logits": True},
    "tokens": {"bad_words_ids": [[5], [6, 7]], "suppress_tokens": [8, 9], "begin_suppress_tokens": [4], "forced_eos_token_id": 2},
    "biases": {"sequence_bias": [[[11], -2.0], [[12, 13], -1.0], [[13, 13], -3.0]], "eos_token_id": [1, 17, 20]},
    "an encoder's penalty": {"encoder_repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
}
STOPS = [{}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 0.0}, {"num_beams": 1}]


@pytest.mark.parametrize("asked", PROCESSED)
@pytest.mark.parametrize(("name", "stop"), [("Llama", 0), ("GPT2", 1), ("Llama", 2), ("Qwen2", 3)])
def test_processors_of_language_models_equal_generate(name, asked, stop, monkeypatch):
    """They see the prompt and its padding; prompts have mixed lengths, by beam search and greedily."""
    monkeypatch.setattr(CapturedStep, "buckets", (4, 8, 64))  # fewer rows for the interpreter
    model = build(name, seed=5).to(DEVICE)
    settings = {"num_beams": 2, "max_new_tokens": 4, **PROCESSED[asked], **STOPS[stop]}
    alone = {"encoder_repetition_penalty"} & settings.keys()  # transformers 5.17 ignores all inputs but the first
    batch = inputs(model, 1 if alone else 3, seed=4 + stop, shortest=2, longest=7)
    batch["input_ids"][0, -2:] = 12
    theirs = model.generate(**batch, **settings)
    ours, stats = call(model, batch, **settings)
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())


class Mine(hf.LogitsProcessor):
    """A user's processor that declares that it raises no score."""

    never_rises = True

    def __call__(self, input_ids, scores):
        return scores - 0.3 * (torch.arange(scores.shape[1], device=scores.device) % 5 == input_ids[:, -1:] % 5)


def allowed_tokens(i, ids):
    """Depends on the input and on the last token."""
    return [1, *(token for token in range(3, 48) if (token + i + int(ids[-1])) % 3)]


IN_PYTHON = {
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": allowed_tokens},
    "with others": {"prefix_allowed_tokens_fn": allowed_tokens, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "a user's own": {"logits_processor": [Mine(), hf.TopKLogitsWarper(7)]},
    "scores": {"output_scores": True, "num_return_sequences": 2},
    "scores, processed": {"output_scores": True, "repetition_penalty": 1.3},
}


@pytest.mark.parametrize("asked", IN_PYTHON)
@pytest.mark.parametrize(("name", "stop"), [("bart", 0), ("marian", 1), ("Llama", 2), ("mbart", 3), ("T5", 0), ("GPT2", 3)])
def test_python_functions_and_scores_between_two_parts_of_a_step(name, asked, stop, monkeypatch):
    """Functions, processors that are not data, and requested scores: `generate`'s outputs, and scores of each token."""
    monkeypatch.setattr(CapturedStep, "buckets", (4, 8, 64))
    settings = {"num_beams": 2, "max_new_tokens": 4, **IN_PYTHON[asked], **STOPS[stop], "return_dict_in_generate": True}
    settings["num_return_sequences"] = min(settings["num_beams"], settings.get("num_return_sequences", 1))
    if name in ARCHITECTURES:
        model = ARCHITECTURES[name].build().to(DEVICE)
        batch = {key: each.to(DEVICE) for key, each in padded(ARCHITECTURES[name], ARCHITECTURES[name].inputs(3, seed=6)).items()}
    else:
        model = build(name, seed=5).to(DEVICE)
        batch = inputs(model, 3, seed=7, shortest=2, longest=7)
    theirs = model.generate(**batch, **settings)
    ours, stats = call(model, batch, **settings)
    assert (stats.engine, ours.sequences.tolist()) == ("device", theirs.sequences.tolist())
    if "output_scores" not in settings:
        return
    if settings["num_beams"] > 1:
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-4, rtol=0)
    both = (ours, theirs)
    steps = [model.compute_transition_scores(x.sequences, x.scores, getattr(x, "beam_indices", None)) for x in both]
    shorter = min(step.shape[1] for step in steps)
    mine, its = (step[:, :shorter].nan_to_num(0, 0, 0) for step in steps)
    torch.testing.assert_close(mine, its, atol=1e-4, rtol=0)


def test_an_exception_in_a_users_function_is_raised():
    model = ARCHITECTURES["bart"].build().to(DEVICE)

    def broken(i, ids):
        raise KeyError("nothing of the kind")

    with pytest.raises(KeyError, match="nothing of the kind"):
        call(model, {"input_ids": torch.tensor([[5, 6, 1]], device=DEVICE)}, num_beams=2, prefix_allowed_tokens_fn=broken)


def test_a_processor_that_breaks_never_rises_runs_generates_own_loop():
    class Lifts(Mine):
        def __call__(self, input_ids, scores):
            return scores + 3

    model = ARCHITECTURES["bart"].build().to(DEVICE)
    batch = {"input_ids": torch.tensor([[5, 6, 1]], device=DEVICE)}
    asked = {"num_beams": 2, "max_new_tokens": 3, "logits_processor": [Lifts()]}
    ours, stats = call(model, batch, **asked)
    assert (stats.engine, ours.tolist()) == ("generate", model.generate(**batch, **asked).tolist())


def test_warm_up_runs_of_a_graph_do_not_change_its_logits(monkeypatch):
    """A graph's work runs three times before it is captured, and the top-k of a row overwrites the row."""
    run, best = cuda_graphs.Graphs.run, device_step.best

    def thrice(self, name, work):
        for _ in range(3 if name[0] == "asked" else 1):
            run(self, name, work)

    def taken(logits, width, banned):
        found = best(logits, width, banned)
        logits.scatter_(1, found[1], -torch.inf)
        return found

    monkeypatch.setattr(cuda_graphs.Graphs, "run", thrice)
    monkeypatch.setattr(device_step, "best", taken)
    architecture = ARCHITECTURES["bart"]
    model = architecture.build().to(DEVICE)
    batch = {key: tensor.to(DEVICE) for key, tensor in padded(architecture, architecture.inputs(2, seed=3)).items()}
    some = [*range(0, model.config.vocab_size, 2), model.config.eos_token_id]
    asked = {"num_beams": 2, "max_new_tokens": 3, "prefix_allowed_tokens_fn": lambda *_: some}
    theirs = model.generate(**batch, **asked)
    ours, stats = call(model, batch, **asked)
    assert (stats.engine, ours.tolist()) == ("device", theirs.tolist())
