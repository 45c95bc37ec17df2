"""Processors: Hugging Face's logits processors, called for hypotheses of mixed lengths and inputs.

A processor looks at `input_ids` and their length, so rows are handed over in groups of one length, prompt and padding included:
log-probabilities for beam search, the model's scores as they are for greedy search. One that maps a row to its input by its
place in the batch is asked for one input at a time.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from transformers.generation import logits_process

from ..engine.processing import of_one_length
from ..search import Hypothesis
from .refusals import OwnLoop

ROUNDING = 1e-5  # a log-probability that is above 0 by no more than this is 0


class NotMonotonic(Exception):
    """A processor made a token more than certain: no bound holds, so the search must go level by level."""

    def __init__(self, tokens: Sequence[int], highest: float) -> None:
        super().__init__(f"a logits processor lifts a log-probability after {list(tokens)} to {highest:.4g}, above 0")


def banned_tokens(processors: Sequence[Any]) -> frozenset[int] | None:
    """What these processors forbid, if forbidding tokens everywhere is all they do; the engine then needs none of them."""
    banned: set[int] = set()
    for processor in processors:
        if type(processor) is logits_process.SuppressTokensLogitsProcessor:
            banned.update(processor.suppress_tokens.tolist())
        elif type(processor) is logits_process.NoBadWordsLogitsProcessor and all(
            len(word) == 1 for word in processor.sequence_bias
        ):
            banned.update(word[0] for word in processor.sequence_bias)
        else:
            return None
    return frozenset(banned)


class Processors:
    """The processors of one call, as a hook of the engine: (hypotheses, log-probabilities (rows, vocabulary)) in, the same out.

    `monotonic`: raise NotMonotonic when a log-probability comes out above 0. `drops`: see `AllowedTokens`.
    """

    def __init__(
        self,
        processors: Sequence[Any],
        ids: torch.Tensor,
        input_of: Callable[[Hypothesis], int],
        k: int,
        monotonic: bool,
        drops: bool = True,
    ) -> None:
        """`ids` (batch, prompt length) stand before every output; `input_of` tells which of them a hypothesis belongs to."""
        self.ids = ids
        self.input_of = input_of
        self.monotonic = monotonic
        self.drops = drops
        self._apply = [self._adapt(processor, k) for processor in processors]

    def __call__(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        device = scores.device
        scores = scores.to(self.ids.device)  # inputs may be elsewhere than the model
        scores = of_one_length(self._group, batch, [y.length for y in batch], scores)
        if self.monotonic:
            highest = float(scores.max())
            if highest > ROUNDING:
                raise NotMonotonic(batch[int(scores.amax(1).argmax())].tokens, highest)
            if highest > 0:
                scores = scores.clamp(max=0)
        return scores.to(device)

    def one(self, i: int, tokens: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """For what was generated of the i-th input: log-probabilities (1, vocabulary) in, the same out."""
        ids = torch.cat([self.ids[i], torch.tensor(tokens, dtype=self.ids.dtype, device=self.ids.device)])[None]
        out = scores.to(self.ids.device)
        for apply in self._apply:
            out = apply([i], ids, out)
        return out.to(scores.device)

    def _group(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        inputs = [self.input_of(y) for y in batch]
        tokens = torch.tensor([y.tokens for y in batch], dtype=self.ids.dtype, device=self.ids.device).view(len(batch), -1)
        ids = torch.cat([self.ids[inputs], tokens], 1)
        for apply in self._apply:
            scores = apply(inputs, ids, scores)
        return scores

    def _adapt(self, processor: Any, k: int) -> Callable[[list[int], torch.Tensor, torch.Tensor], torch.Tensor]:
        if isinstance(processor, logits_process.PrefixConstrainedLogitsProcessor):
            return AllowedTokens(processor, self.ids.shape[1], k, self.drops)
        if isinstance(processor, logits_process.WhisperNoSpeechDetection):
            return NoSpeech(processor, self.ids)
        if isinstance(processor, tuple(OF_ONE_INPUT)):
            return OneInputAtATime(processor)
        if len(inspect.signature(processor.__call__).parameters) > 2:
            raise ValueError(
                f"{type(processor).__name__} takes more than input_ids and scores, which `generate` does not give it"
            )
        return lambda inputs, ids, scores: processor(ids, scores)


class AllowedTokens:
    """`prefix_allowed_tokens_fn`: only what it allows. For the empty hypothesis, and in greedy search, where one hypothesis is
    all there is, what it allows is forced where other processors forbid it, as Hugging Face does.

    Any other hypothesis that is left with nothing is dropped with `drops`. Without, OwnLoop is raised: if nothing is left to a
    whole beam, Hugging Face forces what is allowed, and what else is in the beam decides.
    """

    def __init__(self, processor: Any, prompt_length: int, k: int, drops: bool) -> None:
        self._drops = drops
        self._processor = processor
        self._allowed = processor._prefix_allowed_tokens_fn
        self._prompt_length = prompt_length
        self._k = k

    def __call__(self, inputs: list[int], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(scores, -inf)
        for row, i in enumerate(inputs):
            allowed = self._allowed(i, ids[row])
            if len(allowed) == 0:
                raise ValueError(
                    f"prefix_allowed_tokens_fn allows nothing after {ids[row].tolist()} of input {i}; "
                    "it must return at least one token, say the end of sequence"
                )
            mask[row, allowed] = 0
        if self._k > 1 and ids.shape[1] > self._prompt_length:
            scores = scores + mask
            if not self._drops and bool(scores.amax(1).isneginf().any()):
                raise OwnLoop("prefix_allowed_tokens_fn allows what another processor forbids")
            return scores
        return torch.cat([self._one(i, ids[row], scores[row]) for row, i in enumerate(inputs)])

    def _one(self, i: int, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        own = logits_process.PrefixConstrainedLogitsProcessor(lambda _, prefix: self._allowed(i, prefix), 1)
        return own(ids[None], scores[None])


def _encoder_repetition(processor: Any, i: int) -> Any:
    one = copy.copy(processor)
    one.encoder_input_ids = processor.encoder_input_ids[i : i + 1]
    return one


def _encoder_ngrams(processor: Any, i: int) -> Any:
    one = copy.copy(processor)
    one.batch_size, one.generated_ngrams = 1, processor.generated_ngrams[i : i + 1]
    return one


OF_ONE_INPUT: dict[type, Callable[[Any, int], Any]] = {
    logits_process.EncoderRepetitionPenaltyLogitsProcessor: _encoder_repetition,
    logits_process.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
}
"""Processors that know the inputs, and how to make one that knows the i-th only."""


class OneInputAtATime:
    """A processor that knows the inputs: each row is handed to one that knows its own."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._make = next(make for kind, make in OF_ONE_INPUT.items() if isinstance(processor, kind))
        self._made: dict[int, Any] = {}

    def __call__(self, inputs: list[int], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._of(i)(ids[row, None], scores[row, None]) for row, i in enumerate(inputs)])

    def _of(self, i: int) -> Any:
        if i not in self._made:
            self._made[i] = self._make(self._processor, i)
        return self._made[i]


class NoSpeech:
    """Whisper's detector of silence, which changes nothing but looks at the first step of all inputs in one go."""

    def __init__(self, processor: Any, ids: torch.Tensor) -> None:
        self._processor = processor
        if processor.start_of_trans_offset > 1:
            processor(ids, None)  # runs the model itself
        else:
            processor._no_speech_prob = torch.zeros(len(ids))

    def __call__(self, inputs: list[int], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        processor = self._processor
        if ids.shape[1] == processor.begin_index and processor.start_of_trans_offset <= 1:
            probabilities = scores.softmax(-1)[:, processor.no_speech_token]
            for i, probability in zip(inputs, probabilities.tolist(), strict=True):
                processor._no_speech_prob[i] = probability
        return scores
