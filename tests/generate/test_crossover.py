"""Engine or `generate`'s own loop for a small model: one measurement decides; the output is the same either way."""

from __future__ import annotations

from math import inf

import pytest
import torch

import bestfirst
from bestfirst.engine.model_record import record_of
from bestfirst.engine.steps import step_choice
from bestfirst.engine.steps.t5 import FusedT5
from bestfirst.integrations import call, crossover
from engine.builders import ARCHITECTURES
from generate.differences import padded
from generate.tiny import tiny


@pytest.mark.parametrize("name", ["t5", "gpt2", "mt5"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("times", "engine"), [(0.8, "generate"), (1.05, "generate"), (1.2, "host")])
def test_the_measured_ratio_decides_what_runs(name, k, times, engine, monkeypatch):
    """The measurement runs both, and leaves the cache of the call itself empty."""
    architecture = ARCHITECTURES[name]
    model, ran = architecture.build(), []

    def measure(theirs, ours, longest, _):
        assert longest == 9
        for tokens in (1, 8):
            theirs(tokens)
            ours(tokens)
        ran.append(True)
        return times

    monkeypatch.setattr(crossover, "measure", measure)
    monkeypatch.setattr(crossover, "LARGE", float("inf"))
    monkeypatch.setattr(FusedT5, "takes", staticmethod(lambda model: False))  # models with a compiled step are not measured
    batch = padded(architecture, architecture.inputs(3, seed=1))
    asked = {"num_beams": k, "num_return_sequences": k, "max_new_tokens": 9, "return_dict_in_generate": True}
    asked["output_scores"] = True
    for _ in range(2):
        stats = bestfirst.Stats()
        ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
        assert torch.equal(ours.sequences, model.generate(**batch, **asked).sequences)
        assert stats.engine == engine
        assert (f"takes {times:.2f} of the time" in stats.search) == (engine == "generate")
    assert ran == [True]


def test_steps_are_checked_by_one_thread_at_a_time(monkeypatch):
    """The check narrows a model's windows: two at a time left them narrow."""
    model, held = tiny("Gemma2ForCausalLM"), []

    def step_for(wrapped):
        held.append(record_of(wrapped).lock._is_owned())
        return step_choice.step_for(wrapped)

    monkeypatch.setattr(crossover, "step_for", step_for)
    model.generate(torch.tensor([[5, 6, 7]]), num_beams=2, max_new_tokens=4, custom_generate=bestfirst.generate)
    assert held == [True]


def test_compiled_and_large_models_are_not_measured(monkeypatch):
    monkeypatch.setattr(crossover, "measure", lambda *_: 0.0)
    for name, large in (("marian", float("inf")), ("llama", float("inf")), ("gpt2", 0.0)):
        monkeypatch.setattr(crossover, "LARGE", large)
        architecture, stats = ARCHITECTURES[name], bestfirst.Stats()
        model = architecture.build()
        model.generate(
            **padded(architecture, architecture.inputs(2, seed=1)),
            num_beams=2,
            max_new_tokens=5,
            custom_generate=bestfirst.generate,
            stats=stats,
        )
        assert stats.engine == "host"
        assert all(ratio == float("inf") for ratio in record_of(bestfirst.wrap(model)).ratios.values())


SETTINGS = {
    "a processor": {"no_repeat_ngram_size": 2},
    "another": {"repetition_penalty": 1.3, "bad_words_ids": [[5, 6]]},
    "one that may lift": {"sequence_bias": {(5,): 1.0}},
    "one of the user's": {"logits_processor": [1]},
    "a function of the user's": {"prefix_allowed_tokens_fn": 1},
    "a criterion of the user's": {"stopping_criteria": [1]},
    "scores": {"output_scores": True, "return_dict_in_generate": True},
}


@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.parametrize(("times", "engine"), [(0.8, "generate"), (1.2, "host")])
def test_the_measurement_has_the_same_settings_and_calls_no_user_code(what, times, engine, monkeypatch):
    user_calls, measured = [], []

    def measure(theirs, ours, longest, _):
        before = len(user_calls)
        theirs(3)
        ours(3)
        assert len(user_calls) == before
        measured.append(what)
        return times

    def counted_call(found):
        user_calls.append(1)
        return found

    user_code = {
        "logits_processor": [lambda ids, scores: counted_call(scores)],
        "prefix_allowed_tokens_fn": lambda i, ids: counted_call(list(range(1, 40))),
        "stopping_criteria": [lambda ids, scores, **_: counted_call(torch.zeros(len(ids), dtype=torch.bool))],
    }
    monkeypatch.setattr(crossover, "measure", measure)
    monkeypatch.setattr(crossover, "LARGE", float("inf"))
    architecture = ARCHITECTURES["gpt2"]
    model, batch = architecture.build(), padded(architecture, architecture.inputs(2, seed=1))
    asked = {"num_beams": 3, "max_new_tokens": 6} | {name: user_code.get(name, value) for name, value in SETTINGS[what].items()}
    for _ in range(2):
        stats = bestfirst.Stats()
        ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
        plain = model.generate(**batch, **asked)
        assert torch.equal(getattr(ours, "sequences", ours), getattr(plain, "sequences", plain))
        assert stats.engine == engine
    assert measured == [what]


@pytest.mark.parametrize(
    ("seconds", "longest", "expected"),
    [
        # of the first token, then of eight tokens, by generate and here; the second of three turns is the best
        ((4.0, 1.0, 11.0, 8.0), 8, 11 / 8),  # gain from a long prompt alone, which is the whole of it for eight tokens
        ((4.0, 1.0, 11.0, 8.0), 701, 704 / 701),  # but not for 701
        ((4.0, 4.0, 11.0, 7.5), 8, 11 / 7.5),  # gain from later tokens
        ((4.0, 4.0, 11.0, 7.5), 701, 11 / 7.5),  # outputs may end early
        ((4.0, 1.0, 4.0, 1.0), 1, 4.0),
    ],
)
@pytest.mark.parametrize("most_seconds", [inf, 0.5])
def test_speed_ratio_is_the_smaller_of_the_first_tokens_and_the_longest_output(
    seconds, longest, expected, most_seconds, monkeypatch
):
    clock, many = [0.0], min(8, longest)
    took = dict(zip([("theirs", 1), ("ours", 1), ("theirs", many), ("ours", many)], seconds, strict=True))
    turns = []

    def generate(engine):
        def run(tokens):
            turns.append((engine, tokens))
            clock[0] += took[engine, tokens] * (1 if turns.count((engine, tokens)) == 2 else 1.7)

        return run

    monkeypatch.setattr(crossover, "thread_time", lambda: clock[0])
    monkeypatch.setattr(crossover, "SECONDS", most_seconds)
    assert crossover.speed_ratio(generate("theirs"), generate("ours"), longest, 8) == pytest.approx(expected)
    unclear = crossover.UNCLEAR[0] < expected < crossover.UNCLEAR[1] and most_seconds == inf
    assert turns.count(("ours", many)) == (crossover.MOST_TURNS if unclear else crossover.TURNS)


@pytest.mark.parametrize("k", [1, 3])
def test_a_repetition_penalty_for_more_inputs_than_are_measured(k, monkeypatch):
    architecture, ran = ARCHITECTURES["gpt2"], []

    def measure(theirs, ours, *_):
        theirs(2)
        ours(2)
        ran.append(True)
        return 0.5

    monkeypatch.setattr(crossover, "measure", measure)
    monkeypatch.setattr(crossover, "LARGE", float("inf"))
    model, batch = architecture.build(), padded(architecture, architecture.inputs(crossover.INPUTS + 2, seed=1))
    asked = {"num_beams": k, "max_new_tokens": 5, "repetition_penalty": 1.4}
    stats = bestfirst.Stats()
    ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(ours, model.generate(**batch, **asked))
    assert (stats.engine, ran) == ("generate", [True])


def test_that_no_step_shares_keys_is_found_once_for_each_structure_of_a_model(monkeypatch):
    model, made, engine_for = tiny("BloomForCausalLM"), [], call.engine_for
    monkeypatch.setattr(call, "engine_for", lambda *given, **more: made.append(given) or engine_for(*given, **more))
    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "num_beams": 3, "max_new_tokens": 4}

    def run():
        stats = bestfirst.Stats()
        ours = model.generate(**asked, custom_generate=bestfirst.generate, stats=stats)
        assert torch.equal(ours, model.generate(**asked))
        assert (stats.engine, "cannot share keys and values" in stats.search) == ("generate", True)

    run()
    run()
    assert len(made) == 1
    model.transformer.h[0].mlp.dropout = torch.nn.Identity()
    run()
    assert len(made) == 2
