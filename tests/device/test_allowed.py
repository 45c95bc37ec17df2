"""Tries and wide beams on the device: answers, scores, calls and items equal those of the host's search."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Trie
from bestfirst.engine import Job, engine_for
from bestfirst.engine.device import device_step, state
from bestfirst.engine.device.rules import unknown_to_device
from bestfirst.models.transformers import TransformersModel
from bestfirst.search import Answered, BestFirst, Successors, best_first_beam
from bestfirst.settings import Decoding
from device.test_search import EOS, SCORES, STOPS, Toys, assert_same_result, job, reference, run, session_of, with_rows_per_step
from engine.builders import ARCHITECTURES
from toys import random_toy

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="toys are asked by the host: nothing for a graph")


class Restricted(Toys):
    """The reference: all successors, filtered by the trie."""

    def __init__(self, toys, trie):
        super().__init__(toys)
        self.trie = trie

    def successors(self, index, prefix, width, temperature=1.0):
        node = 0
        for token in prefix:
            node = self.trie.child(node, token)
        allowed = set(self.trie.allowed([node], self.eos)[0].tolist())
        found = super().successors(index, prefix, 10**6, temperature)
        some = [each for each in zip(*found[:3], strict=True) if each[1] in allowed][:width]
        return Successors(*map(list, zip(*some, strict=True))) if some else Successors([], [])


def decode(toys, vocabulary, k, n, n_max, trie=None, rows=16, inputs=2, **settings):
    session = session_of(toys, vocabulary, k, n, n_max, inputs, 4000, trie=0 if trie is None else len(trie.tokens))
    session.begin([EOS], [], [vocabulary], trie)
    with_rows_per_step(session, rows)
    jobs = [job(index, n_max, beam=k, nbest=n, allowed=trie, **settings) for index in range(len(toys.toys))]
    return {each.index: result for each, result in run(session, jobs)}


def random_items(rng, vocabulary, n_max):
    every = [tokens for n in range(n_max) for tokens in product(range(1, vocabulary), repeat=n)]
    return rng.choices(every, k=rng.randint(1, 40))


def test_searches_under_a_trie_equal_search(cases, tally):
    """Answers, scores, calls and the numbers of the items, for every score and stop rule, whatever is scored ahead."""
    numbers = cases(4, full=400)
    for number in numbers:
        rng = random.Random(f"device trie {number}")
        vocabulary, n_max, k, truncated = rng.randint(3, 6), rng.randint(2, 5), rng.choice((1, 2, 3, 5)), rng.random() < 0.3
        n, items = rng.randint(1, k), random_items(rng, vocabulary, n_max)
        trie, rows = Trie(items), rng.choice((1, 3, 16))
        stop, score = rng.choice(list(STOPS)), rng.choice(list(SCORES))
        rules = {"strategy": STOPS[stop](k), "score": SCORES[score]}
        toys = Restricted([random_toy("peaked", vocabulary, f"trie {number} {seed}") for seed in range(2)], trie)
        found = decode(toys, vocabulary, k, n, n_max, trie, rows, accept_truncated=truncated, **rules)
        for index in range(2):
            assert_same_result(found[index], reference(toys, index, k, n, n_max, vocabulary, truncated, rules))
            for answer in found[index].hypotheses:
                ended = answer.tokens[-1] == EOS
                assert answer.item == (items.index(answer.tokens[:-1]) if ended else None)
    tally("searches under a trie on the device", 2 * len(numbers), 0)


@pytest.mark.parametrize(("k", "sorted_at_once", "few"), [(3, 8, 2), (3, 16, 64), (9, 4, 2), (9, 8, 4)])
def test_sorting_many_children_in_chunks_keeps_the_best(monkeypatch, k, sorted_at_once, few):
    """More children than are sorted at once, next to the best so far or merged into them; ties go to the smaller token."""
    monkeypatch.setattr(device_step, "SORTED", sorted_at_once)
    monkeypatch.setattr(device_step, "FEW", few)
    vocabulary = 40
    items = [*([w] for w in range(1, 40)), *([5, w] for w in range(1, 14)), *([7, w] for w in range(3, 6))]
    toys = Restricted(
        [lambda prefix: [-float(w * w % 7) - (w % 5) * sum(prefix) / 99 for w in range(vocabulary)]], Trie(items)
    )  # fmt: skip
    found = decode(toys, vocabulary, k, k, 3, toys.trie)
    assert_same_result(found[0], reference(toys, 0, k, k, 3, k + 1))


@pytest.mark.parametrize("stop", STOPS)
def test_many_answers_selected_at_once_equal_search(monkeypatch, cases, stop):
    """Every stop rule and score, as in `test_search`; two answers already count as many."""
    monkeypatch.setattr(state, "FEW", 1)
    for number in cases(1, full=40):
        rng = random.Random(f"many {stop} {number}")
        k = rng.choice((2, 4, 6))
        n, score, truncated = rng.randint(2, k), rng.choice(list(SCORES)), rng.random() < 0.5
        rules = {"strategy": STOPS[stop](k), "score": SCORES[score]}
        toys = Toys([random_toy("peaked", 5, f"many {stop} {number}")])
        found = decode(toys, 5, k, n, 5, accept_truncated=truncated, **rules)
        assert_same_result(found[0], reference(toys, 0, k, n, 5, 5, truncated, rules))


@pytest.mark.parametrize("stop", STOPS)
def test_merging_wide_beams_equals_merging_narrow_ones(monkeypatch, cases, stop):
    """Every stop rule and score; a beam of two already counts as wide: two or four children at a time, two cells at a time."""
    for number in cases(1, full=60):
        rng = random.Random(f"wide {stop} {number}")
        k, n_max, kind = rng.choice((3, 5, 8)), rng.randint(3, 4), rng.choice(("peaked", "flat", "dead-ends"))
        n, score, truncated, rows = rng.randint(1, k), rng.choice(list(SCORES)), rng.random() < 0.5, rng.choice((1, 5, 16))
        rules = {"strategy": STOPS[stop](k), "score": SCORES[score]}
        toys = [Toys([random_toy(kind, 5, f"wide {stop} {number}")]) for kind in ("ties", kind)]
        narrow = decode(toys[0], 5, k, n, n_max, rows=rows, accept_truncated=truncated, **rules)
        with monkeypatch.context() as patch:
            for name, size in {"WIDE": 1, "TILE": 2, "FEW": 1, "CROWD": rng.choice((2, 4))}.items():
                patch.setattr(state, name, size)
            tied, found = (decode(each, 5, k, n, n_max, rows=rows, accept_truncated=truncated, **rules) for each in toys)
        assert_same_result(found[0], reference(toys[1], 0, k, n, n_max, 5, truncated, rules))
        assert_same_result(tied[0], narrow[0])


def test_a_wide_beam_returns_many_answers():
    items = list(product(range(1, 5), repeat=2))
    trie = Trie(items)
    toys = Restricted([random_toy("flat", 5, "wide")], trie)
    found = decode(toys, 5, 5000, 500, 4, trie, 24, 1)
    assert_same_result(found[0], reference(toys, 0, 5000, 500, 4, 5))
    assert len(found[0].hypotheses) == 16
    assert all(items[answer.item] == answer.tokens[:-1] for answer in found[0].hypotheses)


class OwnTrie(Trie):
    """Allows something else, perhaps."""


class OwnOrder(BestFirst):
    """Orders by something else, perhaps."""


class OwnStop(Answered):
    """Stops elsewhere, perhaps."""


def test_settings_that_the_kernels_support():
    trie = Trie([[1, 2]])
    assert unknown_to_device(Decoding(beam=5000, nbest=5000, allowed=trie), 3) is None
    assert unknown_to_device(Decoding(beam=5001, allowed=trie), 3) == "a beam above 5000"
    assert unknown_to_device(Decoding(allowed=trie), 2) == "tokens that the model does not have"
    assert unknown_to_device(Decoding(allowed="regex:a")) == "allowed, unless it is a trie"
    assert unknown_to_device(Decoding(allowed=OwnTrie([[1]]))) == "allowed, unless it is a trie"
    for own in ({"order": OwnOrder()}, {"stop": OwnStop()}):
        assert unknown_to_device(Decoding(strategy=best_first_beam(5).using(**own))).startswith("strategy 'best-first'")
    assert [unknown_to_device(Decoding(stop=stop)) for stop in ("hf-true", "patience")] == [None, None]
    for known in ({"length_penalty": 1.0}, {"length_penalty": 1.0, "strategy": "beam"}, {"nbest": 1}):
        assert unknown_to_device(Decoding(stop="ctranslate2", **known)) is None
    assert unknown_to_device(Decoding(stop="ctranslate2", nbest=2))  # which looks at the first of each beam
    assert unknown_to_device(Decoding(strategy="best-first-unpruned"))


def test_a_session_runs_different_tries_one_after_the_other():
    toys = Toys([random_toy("peaked", 6, "turns")])
    session = session_of(toys, 6, 3, 3, 4, 1, 500, trie=64)
    session.weights.numbers = [0]
    for items in ([(1, 2), (3,)], [(4,), (4, 4)], [(5, 1, 2)]):
        trie = Trie(items)
        session.begin([EOS], [], [6], trie)
        ((_, result),) = run(session, [job(0, 4, beam=3, nbest=3, allowed=trie)])
        assert sorted(answer.tokens[:-1] for answer in result.hypotheses) == sorted(items)


@pytest.mark.parametrize("name", ["marian", "llama"])
def test_jobs_of_one_engine_may_have_different_tries(monkeypatch, name):
    """By kernels and by a model's own modules: the host's answers and items, for inputs with and without a trie."""
    architecture = ARCHITECTURES[name]
    model = bestfirst.wrap(architecture.build())
    rng = random.Random(name)
    tokens = [token for token in range(4, model.vocabulary) if token not in model.eos][:20]
    tries = [Trie([rng.choices(tokens, k=rng.randint(1, 2)) for _ in range(30)]) for _ in range(2)]
    asked = [{"allowed": trie, "beam": 2, "nbest": 2} for trie in (tries[0], tries[0], None, tries[1])]
    inputs = architecture.inputs(len(asked))
    monkeypatch.setattr(TransformersModel, "on_gpu", False)
    expected = [bestfirst.decode(model, [x], max_length=3, **s)[0] for x, s in zip(inputs, asked, strict=True)]
    monkeypatch.setattr(TransformersModel, "on_gpu", True)
    engine = engine_for(model, Decoding(beam=3))
    engine.submit(*[Job(i, model.read(x), Decoding(max_length=3, **asked[i])) for i, x in enumerate(inputs)])
    found = {}
    while engine:
        found.update({job.index: result for job, result in engine.step()})
    for index, other in enumerate(expected):
        mine = found[index]
        assert [(a.tokens, a.item) for a in mine.hypotheses] == [(a.tokens, a.item) for a in other.hypotheses]
        assert (mine.calls, mine.status, mine.exact) == (other.calls, other.status, other.exact)
    assert engine.stats.engine == "device"
