"""The drop-in returns what Hugging Face's beam search returns: every architecture, setting and processor."""

from __future__ import annotations

import copy
from functools import cache, partial
from pathlib import Path

import pytest

from bestfirst import Stats
from engine.builders import ARCHITECTURES
from generate.differences import both, compare, padded
from generate.settings import FACTORS, PROCESSORS, RISING, arguments, at_random, pairwise
from scale import FULL


@cache
def sample():
    """Every pair of values at least once; at full scale a thousand random combinations more."""
    return [*pairwise(seed=5), *(at_random(seed=6, n=1000) if FULL else ())]


def test_the_sample_has_every_value_of_every_factor():
    assert len(sample()) >= len(FACTORS["architecture"]) * len(PROCESSORS)
    for a, values in FACTORS.items():
        assert {setting[a] for setting in sample()} == set(values)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_drop_in_equals_generate(name, small, tally):
    """Sequences, scores and transition scores, n-best, except near-ties: within 1e-4, or decided by the last bits of a float."""
    architecture, model = ARCHITECTURES[name], small(name)
    differences, hypotheses, ties = [], 0, 0
    for number, setting in enumerate(sample()):
        if setting["architecture"] != name:
            continue
        stats = Stats()
        make, n = partial(arguments, setting), arguments(setting)["num_return_sequences"]
        batch = padded(architecture, architecture.inputs(setting["batch"], seed=number))
        found = compare(model, *both(model, batch, make, stats=stats), n)
        hypotheses, ties = hypotheses + found.hypotheses, ties + found.near_ties
        if found.differences and equal_in_double_precision(model, batch, make, n):
            ties += 1
        else:
            differences += [f"{setting}: {difference}" for difference in found.differences]
        assert stats.search == expected_search(setting), setting
        assert stats.calls <= stats.rows
    tally("generate = Hugging Face, hypotheses", hypotheses, len(differences))
    tally("generate = Hugging Face, near-ties", ties, 0)
    assert differences == []


def equal_in_double_precision(model, batch, make, n):
    """Whether the two agree in double precision: then a near-tie at a beam's edge made them differ."""
    double = copy.deepcopy(model).double()
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
    return compare(double, *both(double, exact, make), n).differences == []


def expected_search(setting):
    if setting["num_beams"] == 1:
        return "greedy"
    if setting["early_stopping"] is True or setting["processor"] in RISING:
        return "level by level"
    return "level by level" if setting["processor"] in ("custom processor", "stopping_criteria") else "best-first"


def test_the_drop_in_equals_generate_on_the_embedded_model(embedded, tally):
    """Real text, a real vocabulary: top and 4-best, the defaults and the exact setting."""
    lines = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()
    lines = lines if FULL else lines[:40]
    batch = dict(embedded.tokenizer(lines, return_tensors="pt", padding=True))
    output = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 60}
    asked = [
        {"num_beams": 5},
        {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": 0.0},
        {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True, "no_repeat_ngram_size": 2, "min_length": 4},
    ]
    for settings in asked:
        theirs, ours = both(embedded.model, batch, lambda settings=settings: {**settings, **output})
        found = compare(embedded.model, theirs, ours, settings.get("num_return_sequences", 1))
        tally("generate = Hugging Face, hypotheses", found.hypotheses, len(found.differences))
        assert found.differences == []
