"""Which of the two runs a small model: what was measured once decides, and the output is the same either way."""

from __future__ import annotations

import pytest
import torch

import bestfirst
from bestfirst.engine.known import known
from bestfirst.engine.steps.t5 import FusedT5
from bestfirst.integrations import crossover
from engine.builders import ARCHITECTURES
from generate.differences import padded


@pytest.mark.parametrize("name", ["t5", "gpt2", "mt5"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("times", "engine"), [(0.8, "generate"), (1.2, "host")])
def test_what_was_measured_decides(name, k, times, engine, monkeypatch):
    """Both are run by the measure, and the call's own cache is left empty for it."""
    architecture = ARCHITECTURES[name]
    model, ran = architecture.build(), []

    def measure(theirs, ours):
        for _ in range(2):
            theirs()
            ours()
        ran.append(True)
        return times

    monkeypatch.setattr(crossover, "measure", measure)
    monkeypatch.setattr(crossover, "LARGE", float("inf"))
    monkeypatch.setattr(FusedT5, "takes", staticmethod(lambda model: False))  # what has a step of its own is not measured
    batch = padded(architecture, architecture.inputs(3, seed=1))
    asked = {"num_beams": k, "num_return_sequences": k, "max_new_tokens": 9, "return_dict_in_generate": True}
    asked["output_scores"] = True
    for _ in range(2):
        stats = bestfirst.Stats()
        ours = model.generate(**batch, **asked, custom_generate=bestfirst.generate, stats=stats)
        assert torch.equal(ours.sequences, model.generate(**batch, **asked).sequences)
        assert stats.engine == engine
        assert ("takes 0.80 of the time" in stats.search) == (engine == "generate")
    assert ran == [True]


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
        assert all(ratio == float("inf") for ratio in known(bestfirst.wrap(model)).ratios.values())


def test_the_clock(monkeypatch):
    now = iter([0, 4, 10, 11, 20, 23, 30, 32, 40, 45, 50, 53])
    monkeypatch.setattr(crossover, "perf_counter", lambda: next(now))
    assert crossover.sooner_by(lambda: None, lambda: None) == 3.0
