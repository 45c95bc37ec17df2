"""Settings of `generate` to compare: a pairwise sample of all factors, and random combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import inf
from typing import Any

import torch
import transformers
from packaging import version
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList, WatermarkingConfig

from engine.builders import ARCHITECTURES, EOS, VOCABULARY

NEW_TOKENS = 12


class Even(LogitsProcessor):
    """Halves the probability of odd tokens after an even one: a custom processor that lowers scores."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        odd = torch.arange(scores.shape[1], device=scores.device) % 2 == 1
        return torch.where((input_ids[:, -1:] % 2 == 0) & odd, scores - 0.7, scores)


class Lift(LogitsProcessor):
    """Lifts a few tokens above log-probability 0 at every fourth length: a custom processor that breaks monotonicity."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        lifted = scores.clone()
        if input_ids.shape[1] % 4 == 3:
            lifted[:, 5:9] += 6.0
        return lifted


class EndsIn(StoppingCriteria):
    """Ends an output after certain tokens, EOS or not."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        return torch.isin(input_ids[:, -1], self.tokens.to(input_ids.device))


def allowed(i: int, ids: torch.Tensor) -> list[int]:
    """A constraint that differs by input and leaves more than enough continuations."""
    return [token for token in range(1, VOCABULARY) if token == EOS or (token + int(ids[-1]) + i) % 3 != 0]


def processors(*made: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"logits_processor": LogitsProcessorList(list(made))}


PROCESSORS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "min_length": lambda: {"min_length": 8},
    "min_new_tokens": lambda: {"min_new_tokens": 6},
    "several eos": lambda: {"eos_token_id": [EOS, 7, 12]},
    "no eos": lambda: {"eos_token_id": None, "pad_token_id": 0},
    "forced_bos_token_id": lambda: {"forced_bos_token_id": 9},
    "forced_eos_token_id": lambda: {"forced_eos_token_id": EOS},
    "bad_words_ids": lambda: {"bad_words_ids": [[5], [6, 7], [8, 9, 10]]},
    "no_repeat_ngram_size": lambda: {"no_repeat_ngram_size": 2},
    "repetition_penalty": lambda: {"repetition_penalty": 1.7},
    "encoder_no_repeat_ngram_size": lambda: {"encoder_no_repeat_ngram_size": 1},
    "encoder_repetition_penalty": lambda: {"encoder_repetition_penalty": 1.5},
    "prefix_allowed_tokens_fn": lambda: {"prefix_allowed_tokens_fn": allowed},
    "suppress_tokens": lambda: {"suppress_tokens": [4, 5, 6, 20]},
    "begin_suppress_tokens": lambda: {"begin_suppress_tokens": [4, 10, 30]},
    "sequence_bias below": lambda: {"sequence_bias": [[[5], -2.0], [[6, 7], -4.0]]},
    "sequence_bias above": lambda: {"sequence_bias": [[[5], 3.0], [[6, 7], 4.0], [[9], -1.0]]},
    "exponential_decay_length_penalty": lambda: {"exponential_decay_length_penalty": (3, 1.4)},
    "renormalize_logits": lambda: {"renormalize_logits": True, "suppress_tokens": [4, 5, 6]},
    "watermarking_config": lambda: {"watermarking_config": WatermarkingConfig(bias=2.5, seeding_scheme="lefthash")},
    "custom processor": processors(Even()),
    "custom processor above": processors(Lift()),
    "stopping_criteria": lambda: {"stopping_criteria": StoppingCriteriaList([EndsIn(5, 9, 14, 21, 33)])},
    "several": lambda: {"min_length": 5, "no_repeat_ngram_size": 3, "forced_eos_token_id": EOS, "repetition_penalty": 1.2},
}
if version.parse(transformers.__version__) < version.parse("5.22"):
    del PROCESSORS["encoder_repetition_penalty"]  # Hugging Face's affects the first rows of a batch only
RISING = {"sequence_bias above", "exponential_decay_length_penalty", "watermarking_config", "custom processor above"}
"""Processors that can lift log-probabilities above 0."""

FACTORS: dict[str, list[Any]] = {
    "architecture": list(ARCHITECTURES),
    "processor": list(PROCESSORS),
    "length_penalty": [-0.5, 0.0, 0.6, 1.0, 2.0],
    "early_stopping": [False, True, "never"],
    "num_beams": [1, 2, 4, 8],
    "nbest": [1, inf],
    "batch": [1, 3],
}
Setting = dict[str, Any]


def pairwise(seed: int) -> list[Setting]:
    """A small sample with every pair of values of two factors."""
    rng = random.Random(seed)
    missing = {
        ((a, x), (b, y)) for a, b in combinations(FACTORS, 2) for x, y in product(range(len(FACTORS[a])), range(len(FACTORS[b])))
    }
    sample = []
    while missing:
        (a, x), (b, y) = rng.choice(sorted(missing))
        tries = [{name: rng.randrange(len(values)) for name, values in FACTORS.items()} | {a: x, b: y} for _ in range(30)]
        best = max(tries, key=lambda choice: len(missing & _pairs(choice)))
        missing -= _pairs(best)
        sample.append({name: FACTORS[name][place] for name, place in best.items()})
    return sample


def _pairs(choice: dict[str, int]) -> set[Any]:
    return set(combinations(choice.items(), 2))


def at_random(seed: int, n: int) -> Iterator[Setting]:
    """`n` combinations, drawn uniformly."""
    rng = random.Random(seed)
    return ({name: rng.choice(values) for name, values in FACTORS.items()} for _ in range(n))


def arguments(setting: Setting) -> dict[str, Any]:
    """The setting as `generate` takes it."""
    k = setting["num_beams"]
    return {
        "num_beams": k,
        "num_return_sequences": int(min(setting["nbest"], k)),
        "length_penalty": setting["length_penalty"],
        "early_stopping": setting["early_stopping"],
        "max_new_tokens": NEW_TOKENS,
        "return_dict_in_generate": True,
        "output_scores": True,
        **PROCESSORS[setting["processor"]](),
    }
