"""Decoding small models of every architecture in three ways: by the engine, by a plain search, by Hugging Face's beam search."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import GenerationMixin

import bestfirst
from bestfirst.engine.steps.bart import FusedBart
from bestfirst.engine.steps.decoder_step import DecoderStep
from bestfirst.engine.steps.llama import FusedLlama
from bestfirst.engine.steps.t5 import FusedT5
from bestfirst.models import Model, Query, Scored
from bestfirst.models.transformers import TransformersModel
from bestfirst.search import Result
from engine.builders import ARCHITECTURES, EOS, Architecture

K, N, LONGEST = 4, 3, 10
NEAR = 1e-4  # hypotheses whose scores differ by less may swap ranks
NAMES = tuple(ARCHITECTURES)
FUSED: dict[str, type[DecoderStep]] = {
    name: FusedLlama if architecture.decoder_only else FusedT5 if "t5" in name else FusedBart
    for name, architecture in ARCHITECTURES.items()
    if name in NAMES and architecture.decoder in ("native", "fused")
}
Hypotheses = list[tuple[tuple[int, ...], float]]


class Plain(Model):
    """A Hugging Face model as a user's own: each hypothesis is scored alone, from its first token. Its encoder runs once."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = lambda: model  # hidden from the engine, which would run it on a tree
        self.eos = model.eos

    @property
    def model(self) -> TransformersModel:
        return self._model()

    @torch.inference_mode()
    def start(self, source: Any) -> Any:
        prompt = self.model.start(source)
        return dataclasses.replace(prompt, hidden=self.model.encode([prompt])[0][0]) if self.model.encoder_decoder else prompt

    def score(self, batch: Any) -> list[Scored]:
        return self.model.score([Query(state, prefix) for state, prefix in batch])

    def source_length(self, source: Any) -> int:
        return self.model.source_length(source)

    def max_length(self, source: Any) -> int:
        return self.model.max_length(source)


def decode(model: Model, inputs: list[Any], row_budget: int, **settings: Any) -> list[Result]:
    """As in Hugging Face, hypotheses that are unfinished at the maximum length count."""
    settings = {"beam": K, "nbest": N, "max_length": LONGEST, **settings}
    return bestfirst.decode(model, inputs, row_budget=row_budget, accept_truncated=True, **settings)


def hypotheses(result: Result) -> Hypotheses:
    return [(answer.tokens, answer.score) for answer in result.hypotheses]


def generate(model: Any, architecture: Architecture, source: Any, use_cache: bool = True) -> Hypotheses:
    """Hugging Face's beam search with log-probability as the score. Whisper's own `generate` would add timestamps."""
    forced = int(architecture.forced is not None)
    inputs = source[None].to(model.device) if architecture.speech else torch.tensor([source], device=model.device)
    mask = {} if architecture.speech else {"attention_mask": torch.ones_like(inputs)}
    output = GenerationMixin.generate(
        model,
        inputs,
        **mask,
        num_beams=K,
        num_return_sequences=N,
        length_penalty=0.0,
        early_stopping="never",
        max_new_tokens=LONGEST + forced,
        do_sample=False,
        use_cache=use_cache,
        return_dict_in_generate=True,
        output_scores=True,
    )
    given = len(source) if architecture.decoder_only else 1 + forced
    texts = [tokens[given:] for tokens in output.sequences.tolist()]
    texts = [tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens for tokens in texts]
    return list(zip(map(tuple, texts), output.sequences_scores.tolist(), strict=True))


def same(ours: Hypotheses, theirs: Hypotheses) -> bool:
    """Whether scores are equal at every rank, and tokens too, except where a neighbour's score is nearly the same."""
    scores = [score for _, score in theirs]
    if len(ours) != len(theirs) or any(abs(mine[1] - score) > NEAR for mine, score in zip(ours, scores, strict=True)):
        return False
    for i, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        tied = i == len(scores) - 1 or any(abs(scores[i] - other) < NEAR for j, other in enumerate(scores) if j != i)
        if mine[0] != its[0] and not tied:
            return False
    return True


def assert_correct(model: TransformersModel, architecture: Architecture, n: int = 3, use_cache: bool = True) -> None:
    inputs = architecture.inputs(n, seed=5)
    for rows in (1, 7):
        for source, result in zip(inputs, decode(model, inputs, rows), strict=True):
            assert same(hypotheses(result), generate(model.model, architecture, source, use_cache))
