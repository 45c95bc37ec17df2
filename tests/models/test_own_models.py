"""User models: all supported forms are read correctly, and every mistake of a first attempt is named."""

from __future__ import annotations

import gc
import weakref
from itertools import product
from math import inf
from threading import Event, Thread

import numpy
import pytest
import torch

import bestfirst
import chat_models
from bestfirst import FunctionModel, Model, Query, Scored, Stats, decode
from bestfirst.engine import no_garbage_collection
from bestfirst.engine.user_model import UserModel
from bestfirst.models.model import as_model
from bestfirst.search import ROUNDING
from bestfirst.testing import check_model
from models.ducks import Duck, bigram


def stacked(rows):
    return numpy.stack(rows)


def test_duck_typed_models_and_functions_are_models():
    expected = decode(FunctionModel(bigram, eos=0), [3, 5], beam=3, nbest=2)
    models = [
        Duck(),
        FunctionModel(bigram, eos=[0]),
        FunctionModel(lambda sources, prefixes: [bigram(s, p) for s, p in zip(sources, prefixes, strict=True)], 0, batched=True),
        FunctionModel(lambda sources, prefixes: stacked([*map(bigram, sources, prefixes)]), numpy.int64(0), batched=True),
    ]
    for model in models:
        check_model(model, 3)
        for result, other in zip(decode(model, [3, 5], beam=3, nbest=2), expected, strict=True):
            assert [(y.tokens, y.score) for y in result.hypotheses] == [(y.tokens, y.score) for y in other.hypotheses]
    assert decode(Duck(), [3])[0].text.startswith("3: [")
    stateless = Duck()
    stateless.stateful = False
    assert (as_model(Duck()).stateful, as_model(stateless).stateful) == (True, False)
    one_argument = FunctionModel(lambda prefixes: stacked([bigram(3, prefix) for prefix in prefixes]), 0, batched=True)
    assert decode(one_argument, [None], beam=3)[0].hypotheses == expected[0].hypotheses[:1]


def test_score_may_return_a_matrix_and_a_list_of_states():
    class Matrix(Duck):
        def score(self, batch):
            states = [(state[0], prefix) for state, prefix in batch]
            return torch.tensor(stacked([bigram(state[0], prefix) for state, prefix in batch])), states

    assert [y.tokens for y in decode(Matrix(), [3], beam=3)[0].hypotheses] == [
        y.tokens for y in decode(Duck(), [3], beam=3)[0].hypotheses
    ]


class Unmasked(Duck):
    """For prefixes of one length; returns a matrix and a list of states."""

    def start(self, source):
        return source or 3, ()

    def batch_key(self, query):
        return len(query.prefix)

    def score(self, batch):
        assert len({len(prefix) for _, prefix in batch}) == 1
        return stacked([bigram(state[0], prefix) for state, prefix in batch]), [(state[0], prefix) for state, prefix in batch]


def test_models_in_combinations_and_of_scores_are_asked_as_alone():
    first, same = FunctionModel(bigram, 0), FunctionModel(lambda source, prefix: bigram(source or 3, prefix), 0)
    settings = {"beam": 4, "max_length": 8, "row_budget": 9}
    for decoded in (
        lambda second: decode(bestfirst.Ensemble([first, second]), [3, 5, 7], **settings),
        lambda second: decode(bestfirst.ShallowFusion(first, second, 0.5), [3, 5, 7], **settings),
        lambda second: decode(first, [3, 5, 7], score=bestfirst.MutualInformation(second, 0.5, 0.1), **settings),
    ):
        assert decoded(Unmasked()) == decoded(same)
    check_model(Unmasked(), 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda prefix: [0.0], r"is a function; say which token ends .*: bestfirst.FunctionModel\(lambda ..., eos=...\)"),
        (bigram, r"bestfirst.FunctionModel\(bigram, eos=...\)"),
        ("folder/of/model", r"is a text, 'folder/of/model'; load it first: bestfirst.load\('folder/of/model'\)"),
        (Duck, r"is the class Duck; make one of it: Duck\(...\)"),
        (object(), r"start\(source\), score\(batch\) and eos; object lacks start\(source\) and score\(batch\)"),
        (type("Half", (), {"score": lambda self, batch: [], "eos": 0})(), r"Half lacks start\(source\)"),
        (type("Endless", (), {"score": lambda self, b: [], "start": lambda self, s: s})(), "Endless has no eos; set it to the"),
    ],
)
def test_an_invalid_model_is_refused_with_what_it_lacks(given, message):
    with pytest.raises(TypeError, match=message):
        decode(given, [None])


def test_an_unwrapped_hugging_face_model_is_refused():
    with pytest.raises(TypeError, match=r"MarianMTModel is a Hugging Face model; give bestfirst.wrap\(model, tokenizer\)"):
        decode(bestfirst.load().model, ["Guten Tag"])


# -- mistakes of a first attempt ---------------------------------------------------------------------------------------------


def model_returning(given, eos=0):
    return type("Mine", (Model,), {"eos": eos, "start": lambda self, s: s, "score": lambda self, batch: given(batch)})()


@pytest.mark.parametrize(
    ("given", "eos", "message"),
    [
        (lambda batch: None, 0, r"Mine.score was asked about 1 hypotheses and returned None; return a list of Scored"),
        (lambda batch: [], 0, "asked about 1 hypotheses and returned 0 answers; return one for each, in the same order"),
        (lambda batch: Scored([-1.0, -1.0]), 0, "returned one Scored; return a list, one for each"),
        (lambda batch: numpy.zeros((1, 1, 4)), 0, r"returned an array of shape \(1, 1, 4\); return one of shape \(1, vocab"),
        (lambda batch: [Scored(numpy.zeros((1, 4)))], 0, r"after \[\] must be one row, a number for each token, .* \(1, 4\)"),
        (lambda batch: [Scored(torch.zeros(2, 4))], 0, r"must be one row, .* got an array of shape \(2, 4\)"),
        (lambda batch: [Scored(["a", "b"])], 0, r"after \[\] must be a row of numbers, got a list with 'a'"),
        (lambda batch: [Scored(None)], 0, r"after \[\] must be a row of numbers, got None"),
        (lambda batch: [Scored([-1.0] * 4)], 4, r"are 4, for the tokens 0 to 3, and Mine.eos is \[4\]: not one of them"),
        (lambda batch: [Scored([-1.0] * (3 + len(q.prefix))) for q in batch], 2, r"after \[0\] are 4, those before were 3; g"),
        (lambda batch: ([[-1.0] * 3], []), 0, "and returned"),
    ],
)  # fmt: skip
def test_an_invalid_answer_of_score_is_named_with_the_expected_form(given, eos, message):
    with pytest.raises(ValueError, match=message):
        decode(model_returning(given, eos), [None], beam=2, max_length=4)


def test_eos_must_be_token_ids():
    with pytest.raises(ValueError, match=r"FunctionModel.eos must be the token that ends a hypothesis, .* got '</s>'"):
        FunctionModel(lambda prefix: [0.0], eos="</s>")


def test_incomplete_results_say_why_nothing_finished():
    (nothing,) = decode(FunctionModel(lambda prefix: [-inf, -inf], eos=0), [None])
    assert (nothing.status, nothing.hypotheses) == ("incomplete", [])
    assert nothing.message == "the model's scores after [] are all -inf: FunctionModel allows no first token"
    (endless,) = decode(FunctionModel(lambda prefix: [-inf, 0.0], eos=0), [None], max_length=3)
    assert endless.message == (
        "nothing finished within 3 tokens; raise max_length, or see whether FunctionModel.eos [0] is what ends"
    )
    (otherwise,) = decode(FunctionModel(lambda prefix: [0.0, -inf], eos=0), [None], max_length=3, eos=1)
    assert otherwise.message.endswith("or see whether eos [1] is what ends")


@pytest.mark.parametrize("excess", [3e-8, 5e-5])
@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.6}, {"score": "length-reward", "score_options": {"beta": 0.2}}])
def test_decode_accepts_the_rounding_errors_that_check_model_accepts(excess, settings):
    """A softmax in single precision can give a certain token a log-probability above 0."""

    def row(prefix):
        return [-inf, excess] if len(prefix) < 3 else [excess, -inf]

    model = FunctionModel(row, eos=0)
    check_model(model, normalized=False)
    assert excess <= ROUNDING
    (result,) = decode(model, [None], beam=2, **settings)
    assert result.hypotheses[0].tokens == (1, 1, 1, 0)
    assert result.hypotheses[0].logprob == 0
    (plain,) = decode(model, [None], strategy="beam", beam=2)  # beam search accepts any sign and does not clamp
    assert plain.hypotheses[0].score == pytest.approx(4 * excess)


# -- batches ---------------------------------------------------------------------------------------------------------------------


def test_inputs_are_started_in_batches_and_this_counts_as_model_time():
    starts = []

    class Encoder(Duck):
        def start_batch(self, sources):
            starts.append(len(sources))
            return [(source, ()) for source in sources]

    stats = Stats()
    decode(Encoder(), range(64), beam=2, max_length=5, stats=stats)
    assert sum(starts) == 64
    assert max(starts) >= 16
    assert 0 < stats.model_seconds < stats.seconds

    class Short(Duck):
        def start_batch(self, sources):
            return [(sources[0], ())]

    with pytest.raises(ValueError, match=r"Short.start_batch was given 3 inputs and returned 1 states"):
        decode(Short(), range(3))


def test_batch_key_groups_the_rows_of_a_step_by_length():
    lengths = []

    class Unmasked(Duck):
        def batch_key(self, query):
            return len(query.prefix)

        def score(self, batch):
            lengths.append({len(prefix) for _, prefix in batch})
            return super().score(batch)

    results = decode(Unmasked(), range(30), beam=4, max_length=8, row_budget=24)
    assert all(len(each) == 1 for each in lengths)
    assert [r.hypotheses for r in results] == [r.hypotheses for r in decode(Duck(), range(30), beam=4, max_length=8)]


def test_scores_that_depend_on_the_rows_of_one_batch_key_are_detected():
    """A spot check asks about a row that had company in its call: the shortest row of a step has none."""

    class Lonely(Duck):
        def batch_key(self, query):
            return len(query.prefix) > 1

        def score(self, batch):
            return [(logprobs - 0.1 * len(batch), state) for logprobs, state in super().score(batch)]

    user_model = UserModel(as_model(Lonely()), lenient=False)
    batch = [Query((3, ()), prefix) for prefix in ((1,), *[(1, 2)] * 4)]
    with pytest.warns(RuntimeWarning, match=r"after \[1, 2\] .* alone and .* in a batch of 4: its scores depend on the batch"):
        user_model.ask(batch)
    assert not user_model.independent


def test_the_row_budget_grows_where_many_rows_cost_little_more_than_one(monkeypatch):
    """With a clock that the model advances: a call takes a fixed time, and a time for each row."""
    now = [0.0]
    monkeypatch.setattr("bestfirst.engine.user_model.perf_counter", lambda: now[0])

    def rows_of(fixed: float, each: float) -> int:
        asked = []

        class Timed(Duck):
            def score(self, batch):
                now[0] += fixed + each * len(batch)
                asked.append(len(batch))
                return super().score(batch)

        decode(Timed(), range(300), beam=4, max_length=8)
        return max(asked)

    assert rows_of(1e-3, 1e-3) == 16
    assert rows_of(1e-2, 1e-4) > 100


def test_reference_cycles_are_collected_during_decoding():
    alive: set[int] = set()
    most = 0

    class Cycle:
        pass

    class Leaky(Duck):
        def score(self, batch):
            nonlocal most
            for _ in range(50):
                one = Cycle()
                one.itself = one
                alive.add(id(one))
                weakref.finalize(one, alive.discard, id(one))
            most = max(most, len(alive))
            return super().score(batch)

    assert gc.isenabled()
    stats = Stats()
    decode(Leaky(), range(300), beam=4, max_length=8, row_budget=16, stats=stats)
    assert gc.isenabled()
    assert stats.steps > 60
    assert most < 50 * stats.steps / 2


def test_garbage_collection_is_on_again_whichever_thread_finishes_first():
    """One thread is in a search without model calls; it finishes while the model of another thread runs."""
    asked, over, done = Event(), Event(), Event()

    def search():
        with no_garbage_collection():
            asked.wait(10)
        over.set()

    def scores(prefix):
        asked.set()
        over.wait(10)
        done.set()
        return [-0.1, -3.0]

    first = Thread(target=search)
    first.start()
    decode(FunctionModel(scores, eos=0), [None], max_length=2)
    first.join()
    assert done.is_set()
    assert gc.isenabled()


def test_inputs_that_are_a_tokenizers_output_are_refused():
    with pytest.raises(ValueError, match=r"got a mapping \(a tokenizer's output\?\); write decode\(model, \[text\]\)"):
        decode(Duck(), {"input_ids": [[1]], "attention_mask": [[1]]})


def test_a_wide_beam_finds_the_best_output_with_the_sum_of_its_log_probabilities():
    model = FunctionModel(bigram, eos=0)
    best = max(
        (
            (sum(bigram(4, y[:i])[token] for i, token in enumerate(y)), y)
            for length in range(1, 5)
            for y in ((*tokens, 0) for tokens in product(range(1, 5), repeat=length - 1))
        ),
    )
    (result,) = decode(model, [4], beam=200, max_length=4)
    assert result.hypotheses[0].tokens == best[1]
    assert result.hypotheses[0].score == pytest.approx(best[0])


def test_a_text_that_begins_with_bos_does_not_get_a_second_one():
    model = bestfirst.wrap(chat_models.language_model(), chat_models.tokenizer())
    once = model.read("the cat").payload.tokens
    assert once[0] == 2
    assert model.read("<s>the cat").payload.tokens == once
    assert model.read("<s><s>the cat").payload.tokens == (2, *once)  # two given, two kept
