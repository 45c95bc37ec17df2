"""An input on which a user's model fails does not affect the other inputs."""

from __future__ import annotations

from math import nan

import pytest

from bestfirst import FunctionModel, MutualInformation, decode
from models.ducks import Duck, bigram


class Moody(Duck):
    """Fails on some inputs: in `start`, in `score`, or with NaN."""

    def start(self, source):
        if source % 100 == 13:
            raise KeyError(source)
        return super().start(source)

    def score(self, batch):
        for state, prefix in batch:
            if state[0] % 200 == 57 and len(prefix) == 1:
                raise RuntimeError(f"input {state[0]} is too long")
        answers = super().score(batch)
        broken = [state[0] % 500 == 99 and len(prefix) == 1 for state, prefix in batch]
        return [(row * nan, state) if odd else (row, state) for (row, state), odd in zip(answers, broken, strict=True)]


def test_an_exception_of_the_model_fails_only_its_own_input():
    with pytest.warns(
        RuntimeWarning, match=r"Moody.start raised KeyError: 13 \(test_model_failures.py, line \d+\); inputs on which"
    ):
        results = decode(Moody(), range(1000), beam=3, max_length=6)
    failed = [i for i, result in enumerate(results) if result.status == "error"]
    assert {i for i in range(1000) if i % 100 == 13} <= set(failed)
    good = [i for i in range(1000) if i not in failed]
    assert len(good) > 970
    for i, alone in zip(good, decode(Duck(), good, beam=3, max_length=6), strict=True):
        assert (results[i].hypotheses, results[i].calls, results[i].exact) == (alone.hypotheses, alone.calls, True)
    messages = {i: results[i].message for i in failed}
    assert messages[113].startswith("Moody.start raised KeyError: 113 (test_model_failures.py, line ")
    assert any("Moody.score raised RuntimeError: input 57 is too long (test_" in message for message in messages.values())
    assert any(message.startswith("the model's scores after [") and "contain NaN" in message for message in messages.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("strategy", ["best-first", "beam"])
def test_failed_inputs_do_not_depend_on_scoring_ahead(strategy):
    """An exception for a hypothesis counts only if the hypothesis is needed."""
    results = {}
    for budget in (1, 2, 7, 64):
        found = decode(Moody(), range(40, 80), beam=4, max_length=6, row_budget=budget, strategy=strategy)
        results[budget] = [(result.status, result.hypotheses, result.calls * (result.status != "error")) for result in found]
    assert results[1] == results[2] == results[7] == results[64]


def test_errors_raise_propagates_the_models_exception():
    with pytest.raises(KeyError, match="13"):
        decode(Moody(), range(20), errors="raise")
    with pytest.raises(ValueError, match="errors must be 'result' or 'raise', got 'ignore'"):
        decode(Moody(), range(20), errors="ignore")


def test_an_exception_of_max_length_fails_only_its_own_input():
    class Measured(Duck):
        def max_length(self, source):
            return 10 // source

    results = decode(Measured(), [5, 0, 5])
    assert [result.status for result in results] == ["complete", "error", "complete"]
    assert results[1].message.startswith("Measured cannot read the input: ZeroDivisionError")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ten_of_a_thousand_inputs_fail_and_the_others_do_not_change():
    class TenFail(Duck):
        def score(self, batch):
            for state, prefix in batch:
                if state[0] % 100 == 50 and not prefix:
                    raise OSError(f"no weights for {state[0]}")
            return super().score(batch)

    results = decode(TenFail(), range(1000), beam=3, nbest=3, max_length=6)
    failed = {i: result.message for i, result in enumerate(results) if result.status == "error"}
    assert sorted(failed) == list(range(50, 1000, 100))
    assert all(f"TenFail.score raised OSError: no weights for {i} (test_model" in message for i, message in failed.items())
    good = [i for i in range(1000) if i not in failed]
    without = decode(TenFail(), good, beam=3, nbest=3, max_length=6)
    assert [(results[i].hypotheses, results[i].calls) for i in good] == [(r.hypotheses, r.calls) for r in without]


def test_an_exception_of_a_scores_language_model_fails_only_the_inputs_that_ask_for_it():
    language = FunctionModel(lambda prefix: [-1.0] * 5 if prefix[-2:] != (4, 4) else 1 / 0, eos=0)
    plain = FunctionModel(lambda prefix: [-1.0] * 5, eos=0)
    with pytest.warns(RuntimeWarning, match=r"FunctionModel.score raised ZeroDivisionError"):
        results = decode(Duck(), range(60), beam=3, max_length=6, score=MutualInformation(language, 0.5, 0.1))
    failed = [result for result in results if result.status == "error"]
    assert 0 < len(failed) < 60
    assert all("ZeroDivisionError" in result.message for result in failed)
    expected = decode(Duck(), range(60), beam=3, max_length=6, score=MutualInformation(plain, 0.5, 0.1))
    assert all(result in failed or result.hypotheses == other.hypotheses for result, other in zip(results, expected, strict=True))


def test_nan_of_a_scores_language_model_fails_only_the_inputs_that_ask_for_it():
    language = FunctionModel(lambda prefix: [-1.0] * 5 if prefix[-2:] != (4, 4) else [nan] * 5, eos=0)
    results = decode(Duck(), range(60), beam=3, max_length=6, score=MutualInformation(language, 0.5, 0.1))
    failed = [result for result in results if result.status == "error"]
    assert 0 < len(failed) < 60
    assert all(result.message.endswith("4, 4] contain NaN") for result in failed)
    assert all(result.message.startswith("the language model's scores after [") for result in failed)


def test_a_language_model_whose_scores_depend_on_the_batch_is_detected():
    language = FunctionModel(lambda prefixes: [[-1.0 - len(prefixes)] * 5 for _ in prefixes], eos=0, batched=True)
    with pytest.warns(RuntimeWarning, match="its scores depend on the batch"):
        results = decode(FunctionModel(bigram, eos=0), range(9), row_budget=9, score=MutualInformation(language, 0.5, 0.01))
    assert not any(result.exact for result in results)
