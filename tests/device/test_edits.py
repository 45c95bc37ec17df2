"""Hugging Face's logits processors as data: the kernel changes a row's log-probabilities as they do, and searches with them
equal those of the host."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from device import interpreter  # noqa: F401  isort: skip  before any kernel

import bestfirst
from bestfirst import Stats
from bestfirst.engine.device.kernels.answers import PROGRAM, RULES
from bestfirst.engine.device.kernels.logits_kernels import edit
from bestfirst.integrations.processors import NotData, Processors, as_edits
from bestfirst.models.transformers import TransformersModel
from bestfirst.search import Successors
from device.test_search import SCORES, STOPS, Toys, assert_same_result, job, reference, run, session_of
from engine.builders import ARCHITECTURES
from generate.differences import padded
from toys import random_toy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 12
SOURCES = torch.tensor([[3, 4, 5, 4, 5, 6, 0, 0], [7, 3, 7, 3, 4, 2, 9, 0]])
BIASES = [[[3], -0.5], [[4, 5], -1.0], [[2, 4, 5], -2.0], [[6, 5], -0.25], [[9, 9, 9, 9, 8], -1.0], [[3, 4], -np.inf]]
PROCESSORS = {
    "min length": lambda: [hf.MinLengthLogitsProcessor(5, [0, 1])],
    "min new tokens": lambda: [hf.MinNewTokensLengthLogitsProcessor(1, 3, 0)],
    "suppressed": lambda: [hf.SuppressTokensLogitsProcessor([2, 11, 40]), hf.SuppressTokensAtBeginLogitsProcessor([3, 4], 1)],
    "forced": lambda: [hf.ForcedBOSTokenLogitsProcessor(7), hf.ForcedEOSTokenLogitsProcessor(6, [0, 1])],
    "bad words": lambda: [hf.NoBadWordsLogitsProcessor([[3], [4, 5], [2, 4, 5], [9] * 8], eos_token_id=0)],
    "sequence bias": lambda: [hf.SequenceBiasLogitsProcessor(BIASES)],
    "1-grams": lambda: [hf.NoRepeatNGramLogitsProcessor(1)],
    "2-grams": lambda: [hf.NoRepeatNGramLogitsProcessor(2)],
    "3-grams": lambda: [hf.NoRepeatNGramLogitsProcessor(3)],
    "2-grams of the source": lambda: [hf.EncoderNoRepeatNGramLogitsProcessor(2, SOURCES)],
    "repetition": lambda: [hf.RepetitionPenaltyLogitsProcessor(1.7)],
    "repetition beyond the prompt": lambda: [hf.RepetitionPenaltyLogitsProcessor(0.6, prompt_ignore_length=1)],
    "repetition of the source": lambda: [hf.EncoderRepetitionPenaltyLogitsProcessor(2.5, SOURCES)],
    "temperature": lambda: [hf.TemperatureLogitsWarper(0.7)],
    "all in a row": lambda: [
        hf.SequenceBiasLogitsProcessor([[[3], -0.5], [[4, 5], -1.0]]),
        hf.EncoderRepetitionPenaltyLogitsProcessor(1.2, SOURCES),
        hf.RepetitionPenaltyLogitsProcessor(1.3),
        hf.NoRepeatNGramLogitsProcessor(2),
        hf.EncoderNoRepeatNGramLogitsProcessor(3, SOURCES),
        hf.MinLengthLogitsProcessor(3, 0),
        hf.ForcedEOSTokenLogitsProcessor(9, 0),
        hf.LogitNormalization(),
    ],
}


def as_data(processors, ids=((1,), (1,)), start=1, raw=False):
    ids = torch.tensor(ids)
    return as_edits(processors, ids, VOCABULARY, Processors(processors, ids, lambda y: 0, 2, False), start, raw)


def check_kernel(each, ids, dice, block):
    """Rows of two inputs: the last prompt token and 0 to 6 others; lists of every kind, longer and shorter than a block."""
    rows, lengths = 24, 8
    inputs = [dice.randrange(2) for _ in range(rows)]
    tokens = [[ids[i][-1], *(dice.choice((0, 3, 4, 5, 7, 9)) for _ in range(dice.randrange(7)))] for i in inputs]
    paths, node_token = torch.zeros(rows * lengths, lengths, dtype=torch.int32), torch.zeros(rows * lengths, dtype=torch.int32)
    for row, prefix in enumerate(tokens):
        nodes = torch.arange(len(prefix), dtype=torch.int32) + row * lengths
        paths[row * lengths, : len(prefix)], node_token[nodes.long()] = nodes, torch.tensor(prefix, dtype=torch.int32)
    logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1))
    rules = torch.zeros(2, RULES.value, dtype=torch.int32)
    rules[:, PROGRAM.value] = 2
    code = torch.from_numpy(np.frombuffer(each[0].code, np.int32).copy())
    programs = torch.zeros(3, len(code) + 1, dtype=torch.int32)
    programs[1, : len(code)] = code
    given = torch.zeros(2, 200, dtype=torch.int32)
    for i in range(2):
        given[i, : len(each[i].given)] = torch.from_numpy(each[i].given)
    place = [
        torch.tensor(x, dtype=torch.int32) for x in ([r * lengths for r in range(rows)], inputs, [len(y) - 1 for y in tokens])
    ]
    out, counters = torch.full((rows, VOCABULARY), torch.nan), torch.tensor([rows - 1, *[0] * 7], dtype=torch.int32)
    arrays = (logits, out, counters, *place, rules, programs, given, paths, node_token)
    arrays = tuple(array.to(DEVICE) for array in arrays)
    logits_there, out_there, *others = arrays
    tables = logits_there, VOCABULARY, out_there, VOCABULARY
    edit[(rows,)](*tables, *others, VOCABULARY, lengths, 1, programs.shape[1], given.shape[1], LP=8, BLOCK=block, num_warps=1)
    found = arrays[1].cpu()
    assert bool(found[-1].isnan().all())  # an unused row
    for row in range(rows - 1):
        raw = each[0].raw
        seen = logits[row, None] if raw else logits[row, None].log_softmax(-1)
        expected = each[0].process(inputs[row], tokens[row][1:], seen)[0]
        torch.testing.assert_close(found[row], expected.log_softmax(-1) if raw else expected)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("block", [4, 16])
def test_the_kernel_equals_the_processors(name, block):
    check_kernel(as_data(PROCESSORS[name]()), [[1], [1]], random.Random(name), block)


PROMPTS = [[0, 0, 5, 3, 4, 9, 4], [7, 3, 4, 5, 5, 3, 9]]  # the first is padded
AFTER_PROMPTS = {
    "min length": lambda: [hf.MinLengthLogitsProcessor(9, [0, 1])],
    "min new tokens": lambda: [hf.MinNewTokensLengthLogitsProcessor(7, 3, 0)],
    "suppressed": lambda: [hf.SuppressTokensLogitsProcessor([2, 11]), hf.SuppressTokensAtBeginLogitsProcessor([3, 4], 7)],
    "forced": lambda: [hf.ForcedBOSTokenLogitsProcessor(7), hf.ForcedEOSTokenLogitsProcessor(10, [0, 1])],
    "bad words": lambda: [hf.NoBadWordsLogitsProcessor([[3], [4, 5], [9, 4, 5], [5, 3, 4, 9, 4, 7]], eos_token_id=0)],
    "sequence bias": lambda: [hf.SequenceBiasLogitsProcessor([*BIASES, [[*PROMPTS[1], 8], -1.0], [[2, *PROMPTS[1], 8], -1.0]])],
    "repetition beyond the prompt": lambda: [hf.RepetitionPenaltyLogitsProcessor(0.6, prompt_ignore_length=7)],
    "repetition of a part of it": lambda: [hf.RepetitionPenaltyLogitsProcessor(1.6, prompt_ignore_length=3)],
}


@pytest.mark.parametrize("name", {**PROCESSORS, **AFTER_PROMPTS})
@pytest.mark.parametrize("raw", [False, True])
def test_the_kernel_sees_a_language_models_prompt_and_its_padding(name, raw):
    """Also with unnormalised scores, as in greedy search."""
    make = {**PROCESSORS, **AFTER_PROMPTS}[name]
    check_kernel(as_data(make(), PROMPTS, raw=raw), PROMPTS, random.Random(name), 4)


def test_unknown_processors_are_not_converted_to_data():
    class Mine(hf.NoRepeatNGramLogitsProcessor):
        pass

    for processors in (
        [hf.NoRepeatNGramLogitsProcessor(2), Mine(2)],
        [hf.EncoderRepetitionPenaltyLogitsProcessor(2.5, SOURCES[:1])],  # of another number of inputs
        [hf.NoBadWordsLogitsProcessor([[VOCABULARY]])],  # transformers raises an error
        [hf.SequenceBiasLogitsProcessor([[[i, 3], -0.5] for i in range(1, 71)])],  # more operations than the device runs
    ):
        with pytest.raises(NotData, match="searches of the device"):
            as_data(processors)


def log_softmax(x):
    """Sums in the kernel's order: bit-identical, so that ties here are ties there."""
    wide = np.full(8, -np.inf, np.float32)
    wide[: len(x)] = x.numpy()
    with np.errstate(invalid="ignore"):
        total = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    return x if np.isnan(total) else torch.from_numpy(x.numpy() - total)


class EditedToys(Toys):
    """Toys whose log-probabilities Hugging Face's processors change."""

    def __init__(self, toys, each):
        super().__init__(toys)
        self.each = each

    def successors(self, index, prefix, width, temperature=1.0):
        row = self.each[index].process(index, prefix, log_softmax(self.logits(index, prefix))[None])[0].clamp(max=0)
        values, tokens = row.sort(descending=True, stable=True)
        found = [(v, t) for v, t in zip(values[:width].tolist(), tokens[:width].tolist(), strict=True) if v > -torch.inf]
        return Successors([value for value, _ in found], [token for _, token in found])


class Normalization(hf.LogitNormalization):
    """Hugging Face's normalisation, summed in the kernel's order."""

    def __call__(self, input_ids, scores):
        return log_softmax(scores[0])[None]


SOURCE = torch.tensor([[2, 3, 4, 2, 3, 1]])
PLAIN = [name for name, score in SCORES.items() if score.plain]  # at a temperature there are no edits


def random_processors(rng):
    """Some processors in random order, and the same ones for the host."""
    choices = [
        hf.SequenceBiasLogitsProcessor([[[2], -0.5], [[3, 4], -1.0], [[1, 4], -1.0], [[5, 5], -2.0]]),
        hf.EncoderRepetitionPenaltyLogitsProcessor(1.2, SOURCE),
        hf.RepetitionPenaltyLogitsProcessor(1.3),
        hf.NoRepeatNGramLogitsProcessor(rng.randint(1, 3)),
        hf.EncoderNoRepeatNGramLogitsProcessor(2, SOURCE),
        hf.NoBadWordsLogitsProcessor([[2, 3], [4], [5, 5, 1]]),
        hf.MinLengthLogitsProcessor(3, 0),
        hf.ForcedBOSTokenLogitsProcessor(3),
        hf.ForcedEOSTokenLogitsProcessor(5, 0),
        hf.SuppressTokensAtBeginLogitsProcessor([1, 2], 1),
        hf.LogitNormalization(),
    ]
    some = [each for each in choices if rng.random() < 0.35]
    rng.shuffle(some)
    return some, [Normalization() if type(each) is hf.LogitNormalization else each for each in some]


@pytest.mark.skipif(torch.cuda.is_available(), reason="toys are asked by the host: nothing for a graph")
@pytest.mark.parametrize("stop", STOPS)
def test_searches_with_edits_equal_those_of_the_host(cases, tally, stop):
    """Of three inputs, two have edits of their own, one has none; answers, scores and calls, whatever is scored ahead."""
    for number in cases(1, full=60):
        rng = random.Random(f"edits {stop} {number}")
        k, n_max, rows, score = rng.choice((2, 3, 5)), rng.randint(3, 6), rng.choice((3, 16)), rng.choice(PLAIN)
        kind = rng.choice(("ties", "peaked"))
        n, truncated, vocabulary = rng.randint(1, k), rng.random() < 0.6, 6
        ids, each, encoded = torch.tensor([[vocabulary]]), [], []
        for index in range(3):
            mine, theirs = random_processors(rng) if index else ([], [])
            own = Processors(theirs, ids, lambda y: 0, 2, False)
            encoded += as_edits(mine, ids, vocabulary, own, 1)
            each.append(SimpleNamespace(process=lambda i, *rest, own=own: own.one(0, *rest)))
        toys = EditedToys([random_toy(kind, vocabulary, f"edits {number} {seed}") for seed in range(3)], each)
        room = {"code": max(len(edits.code) for edits in encoded) // 4, "given": max(len(edits.given) for edits in encoded) + 1}
        session = session_of(toys, vocabulary, k, n, n_max, 3, 2000, **room)
        session._rows_for = lambda active, rows=rows: rows
        session.weights.numbers = [0, 1, 2]
        rules = {"strategy": STOPS[stop](k), "score": SCORES[score]}
        jobs = [job(index, n_max, nbest=n, accept_truncated=truncated, **rules) for index in range(3)]
        for index in range(1, 3):
            jobs[index].edits = encoded[index]
        found = {done.index: result for done, result in run(session, jobs)}
        for index in range(3):
            assert_same_result(found[index], reference(toys, index, k, n, n_max, min(k + 1, vocabulary), truncated, rules))
        tally("searches on the device, with edits", 3, 0)


ASKED = {
    "n-grams": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2, "min_length": 4},
    "penalties": {"repetition_penalty": 1.4, "encoder_repetition_penalty": 1.3, "renormalize_logits": True},
    "nothing, greedily": {"num_beams": 1},
    "some, greedily": {"num_beams": 1, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_length": 4},
    "tokens": {"bad_words_ids": [[5], [6, 7]], "forced_bos_token_id": 6, "forced_eos_token_id": 2, "begin_suppress_tokens": [4]},
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_drop_in_runs_processors_on_the_device(asked, monkeypatch):
    architecture = ARCHITECTURES["bart"]
    model = architecture.build().to(DEVICE)
    batch = {name: tensor.to(DEVICE) for name, tensor in padded(architecture, architecture.inputs(2, seed=3)).items()}
    settings = {"num_beams": 2, "max_new_tokens": 4, **ASKED[asked]}
    expected = model.generate(**batch, **settings)
    monkeypatch.setattr(TransformersModel, "on_gpu", True)
    stats = Stats()
    found = model.generate(**batch, **settings, custom_generate=bestfirst.generate, stats=stats)
    assert torch.equal(found, expected)
    assert stats.engine == "device"


def test_a_users_processors_are_left_to_generate(monkeypatch):
    class Mine(hf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores - 0.1

    architecture = ARCHITECTURES["bart"]
    model = architecture.build().to(DEVICE)
    batch = {name: tensor.to(DEVICE) for name, tensor in padded(architecture, architecture.inputs(2, seed=3)).items()}
    settings = {"num_beams": 2, "max_new_tokens": 4, "logits_processor": hf.LogitsProcessorList([Mine()])}
    expected = model.generate(**batch, **settings)
    monkeypatch.setattr(TransformersModel, "on_gpu", True)
    stats = Stats()
    assert torch.equal(model.generate(**batch, **settings, custom_generate=bestfirst.generate, stats=stats), expected)
    assert (stats.engine, "Mine" in stats.search) == ("generate", True)
