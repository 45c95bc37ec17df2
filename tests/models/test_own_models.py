"""Models that nobody here wrote: whatever they return is read right, and every mistake of a first attempt is named."""

from __future__ import annotations

import gc
import warnings
import weakref
from itertools import product
from math import inf, nan

import numpy
import pytest
import torch

import bestfirst
import chat_models
from bestfirst import FunctionModel, Model, Scored, Stats, decode
from bestfirst.models.numbers import best_of_each, best_of_list
from bestfirst.search import ROUNDING
from bestfirst.testing import check_model

FORMS = {
    "list": list,
    "tuple": tuple,
    "float32": lambda row: numpy.array(row, dtype=numpy.float32),
    "float64": numpy.array,
    "float16": lambda row: numpy.array(row, dtype=numpy.float16),
    "torch": torch.tensor,
    "bfloat16": lambda row: torch.tensor(row, dtype=torch.bfloat16),
    "half": lambda row: torch.tensor(row, dtype=torch.float16),
    "gradient": lambda row: torch.tensor(row, requires_grad=True),
}


def rounded(form: str, row: list[float]) -> list[float]:
    """The numbers that a row really has."""
    made = FORMS[form](row)
    return made.detach().double().tolist() if isinstance(made, torch.Tensor) else [float(value) for value in made]


def chain(prefix: tuple[int, ...], size: int = 600) -> list[float]:
    """A peaked distribution over many tokens, which ends after some twenty."""
    weights = numpy.random.default_rng([7, *prefix[-2:]]).gumbel(size=size) * 2
    weights[0] = 30.0 if len(prefix) > 24 else -5.0
    return (weights - numpy.logaddexp.reduce(weights)).tolist()


# -- numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_kind_are_added_up_in_float64(form):
    """In half precision the sum of 26 numbers is another number, and then another answer is the best."""
    (result,) = decode(FunctionModel(lambda prefix: FORMS[form](chain(prefix)), eos=0), [None], beam=4, nbest=2, max_length=30)
    plain = FunctionModel(lambda prefix: rounded(form, chain(prefix)), eos=0)
    assert result.hypotheses == decode(plain, [None], beam=4, nbest=2, max_length=30)[0].hypotheses
    best = result.hypotheses[0]
    steps = [rounded(form, chain(best.tokens[:i]))[token] for i, token in enumerate(best.tokens)]
    assert best.score == sum(steps)
    assert type(best.score) is type(best.logprob) is float
    assert len(best.tokens) > 20


@pytest.mark.parametrize("score", ["logprob", bestfirst.LengthNormalized(0.6), bestfirst.GNMT(1.0)])
def test_scores_are_plain_floats(score):
    model = FunctionModel(lambda prefix: torch.tensor([-1, -2, -3]), eos=0)  # whole numbers, even
    (result,) = decode(model, [None], beam=2, nbest=2, score=score)
    assert {type(number) for answer in result.hypotheses for number in (answer.score, answer.logprob)} == {float}


def test_the_best_tokens_of_a_matrix_are_those_of_its_rows(cases):
    for case in cases(300, full=3000):
        rng = numpy.random.default_rng(case)
        rows, size, width = (int(rng.integers(1, most)) for most in (5, 400, 30))
        scores = rng.standard_normal((rows, size)).astype(rng.choice(["float32", "float64"]))
        if case % 2:
            scores = scores.round()  # many are equal
        if case % 3 == 0:
            scores[rng.random((rows, size)) < 0.8] = -inf
        expected = [best_of_list(row, "", width) for row in scores.tolist()]
        assert best_of_each(scores, width) == expected


def test_rows_are_scored_in_one_batch_whatever_their_kind():
    for form in ("list", "float32", "bfloat16"):
        asked = []

        class Batched(Model):
            eos = 0

            def start(self, source):
                return source

            def score(self, batch, form=form, asked=asked):
                asked.append(len(batch))
                return [Scored(FORMS[form](chain((query.state, *query.prefix), 40)), query.state) for query in batch]

        results = decode(Batched(), range(12), beam=3, max_length=6)
        expected = [decode(FunctionModel(lambda s, p, f=form: rounded(f, chain((s, *p), 40)), 0), [i], beam=3, max_length=6)
                    for i in range(12)]  # fmt: skip
        assert [r.hypotheses for r in results] == [r.hypotheses for (r,) in expected]
        assert max(asked) >= 12


# -- duck types and functions ----------------------------------------------------------------------------------------------


def bigram(source, prefix):
    """Depends on the input and the last token."""
    row = numpy.random.default_rng([source, *prefix[-1:]]).random(5)
    return numpy.log(row / row.sum())


class Duck:
    """No `Model`, but has what it takes."""

    eos = 0

    def start(self, source):
        return (source, ())

    def score(self, batch):
        return [(bigram(state[0], prefix), (state[0], prefix)) for state, prefix in batch]

    def text(self, source, tokens):
        return f"{source}: {list(tokens)}"


def spread(rows):
    return numpy.stack(rows)


def test_ducks_and_functions_are_models():
    expected = decode(FunctionModel(bigram, eos=0), [3, 5], beam=3, nbest=2)
    models = [
        Duck(),
        FunctionModel(bigram, eos=[0]),
        FunctionModel(lambda sources, prefixes: [bigram(s, p) for s, p in zip(sources, prefixes, strict=True)], 0, batched=True),
        FunctionModel(lambda sources, prefixes: spread([*map(bigram, sources, prefixes)]), numpy.int64(0), batched=True),
    ]
    for model in models:
        check_model(model, 3)
        for result, other in zip(decode(model, [3, 5], beam=3, nbest=2), expected, strict=True):
            assert [(y.tokens, y.score) for y in result.hypotheses] == [(y.tokens, y.score) for y in other.hypotheses]
    assert decode(Duck(), [3])[0].text.startswith("3: [")
    one_argument = FunctionModel(lambda prefixes: spread([bigram(3, prefix) for prefix in prefixes]), 0, batched=True)
    assert decode(one_argument, [None], beam=3)[0].hypotheses == expected[0].hypotheses[:1]


def test_answers_may_be_a_matrix_and_states():
    class Matrix(Duck):
        def score(self, batch):
            states = [(state[0], prefix) for state, prefix in batch]
            return torch.tensor(spread([bigram(state[0], prefix) for state, prefix in batch])), states

    assert [y.tokens for y in decode(Matrix(), [3], beam=3)[0].hypotheses] == [
        y.tokens for y in decode(Duck(), [3], beam=3)[0].hypotheses
    ]


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
def test_what_is_no_model_is_told_how_to_become_one(given, message):
    with pytest.raises(TypeError, match=message):
        decode(given, [None])


def test_a_hugging_face_model_is_to_be_wrapped():
    with pytest.raises(TypeError, match=r"MarianMTModel is a Hugging Face model; give bestfirst.wrap\(model, tokenizer\)"):
        decode(bestfirst.load().model, ["Guten Tag"])


# -- mistakes of a first attempt ---------------------------------------------------------------------------------------------


def answering(given, eos=0):
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
        (lambda batch: [Scored(None)], 0, r"must be (a row of numbers|one row)"),
        (lambda batch: [Scored([-1.0] * 4)], 4, r"are 4, for the tokens 0 to 3, and Mine.eos is \[4\]: not one of them"),
        (lambda batch: [Scored([-1.0] * (3 + len(q.prefix))) for q in batch], 2, r"after \[0\] are 4, those before were 3; g"),
        (lambda batch: ([[-1.0] * 3], []), 0, "and returned"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_named_with_what_is_expected(given, eos, message):
    with pytest.raises(ValueError, match=message):
        decode(answering(given, eos), [None], beam=2, max_length=4)


def test_eos_must_be_tokens():
    with pytest.raises(ValueError, match=r"FunctionModel.eos must be the token that ends a hypothesis, .* got '</s>'"):
        FunctionModel(lambda prefix: [0.0], eos="</s>")


def test_nothing_that_is_possible_and_nothing_that_ends_are_told():
    (nothing,) = decode(FunctionModel(lambda prefix: [-inf, -inf], eos=0), [None])
    assert (nothing.status, nothing.hypotheses) == ("incomplete", [])
    assert nothing.message == "the model's scores after [] are all -inf: FunctionModel allows no first token"
    (endless,) = decode(FunctionModel(lambda prefix: [-inf, 0.0], eos=0), [None], max_length=3)
    assert endless.message == (
        "nothing finished within 3 tokens; raise max_length, or see whether FunctionModel.eos [0] is what ends"
    )


@pytest.mark.parametrize("excess", [3e-8, 5e-5])
@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.6}, {"score": "length-reward", "score_options": {"beta": 0.2}}])
def test_what_check_model_lets_pass_decode_can_use(excess, settings):
    """A softmax in single precision makes a certain token more than certain."""

    def row(prefix):
        return [-inf, excess] if len(prefix) < 3 else [excess, -inf]

    model = FunctionModel(row, eos=0)
    check_model(model, normalized=False)
    assert excess <= ROUNDING
    (result,) = decode(model, [None], beam=2, **settings)
    assert result.hypotheses[0].tokens == (1, 1, 1, 0)
    assert result.hypotheses[0].logprob == 0
    (plain,) = decode(model, [None], strategy="beam", beam=2)  # any sign will do there, and nothing is changed
    assert plain.hypotheses[0].score == pytest.approx(4 * excess)


# -- an input on which a model fails ------------------------------------------------------------------------------------------


class Moody(Duck):
    """Does not like some inputs, each in its own way."""

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


def test_inputs_on_which_a_model_raises_cost_themselves_alone():
    with pytest.warns(RuntimeWarning, match=r"Moody.start raised KeyError: 13 \(test_own_models.py, line \d+\); inputs on which"):
        results = decode(Moody(), range(1000), beam=3, max_length=6)
    failed = [i for i, result in enumerate(results) if result.status == "error"]
    assert {i for i in range(1000) if i % 100 == 13} <= set(failed)
    good = [i for i in range(1000) if i not in failed]
    assert len(good) > 970
    for i, alone in zip(good, decode(Duck(), good, beam=3, max_length=6), strict=True):
        assert (results[i].hypotheses, results[i].calls, results[i].exact) == (alone.hypotheses, alone.calls, True)
    messages = {i: results[i].message for i in failed}
    assert messages[113].startswith("Moody.start raised KeyError: 113 (test_own_models.py, line ")
    assert any("Moody.score raised RuntimeError: input 57 is too long (test_own" in message for message in messages.values())
    assert any(message.startswith("the model's scores after [") and "contain NaN" in message for message in messages.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("strategy", ["best-first", "beam"])
def test_who_fails_does_not_depend_on_what_was_scored_ahead(strategy):
    """A hypothesis on which the model raises matters only if it is needed."""
    results = {}
    for budget in (1, 2, 7, 64):
        found = decode(Moody(), range(40, 80), beam=4, max_length=6, row_budget=budget, strategy=strategy)
        results[budget] = [(result.status, result.hypotheses, result.calls * (result.status != "error")) for result in found]
    assert results[1] == results[2] == results[7] == results[64]


def test_who_wants_exceptions_gets_them():
    with pytest.raises(KeyError, match="13"):
        decode(Moody(), range(20), errors="raise")
    with pytest.raises(ValueError, match="errors must be 'result' or 'raise', got 'ignore'"):
        decode(Moody(), range(20), errors="ignore")


def test_an_input_that_cannot_be_measured_is_an_error_of_its_own():
    class Measured(Duck):
        def max_length(self, source):
            return 10 // source

    results = decode(Measured(), [5, 0, 5])
    assert [result.status for result in results] == ["complete", "error", "complete"]
    assert results[1].message.startswith("Measured cannot read the input: ZeroDivisionError")


# -- the batch law -------------------------------------------------------------------------------------------------------------


class Neighbourly(Duck):
    """Its rows see how long the longest of them is, as without a mask."""

    def score(self, batch):
        longest = max(len(prefix) for _, prefix in batch)
        return [
            (row if len(query.prefix) == longest else row[::-1].copy(), state)
            for query, (row, state) in zip(batch, super().score(batch), strict=True)
        ]


def test_a_model_whose_scores_depend_on_the_batch_is_found_out():
    with pytest.warns(RuntimeWarning, match=r"Neighbourly.score gives token \d after .* alone and .* in a batch of \d+: its .*"
                      r"exact=False; .*row_budget=1") as caught:  # fmt: skip
        results = decode(Neighbourly(), range(100), beam=4, max_length=8)
    assert len(caught) == 1
    assert not any(result.exact for result in results[-50:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = decode(Neighbourly(), range(10), beam=4, max_length=8, row_budget=1)
    assert all(result.exact for result in alone)
    assert [result.hypotheses for result in alone] == [r.hypotheses for r in decode(Duck(), range(10), beam=4, max_length=8)]


def test_a_model_that_obeys_is_asked_again_but_rarely():
    asked = []

    class Counted(Duck):
        def score(self, batch):
            asked.append(len(batch))
            return super().score(batch)

    stats = Stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = decode(Counted(), range(400), beam=4, max_length=8, stats=stats)
    assert all(result.exact for result in results)
    assert 1 <= sum(asked) - stats.rows <= 4 + numpy.log2(stats.steps) / 2


def test_half_precision_may_differ_by_its_own_rounding():
    class Half(Duck):
        def score(self, batch):
            noise = 1e-3 * (len(batch) > 1)
            answers = super().score(batch)
            return [
                (torch.tensor(row + noise * (row.argmax() != numpy.arange(5)), dtype=torch.bfloat16), s) for row, s in answers
            ]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(result.exact for result in decode(Half(), range(30), beam=3, max_length=6))


def test_a_state_that_is_overwritten_may_be_where_each_is_used_once():
    """Greedy search asks about every state once; so does who checks it."""

    class InPlace(Duck):
        def start(self, source):
            return [source]

        def score(self, batch):
            for state, prefix in batch:
                state.extend(prefix[-1:])
            return [(bigram(state[0], tuple(state[1:])), state) for state, _ in batch]

    greedy = decode(InPlace(), range(20), beam=1, max_length=8)
    assert [r.hypotheses for r in greedy] == [r.hypotheses for r in decode(Duck(), range(20), beam=1, max_length=8)]


# -- batches ---------------------------------------------------------------------------------------------------------------------


def test_inputs_are_started_together_and_that_time_is_the_models():
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


def test_rows_of_a_step_can_be_grouped_by_length():
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


def test_the_row_budget_grows_where_many_rows_cost_little_more_than_one(monkeypatch):
    """By a clock that the model moves: a call takes a time of its own, and one for each row."""
    now = [0.0]
    monkeypatch.setattr("bestfirst.engine.own_model.perf_counter", lambda: now[0])

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


def test_memory_that_cycles_hold_is_collected_while_a_model_is_decoded():
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
    decode(Leaky(), range(300), beam=4, max_length=8, stats=stats)
    assert gc.isenabled()
    assert stats.steps > 60
    assert most < 50 * stats.steps / 2


def test_inputs_that_are_a_tokenizers_output_are_refused():
    with pytest.raises(ValueError, match=r"got a mapping \(a tokenizer's output\?\); write decode\(model, \[text\]\)"):
        decode(Duck(), {"input_ids": [[1]], "attention_mask": [[1]]})


def test_a_probability_of_a_model_is_what_its_tokens_add_up_to():
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
    assert model.read("<s><s>the cat").payload.tokens == (2, *once)  # who asks for two gets two
