"""Bring your own model: the README's promises for any sequential predictor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from math import exp, inf, log, tanh

import pytest

import bestfirst
from bestfirst import BrokenLaw, FunctionModel, Model, Query, Scored
from bestfirst.search import Answered
from bestfirst.testing import check_model
from reference import beam_keep, beam_leave, exhaustive
from toys import RULES, random_toy


def log_softmax(logits: Sequence[float]) -> list[float]:
    total = log(sum(exp(logit) for logit in logits))
    return [logit - total for logit in logits]


# -- a function ------------------------------------------------------------------------------------------------------------


def test_a_function_is_a_model():
    toy = FunctionModel(lambda prefix: [log(0.5), log(0.3), log(0.2)] if prefix else [log(0.1), log(0.6), log(0.3)], eos=0)
    (result,) = bestfirst.decode(toy, [None], beam=3, nbest=2)
    assert [answer.tokens for answer in result.hypotheses] == [(1, 0), (2, 0)]
    assert [answer.score for answer in result.hypotheses] == pytest.approx([log(0.3), log(0.15)])
    assert [answer.logprob for answer in result.hypotheses] == pytest.approx([log(0.3), log(0.15)])
    assert (result.status, result.exact, result.text) == ("complete", True, None)


def test_the_function_is_given_the_prefix_without_bos():
    asked = []

    def next_logprobs(prefix: tuple[int, ...]) -> list[float]:
        asked.append(prefix)
        return log_softmax([0.1, 1.0, 0.2])

    bestfirst.decode(FunctionModel(next_logprobs, eos=0), [None], beam=2, max_length=4)
    assert asked[0] == ()
    assert all(isinstance(prefix, tuple) and 0 not in prefix and len(prefix) < 4 for prefix in asked)
    assert len(set(asked)) == len(asked)


def test_several_tokens_may_end_a_hypothesis():
    toy = FunctionModel(lambda prefix: log_softmax([0.0, 0.5, 0.3]), eos=[0, 2])
    (result,) = bestfirst.decode(toy, [None], beam=3, nbest=3)
    assert [answer.tokens for answer in result.hypotheses] == [(2,), (0,), (1, 2)]


@pytest.mark.parametrize("finished", RULES)
@pytest.mark.parametrize("row_budget", [1, 3, 64])
def test_decode_gives_every_input_its_own_result_in_order(finished, row_budget):
    """The model depends on the input; neither the row budget nor the other inputs in a batch change a result."""

    class Seeded(FunctionModel):
        def start(self, source: int) -> int:
            return source

        def score(self, batch: Sequence[Query]) -> list[Scored]:
            return [Scored(random_toy("peaked", 5, query.state)(query.prefix), query.state) for query in batch]

    results = bestfirst.decode(
        Seeded(lambda prefix: [], eos=0), range(20), beam=3, nbest=3, max_length=6, finished=finished, row_budget=row_budget
    )
    for seed, result in enumerate(results):
        toy = random_toy("peaked", 5, seed)
        reference = beam_keep(toy, 3, 6) if finished == "keep" else beam_leave(toy, 3, 6, n=3)
        assert [(answer.tokens, answer.score) for answer in result.hypotheses] == [
            (y.tokens, y.value) for y in reference.answers[:3]
        ]
        assert result.calls <= reference.calls


# -- a model with a state --------------------------------------------------------------------------------------------------


class Recurrent(Model):
    """A recurrent network of two hidden units in plain Python: the state is the hidden vector."""

    eos = (0,)

    def start(self, source: Sequence[int]) -> tuple[float, float]:
        return (tanh(sum(source) / 5), tanh(len(source) / 5))

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        out = []
        for (a, b), prefix in batch:
            token = prefix[-1] if prefix else -1
            a, b = tanh(0.7 * a - 0.4 * b + 0.5 * token), tanh(0.3 * a + 0.8 * b - 0.2 * token)
            out.append(Scored(log_softmax([2 * a - b - 1, b, 1.5 * a, -a - b]), (a, b)))
        return out


def test_a_recurrent_model_keeps_its_state():
    model = Recurrent()
    check_model(model, [1, 2, 3])

    def from_scratch(prefix: tuple[int, ...]) -> Sequence[float]:
        state = model.start([1, 2, 3])
        for length in range(len(prefix) + 1):
            ((logprobs, state, _),) = model.score([Query(state, prefix[:length])])
        return logprobs

    for k in (1, 2, 5):
        (result,) = bestfirst.decode(model, [[1, 2, 3]], beam=k, nbest=k, max_length=7)
        reference = beam_leave(from_scratch, k, 7, n=k)
        assert [answer.tokens for answer in result.hypotheses] == [y.tokens for y in reference.answers]
        assert [answer.score for answer in result.hypotheses] == pytest.approx([y.value for y in reference.answers])


def test_the_default_limit_is_twice_the_input_and_ten():
    endless = FunctionModel(lambda prefix: [-inf, 0.0], eos=0)
    (none, three) = bestfirst.decode(endless, [None, [7, 7, 7]], beam=1)
    assert (none.status, len(none.partial.tokens)) == ("incomplete", 10)
    assert len(three.partial.tokens) == 16


# -- scores that are not probabilities -------------------------------------------------------------------------------------


def margin(prefix: tuple[int, ...]) -> list[float]:
    """A maximum-margin model: additive scores of any sign."""
    return [0.4 * len(prefix) - 1.0, 0.9 - 0.3 * len(prefix), -0.2]


@pytest.mark.parametrize("finished", RULES)
def test_additive_scores_of_any_sign_work_with_beam_search(finished):
    check_model(FunctionModel(margin, eos=0), normalized=False, monotonic=False)
    (result,) = bestfirst.decode(FunctionModel(margin, eos=0), [None], strategy="beam", beam=3, max_length=6, finished=finished)
    reference = beam_keep(margin, 3, 6) if finished == "keep" else beam_leave(margin, 3, 6, n=10**6)
    assert result.hypotheses[0].tokens == reference.answers[0].tokens
    assert result.hypotheses[0].score == pytest.approx(reference.answers[0].value)
    assert result.hypotheses[0].score > 0


class Undecided:
    """A stop of one's own; it does not say that it does not depend on the past."""

    name, exact = "undecided", True

    def __call__(self, search, y):
        return Answered()(search, y)


@pytest.mark.parametrize("settings", [{}, {"queue_capacity": 99}, {"stop": Undecided()}, {"max_calls": 99}])
def test_additive_scores_that_rise_are_refused_by_best_first_search(settings):
    message = r"gives token 1 after \[\] a score of 0\.9; log-probabilities are at most 0.*meant to rise, use strategy='beam'"
    with pytest.raises(BrokenLaw, match=message):
        bestfirst.decode(FunctionModel(margin, eos=0), [None], beam=3, max_length=6, **settings)


@pytest.mark.parametrize("finished", RULES)
def test_additive_costs_work_with_best_first_search(finished):
    """Costs of an edit, a parse, and so on: never positive when negated, so best-first search is exact."""

    def costs(prefix: tuple[int, ...]) -> list[float]:
        return [-1.0 - sum(prefix) * 7 % 5, -2.0 - len(prefix) % 2, -1.5]

    check_model(FunctionModel(costs, eos=0), normalized=False)
    (result,) = bestfirst.decode(FunctionModel(costs, eos=0), [None], beam=4, nbest=3, max_length=6, finished=finished)
    reference = beam_keep(costs, 4, 6) if finished == "keep" else beam_leave(costs, 4, 6, n=3)
    assert [(answer.tokens, answer.score) for answer in result.hypotheses] == [(y.tokens, y.value) for y in reference.answers[:3]]
    assert result.exact


def test_unpruned_search_finds_the_best_of_all_outputs():
    def costs(prefix: tuple[int, ...]) -> list[float]:
        return [-3.0 / (1 + len(prefix)), -0.25 - (sum(prefix) % 3), -0.5]

    (result,) = bestfirst.decode(FunctionModel(costs, eos=0), [None], strategy="best-first-unpruned", max_length=6)
    assert result.hypotheses[0].tokens == exhaustive(costs, 6)[0].tokens


# -- outputs tied to the input ---------------------------------------------------------------------------------------------


class Tagger(Model):
    """Tags words one by one, |y| = |x|: EOS is impossible before the last word is tagged, and certain after it."""

    eos = (0,)
    tags = (1, 2, 3)

    def start(self, source: Sequence[str]) -> Sequence[str]:
        return source

    def max_length(self, source: Sequence[str]) -> int:
        return len(source) + 1

    def logprob(self, word: str, before: int, tag: int) -> float:
        return log_softmax([((len(word) * t + before * (t + 1)) % 7) / 2 for t in self.tags])[tag - 1]

    def score(self, batch: Sequence[Query]) -> list[Scored]:
        out = []
        for words, prefix in batch:
            if len(prefix) == len(words):
                row = [0.0, -inf, -inf, -inf]
            else:
                before = prefix[-1] if prefix else 0
                row = [-inf, *(self.logprob(words[len(prefix)], before, tag) for tag in self.tags)]
            out.append(Scored(row, words))
        return out

    def text(self, source: Sequence[str], tokens: Sequence[int]) -> str:
        return " ".join(f"{word}/{'NVA'[tag - 1]}" for word, tag in zip(source, tokens, strict=False))


@pytest.mark.parametrize("finished", RULES)
def test_a_tagger_gives_every_word_one_tag(finished):
    sentences = [["time", "flies"], ["the", "old", "man", "the", "boats"], []]
    check_model(Tagger(), sentences[1])
    for words, result in zip(sentences, bestfirst.decode(Tagger(), sentences, beam=27, finished=finished), strict=True):
        tags = result.hypotheses[0].tokens
        assert tags[-1] == 0
        assert len(tags) == len(words) + 1
        assert result.text.count("/") == len(words)
        if len(words) <= 3:  # a beam of all taggings is exhaustive
            best = max(product(Tagger.tags, repeat=len(words)), key=lambda y: logprob_of_tags(words, y))
            assert tags[:-1] == best


def logprob_of_tags(words: Sequence[str], tags: Sequence[int]) -> float:
    return sum(Tagger().logprob(word, before, tag) for word, before, tag in zip(words, [0, *tags], tags, strict=False))


# -- what it costs to import -----------------------------------------------------------------------------------------------


def test_importing_bestfirst_loads_neither_torch_nor_numpy_and_decoding_a_function_keeps_it_so():
    code = (
        "import sys, bestfirst, bestfirst.testing\n"
        "assert bestfirst.decode(bestfirst.FunctionModel(lambda prefix: [-1.0, -2.0], eos=0), [None])[0].calls == 1\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_importing_bestfirst_takes_less_than_a_fifth_of_a_second():
    """CPU time of the whole process, the best of seven runs: other load of the machine is not measured."""

    def seconds() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", "import bestfirst"], check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(7)) < 0.2
