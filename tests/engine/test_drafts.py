"""Drafts: with any drafter, however bad, answers, scores and calls are those without drafts; only steps and rows differ."""

from __future__ import annotations

import random

import pytest

import bestfirst
from bestfirst.drafting import DRAFTERS, Drafter, EarlierOutputs
from bestfirst.engine.steps.step_rows import NativeTree
from bestfirst.models import Source
from toys import KINDS, random_toy

VOCABULARY = 6
SETTINGS = (
    {},
    {"finished": "keep"},
    {"nbest": 3},
    {"length_penalty": 1.0},
    {"length_penalty": 0.6, "nbest": 4},
    {"strategy": "beam"},
    {"strategy": "beam", "length_penalty": 1.0, "stop": "hf-false", "accept_truncated": True},
    {"length_penalty": 1.0, "stop": "hf-false", "accept_truncated": True},
    {"strategy": "greedy"},
    {"max_calls": 9},
    {"queue_capacity": 4},
    {"min_length": 3},
    {"accept_truncated": True},
)


def toy_model(kind: str, seed: int) -> bestfirst.FunctionModel:
    return bestfirst.FunctionModel(random_toy(kind, VOCABULARY, seed), eos=0)


class Oracle(Drafter):
    """Knows some outputs, and drafts all that continue the prefix."""

    def __init__(self, *outputs: tuple[int, ...]) -> None:
        self.outputs = outputs

    def guess(self, memory, prefix, n):
        return [[(token, 0) for token in y[len(prefix) :]] for y in self.outputs if y[: len(prefix)] == prefix]


class RandomDrafter(Drafter):
    """Drafts random trees of any size."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def guess(self, memory, prefix, n):
        rng = self.rng
        return [[(rng.randrange(VOCABULARY), rng.randrange(3)) for _ in range(rng.randrange(9))] for _ in range(rng.randrange(6))]


class Malicious(Drafter):
    """Drafts unknown tokens, EOS in the middle, far too much, and nonsense, and raises exceptions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def start(self, source):
        return self._maybe_raise("start", 0.05) or source

    def guess(self, memory, prefix, n):
        self._maybe_raise("guess", 0.1)
        return self.rng.choice(
            (
                [[(0, 0), (1, 0)]],
                [[(-1, 0)], [(10**9, 0)], [(1, 0)] * 1000],
                [[("a", 0)], [(1.0, 0)], [(True, 0)], [(None, 0)]],
                [[(1, "x"), (0, "x"), (2, "x")]] * 50,
                [[1, 2, 3]],
                [[(1, [])]],
                None,
                7,
                [[(1 + self.rng.randrange(5), 0) for _ in range(5)] for _ in range(500)],
            )
        )

    def outlook(self, source):
        self._maybe_raise("outlook", 0.3)
        return self.rng.choice((None, 1, [], "x"))

    def trust(self, kind):
        self._maybe_raise("trust", 0.02)
        return self.rng.choice((0.5, 0.0, 1e9, -1.0, float("nan"), "much"))

    def needed(self, memory, prefixes):
        self._maybe_raise("needed", 0.3)

    def finish(self, memory, outputs):
        self._maybe_raise("finish", 0.3)

    def _maybe_raise(self, where: str, probability: float) -> None:
        if self.rng.random() < probability:
            raise RuntimeError(where)


def outcome(result: bestfirst.Result) -> tuple:
    found = [(answer.tokens, answer.score, answer.logprob) for answer in result.hypotheses]
    return found, result.calls, result.status, result.exact, None if result.partial is None else result.partial.tokens


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_scores_and_calls_do_not_depend_on_the_drafter(settings):
    saved = 0
    for seed in range(8):
        model = toy_model(KINDS[seed % len(KINDS)], seed)
        options = {"beam": 1 + seed % 5, "max_length": 4 + seed % 5, **settings}
        (plain,) = bestfirst.decode(model, [None], row_budget=1 + seed % 7, **options)
        known = [answer.tokens for answer in plain.hypotheses]
        for draft in (Oracle(*known), RandomDrafter(seed), Malicious(seed), *DRAFTERS):
            results = bestfirst.decode(model, [None] * 3, row_budget=(1, 2, 8, 40)[seed % 4], draft=draft, **options)
            assert [outcome(result) for result in results] == [outcome(plain)] * 3
            assert all(result.rows >= result.calls and result.accepted <= result.drafted for result in results)
            saved += sum(result.steps < result.calls for result in results)
    assert saved


def test_an_oracle_needs_very_few_steps():
    for seed in range(12):
        model = toy_model("peaked", seed)
        (plain,) = bestfirst.decode(model, [None], beam=1, max_length=9, accept_truncated=True, row_budget=64)
        (drafted,) = bestfirst.decode(
            model, [None], beam=1, max_length=9, accept_truncated=True, row_budget=64, draft=Oracle(*_tokens(plain))
        )
        assert outcome(drafted) == outcome(plain)
        assert drafted.steps <= 3
        assert drafted.rows == plain.rows


def test_drafted_and_accepted_tokens_and_rows_are_counted():
    stats, model = bestfirst.Stats(), toy_model("flat", 3)
    results = bestfirst.decode(model, [None] * 4, beam=4, max_length=8, draft=RandomDrafter(0), row_budget=32, stats=stats)
    assert stats.drafted == sum(result.drafted for result in results) > 0
    assert stats.accepted == sum(result.accepted for result in results)
    assert stats.rows == sum(result.rows for result in results)


def test_a_full_batch_drafts_nothing():
    stats, model = bestfirst.Stats(), toy_model("flat", 3)
    results = bestfirst.decode(model, [None] * 200, beam=4, max_length=8, draft=RandomDrafter(0), row_budget=4, stats=stats)
    plain = bestfirst.decode(model, [None], beam=4, max_length=8)
    assert {str(outcome(result)) for result in results} == {str(outcome(plain[0]))}
    assert stats.drafted < stats.rows / 20  # for the last few inputs, whose steps have room


def test_a_model_that_fails_on_a_drafted_prefix_gives_its_usual_result():
    toy = random_toy("peaked", VOCABULARY, 5)

    def scores(prefix):
        if prefix[:2] == (3, 3):
            raise KeyError(prefix)
        return toy(prefix)

    model = bestfirst.FunctionModel(scores, eos=0)
    plain = bestfirst.decode(model, [None], beam=2, max_length=6, errors="raise")
    drafted = bestfirst.decode(model, [None], beam=2, max_length=6, errors="raise", row_budget=16, draft=Oracle((3, 3, 3, 0)))
    assert outcome(drafted[0]) == outcome(plain[0])


def test_the_cache_stays_within_its_bound():
    model = bestfirst.load()
    texts = ["Guten Morgen!", "Wie geht es dir?", "Ich habe Hunger."] * 3
    plain = bestfirst.decode(model, texts)
    stats = bestfirst.Stats()
    drafted = bestfirst.decode(model, texts, draft="outputs", max_cache_tokens=120, row_budget=16, stats=stats)
    assert [result.text for result in drafted] == [result.text for result in plain]
    assert stats.cache_tokens <= 120


def test_a_repeated_input_takes_at_most_half_the_steps():
    model, text = bestfirst.load(), "Ich habe dir doch gesagt, dass er heute nicht kommt."
    earlier = bestfirst.EarlierOutputs()
    first, again = (bestfirst.decode(model, [text], draft=earlier, row_budget=32)[0] for _ in range(2))
    assert (first.text, first.calls) == (again.text, again.calls)
    assert again.steps <= first.steps // 2
    assert again.accepted >= len(again.best.tokens) // 2


def test_parents_may_be_rows_of_the_same_step():
    chained, apart = NativeTree(8, 4), NativeTree(8, 4)
    table = [(5, 0, 1, 0, 0), (6, 1, 2, 1, 0), (7, 1, 3, 1, 0), (8, 2, 4, 2, 0), (9, 2, 5, 3, 0)]
    rows = chained.rows(table, [5])
    for entry in table:
        apart.rows([entry], [1])
    assert (
        rows.paths.tolist()
        == apart.paths[[1, 2, 3, 4, 5], :3].tolist()
        == [[1, 0, 0], [1, 2, 0], [1, 3, 0], [1, 2, 4], [1, 3, 5]]
    )


@pytest.mark.parametrize("draft", ["sources", "model:", 5, ["source"]])
def test_an_unknown_drafter_is_refused(draft):
    with pytest.raises(ValueError, match=r"draft must be a Drafter or one of 'source', 'outputs'"):
        bestfirst.Decoding(draft=draft)


def test_signature_and_identity_do_not_depend_on_the_drafter():
    plain, drafted = bestfirst.Decoding(), bestfirst.Decoding(draft=Oracle())
    assert plain.signature == drafted.signature
    assert plain.identity() == drafted.identity()
    with pytest.raises(ValueError, match=r"draft=.* cannot be written down; give it by name"):
        drafted.json()


def _tokens(result: bestfirst.Result) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in result.hypotheses]


def test_a_smaller_model_that_agrees_saves_half_the_steps():
    model = bestfirst.load()
    small = bestfirst.SmallerModel(bestfirst.load())
    for text in ("Ich habe dir doch gesagt, dass er heute nicht kommt.", "Wie melkt man eine Kuh?"):
        (plain,) = bestfirst.decode(model, [text], row_budget=64)
        (drafted,) = bestfirst.decode(model, [text], row_budget=64, draft=small)
        assert (drafted.text, drafted.calls) == (plain.text, plain.calls)
        assert drafted.steps <= plain.steps // 2
    assert small._runner.tree.used == 0  # its cache is released


def test_a_smaller_model_of_another_vocabulary_changes_no_result():
    model, other = bestfirst.load(), bestfirst.SmallerModel(bestfirst.load())
    other.model.vocabulary = 50  # it knows fewer tokens than the prefixes have
    plain, drafted = (bestfirst.decode(model, ["Wie melkt man eine Kuh?"], draft=draft)[0] for draft in (None, other))
    assert (drafted.text, drafted.calls) == (plain.text, plain.calls)


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 1.0, "stop": "hf-false", "accept_truncated": True}], ids=str)
def test_source_lookup_halves_the_steps_of_a_model_that_copies_its_source(settings):
    """As in text correction: nine of ten tokens are those of the source. Drafts come from look-up alone."""
    vocabulary, rng = 60, random.Random(4)
    wrong = {token: 1 + rng.randrange(vocabulary - 1) for token in rng.sample(range(1, vocabulary), 6)}

    def scores(source, prefix):
        place = len(prefix)
        right = wrong.get(source[place], source[place]) if place < len(source) else 0
        noise = random.Random(hash((source, prefix)))
        return [-0.2 if token == right else -4 - 3 * noise.random() for token in range(vocabulary)]

    model = bestfirst.FunctionModel(scores, eos=0)
    texts = [tuple(rng.randrange(1, vocabulary) for _ in range(30)) for _ in range(6)]
    options = {"beam": 5, "row_budget": 64, "max_length": 40, **settings}
    plain, drafted = (
        [bestfirst.decode(model, [text], draft=draft, **options)[0] for text in texts] for draft in (None, "source")
    )
    assert [outcome(result) for result in drafted] == [outcome(result) for result in plain]
    length = sum(len(result.best.tokens) for result in drafted)
    assert sum(result.steps for result in drafted) <= 0.5 * length


def test_forgotten_outputs_leave_the_index():
    dice, drafter = random.Random(0), EarlierOutputs(capacity=10)
    sizes = []
    for i in range(200):
        memory = drafter.start(Source((i,), 1, 30))
        list(drafter.guess(memory, (), 4))
        drafter.finish(memory, [tuple(dice.randrange(10_000) for _ in range(20))])
        sizes.append(len(drafter._places))
    assert max(sizes[100:]) < 1.1 * max(sizes[:50])
