"""`processors=`: scores changed by transformers' processors and a user's functions, compared with `generate`."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

import bestfirst
from bestfirst import FunctionModel
from bestfirst.search import BrokenLaw
from engine.builders import ARCHITECTURES, EOS
from toys import random_toy

PROMPTS = [[5, 9, 4], [7, 8, 6, 3, 11], [12, 4]]


def odd_tokens_less(ids: Any, scores: Any) -> Any:
    """Depends on the number of tokens so far and on the last one, so that both matter."""
    scores[:, 1::2] -= 0.05 * ids.shape[1]
    scores[:, 8::3] -= 0.1 * ids[:, -1:]
    return scores


PROCESSORS: dict[str, tuple[Any, bool]] = {  # and whether it is known never to raise a score above 0
    "repetition": (lambda: theirs.RepetitionPenaltyLogitsProcessor(1.7), True),
    "no n-gram twice": (lambda: theirs.NoRepeatNGramLogitsProcessor(2), True),
    "bad words": (lambda: theirs.NoBadWordsLogitsProcessor([[16], [23, 27], [2, 2]], eos_token_id=EOS), True),
    "bias": (lambda: theirs.SequenceBiasLogitsProcessor({(2,): -3.0, (16, 16): -1.0, (23,): -4.0}), True),
    "temperature, normalised": (lambda: [theirs.TemperatureLogitsWarper(0.7), theirs.LogitNormalization()], True),
    "a function": (lambda: odd_tokens_less, False),
}


@cache
def models(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = ARCHITECTURES[name].build()
    return model, bestfirst.wrap(model)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", ["marian", "llama"])
def test_results_equal_generate_with_the_same_processors(name: str, processor: str):
    make, falls = PROCESSORS[processor]
    given = make()
    given = given if isinstance(given, list) else [given]
    model, wrapped = models(name)
    settings: dict[str, Any] = {"beam": 4, "nbest": 2, "max_length": 9, "accept_truncated": True}
    by_level = {"strategy": "beam"} if not falls else {}
    found = bestfirst.decode(wrapped, PROMPTS, processors=given, **settings, **by_level)
    plain = bestfirst.decode(wrapped, PROMPTS, **settings)
    assert [r.best.score for r in found] != [r.best.score for r in plain]
    for prompt, result in zip(PROMPTS, found, strict=True):
        assert result.exact is falls
        out = model.generate(
            torch.tensor([prompt]),
            num_beams=4, num_return_sequences=2, max_new_tokens=9, length_penalty=0.0, early_stopping="never",
            logits_processor=theirs.LogitsProcessorList(given), return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        begun = len(prompt) if name == "llama" else 1
        outputs = [
            tuple(row[begun : begun + len(answer.tokens)])
            for row, answer in zip(out.sequences.tolist(), result.hypotheses, strict=True)
        ]
        assert [answer.tokens for answer in result.hypotheses] == outputs
        assert [a.score for a in result.hypotheses] == pytest.approx(out.sequences_scores.tolist(), abs=1e-4)


def test_the_compiled_model_equals_its_transformers_model():
    compiled = bestfirst.load()
    lines = ["Wo ist der Bahnhof?", "Tom mag keine Äpfel."]
    given = [theirs.RepetitionPenaltyLogitsProcessor(1.5), odd_tokens_less]
    settings: dict[str, Any] = {"beam": 3, "processors": given, "length_penalty": 0.6, "strategy": "beam"}
    ours = bestfirst.decode(compiled, lines, **settings)
    others = bestfirst.decode(bestfirst.wrap(compiled.model, compiled.tokenizer), lines, **settings)
    assert [result.text for result in ours] == [result.text for result in others]
    assert [r.best.score for r in ours] == pytest.approx([r.best.score for r in others], abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_processors_with_a_users_model(seed: int):
    """Equal to a model that returns the processed scores. Functions get arrays, transformers' processors tensors."""
    toy = random_toy("peaked", 5, seed)

    def less(ids: Any, scores: Any) -> Any:
        assert (type(ids), type(scores), scores.dtype) == (np.ndarray, np.ndarray, np.float64)
        return scores - 0.3 * ids.shape[1] * (np.arange(scores.shape[1]) % 2)

    less.never_rises = True  # type: ignore[attr-defined]

    def both(prefix: tuple[int, ...]) -> Any:
        row = np.asarray(toy(prefix), dtype=np.float64)
        row = row - 0.3 * len(prefix) * (np.arange(len(row)) % 2)
        row[[token for token in range(len(row)) if (*prefix, token)[-2:] in list(pairwise(prefix))]] = -inf
        return row

    given = [less, theirs.NoRepeatNGramLogitsProcessor(2)]
    settings: dict[str, Any] = {"beam": 3, "nbest": 3, "max_length": 6}
    (found,) = bestfirst.decode(FunctionModel(toy, 0), [None], processors=given, **settings)
    (wanted,) = bestfirst.decode(FunctionModel(both, 0), [None], **settings)
    assert [a.tokens for a in found.hypotheses] == [a.tokens for a in wanted.hypotheses]
    assert [a.score for a in found.hypotheses] == pytest.approx([a.score for a in wanted.hypotheses], abs=1e-6)
    assert (found.exact, found.calls) == (True, wanted.calls)


@pytest.mark.parametrize("own", [False, True])
def test_at_a_temperature_a_processor_that_forbids_leaves_the_scores_of_others(own: bool):
    """The model bans its PAD; without processors a temperature normalises over all tokens."""
    model = FunctionModel(random_toy("flat", 5, 1), 0) if own else models("marian")[1]
    settings: dict[str, Any] = {"beam": 3, "max_length": 6, "score_options": {"temperature": 2.0}, "accept_truncated": True}
    (plain,) = bestfirst.decode(model, [None if own else PROMPTS[0]], **settings)
    unused = min(set(range(1, 5)) - {*plain.best.tokens})
    for given in (lambda ids, scores: scores, theirs.SuppressTokensLogitsProcessor([unused])):
        given.never_rises = True
        (found,) = bestfirst.decode(model, [None if own else PROMPTS[0]], processors=[given], **settings)
        assert (found.best.tokens, found.best.score) == (plain.best.tokens, pytest.approx(plain.best.score, abs=1e-6))


def test_a_processor_that_raises_a_score_above_0_needs_beam_search():
    model = FunctionModel(lambda prefix: [-0.8, -1.0, -3.0], 0)

    def lift(ids: Any, scores: Any) -> Any:
        scores[:, 2] += 3.5
        return scores

    settings: dict[str, Any] = {"beam": 2, "max_length": 4, "processors": lift}
    with pytest.raises(BrokenLaw, match=r"after \[\] to 0.5, above 0, where no bound holds; use strategy='beam'"):
        bestfirst.decode(model, [None], **settings)
    (found,) = bestfirst.decode(model, [None], strategy="beam", **settings)
    assert (found.hypotheses[0].tokens, found.exact) == ((2, 2, 2, 0), False)
    assert bestfirst.decode(model, [None], strategy="beam", stop="exhausted", **settings)[0].exact


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3], r"functions of \(token ids, scores\), got 3"),
        ([theirs.LogitNormalization], "got <class"),
        ([lambda ids, scores: None], r"processor <lambda> was given scores of shape \(1, 3\) and returned None"),
        ([lambda ids, scores: scores[0]], r"shape \(1, 3\) and returned shape \(3,\)"),
        (
            [theirs.PrefixConstrainedLogitsProcessor(lambda i, ids: [1], 1)],
            "the numbers of a call's inputs; here that is allowed=",
        ),
    ],
)
def test_invalid_processors_are_refused(given: Any, message: str):
    with pytest.raises(ValueError, match=message):
        bestfirst.decode(FunctionModel(lambda prefix: [-2.0, -1.0, -3.0], 0), [None], processors=given)


def test_processors_are_named_in_the_signature_and_not_serialised():
    decoding = bestfirst.Decoding(processors=[odd_tokens_less, theirs.LogitNormalization()])
    assert "processors:odd_tokens_less,LogitNormalization" in decoding.signature
    with pytest.raises(ValueError, match="cannot be written down"):
        decoding.json()
