"""dtype="int8" makes a model of its own, on which best-first search is exact and a result depends on its input alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import bestfirst
from bestfirst.engine.steps.bart import as_numpy, read_bart
from bestfirst.engine.steps.native import calls, registers
from bestfirst.engine.steps.native.decoder import NativeDecoder
from bestfirst.models.reader import Prompt
from bestfirst.scoring import Coverage, LogProbability
from engine.builders import ARCHITECTURES

DATA = Path(__file__).parents[1] / "data"
GERMAN, ENGLISH = ((DATA / f"tatoeba-200.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en"))

pytestmark = pytest.mark.skipif(registers.HERE.eight is None, reason="this CPU has neither VNNI nor AVX2")


@pytest.fixture(scope="module")
def model():
    return bestfirst.load(dtype="int8")


@pytest.fixture(scope="module")
def whole(model):
    return found(bestfirst.decode(model, GERMAN))


def found(results):
    """Tokens and scores, to the last bit."""
    return [[(answer.tokens, answer.score) for answer in result.hypotheses] for result in results]


@pytest.mark.parametrize("size", [1, 7])
def test_results_do_not_depend_on_the_batch(model, whole, size):
    some = GERMAN[:49]
    batches = [some[first : first + size] for first in range(0, len(some), size)]
    assert [each for batch in batches for each in found(bestfirst.decode(model, batch))] == whole[: len(some)]


def test_results_do_not_depend_on_the_order_or_the_row_budget(model, whole):
    order = random.Random(0).sample(range(len(GERMAN)), len(GERMAN))
    assert found(bestfirst.decode(model, [GERMAN[i] for i in order], row_budget=9)) == [whole[i] for i in order]


@pytest.mark.parametrize("sizes", [{"encoder_ffn_dim": 37, "decoder_ffn_dim": 33}, {"d_model": 20}])
def test_results_do_not_depend_on_the_row_budget_whatever_the_models_sizes(sizes, tmp_path):
    """Every matmul runs in int8, also one whose outputs are no multiple of a register."""
    ARCHITECTURES["bart"].build(seed=4, **sizes).save_pretrained(tmp_path)
    model, inputs = bestfirst.load(tmp_path, dtype="int8"), ARCHITECTURES["bart"].inputs(20)
    by_budget = [found(bestfirst.decode(model, inputs, beam=4, nbest=4, max_length=8, row_budget=n)) for n in (1, 7, 64)]
    assert by_budget[0] == by_budget[1] == by_budget[2]


@pytest.mark.parametrize("settings", [{}, {"nbest": 5}, {"length_penalty": 1.0, "nbest": 2}])
def test_best_first_search_equals_beam_search(model, settings):
    ours, beam = (bestfirst.decode(model, GERMAN[:25], strategy=strategy, **settings) for strategy in ("best-first", "beam"))
    assert all(result.exact for result in ours)
    assert found(ours) == found(beam)


def test_translations_are_nearly_as_good_as_in_float32(whole):
    """At least 180 of 200 are those of fp32, and BLEU loses less than 0.3."""
    from sacrebleu import corpus_bleu

    usual = bestfirst.load()
    exact = found(bestfirst.decode(usual, GERMAN))
    assert sum(a[0][0] == b[0][0] for a, b in zip(whole, exact, strict=True)) >= 180
    bleu = [corpus_bleu([usual.text(None, each[0][0]) for each in answers], [ENGLISH]).score for answers in (whole, exact)]
    assert bleu[0] > bleu[1] - 0.3


def test_the_model_names_its_dtype(model):
    assert model.dtype_name == "int8"
    assert bestfirst.load().dtype_name == "float32"


def test_a_model_of_transformers_gives_the_same(whole):
    from bestfirst.models.folder import embedded_folder
    from bestfirst.models.transformers import load_transformers

    assert found(bestfirst.decode(load_transformers(embedded_folder(), dtype="int8"), GERMAN[:20])) == whole[:20]


def test_a_score_that_reads_attention_gets_it(model):
    results = bestfirst.decode(model, GERMAN[:3], score=Coverage(0.2, LogProbability()))
    assert all(answer.score < answer.logprob for result in results for answer in result.hypotheses)


def test_int8_is_refused_for_models_that_are_not_compiled():
    wrapped = bestfirst.wrap(ARCHITECTURES["t5"].build())
    wrapped.eight_bits = True
    with pytest.raises(ValueError, match=r"dtype 'int8' is for models that run compiled \(Marian, .*\), not for T5.*; use fp32"):
        bestfirst.decode(wrapped, [[5, 6, 1]])


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_all_layers_in_one_call_equal_the_layers_one_by_one(name):
    """Up to the order of sums, which the compiler chooses; it may move a number to the next of the 127 levels."""
    decoder = NativeDecoder(as_numpy(read_bart(ARCHITECTURES[name].build())), eight_bits=True)
    inputs = [[5, 6, 7, 8, 1], [9, 1], [10, 11, 12, 1]]
    wholes = decoder.whole, decoder.encoder.whole
    assert None not in wholes
    logits, hidden = [], []
    for decoder.whole, decoder.encoder.whole in (wholes, (None, None)):
        tree, sources = decoder.new_tree()
        hidden.append(decoder.encoder(inputs).copy())
        decoder.add_inputs(None, [Prompt(each, ()) for each in inputs], sources)
        slots = tree.allocate(5)
        decoder.step(tree.rows([(2, 0, slots[i], 0, i) for i in range(3)], [1, 1, 1]), tree, sources)
        again = [(7, 1, slots[3], slots[1], 1), (8, 1, slots[4], slots[1], 1)]
        logits.append(decoder.step(tree.rows(again, [2]), tree, sources).copy())
    np.testing.assert_allclose(*hidden, rtol=0.02, atol=0.1)
    np.testing.assert_allclose(*logits, rtol=0.02, atol=0.1)


@pytest.mark.parametrize(("vocabulary", "k"), [(5, 3), (5, 9), (64, 4), (1000, 6), (1000, 100)])
def test_top_k_of_rows_equals_top_k_of_columns(vocabulary, k):
    x = np.random.default_rng(k).normal(size=(7, vocabulary)).astype(np.float32) * 3
    x[1, 3], x[2, 1:] = np.nan, -np.inf
    x[3] = np.round(x[3])  # ties
    banned = np.array([0, 2, vocabulary, -1])
    columns, rows = ((np.empty((7, k), np.float32), np.empty((7, k), np.int64)) for _ in range(2))
    calls.top(np.ascontiguousarray(x.T), banned, *columns)
    calls.row_top(x.copy(), vocabulary, banned, *rows)
    np.testing.assert_allclose(rows[0], columns[0], rtol=1e-5, atol=1e-6)
    finite = np.isfinite(columns[0])
    np.testing.assert_array_equal(rows[1][finite], columns[1][finite])
