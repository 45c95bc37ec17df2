"""Processors: Hugging Face's logits processors, called on batches of hypotheses of mixed lengths and inputs; and their
translation into `Edits`, data that the kernels of a GPU's search apply (`as_edits`).

A processor reads `input_ids` and their length, so it is called on groups of rows of one length, prompt and padding included:
with log-probabilities for beam search, with the model's raw scores for greedy search. A processor that finds a row's input by its
place in the batch is called for one input at a time. Only exact types are translated: a subclass may do something else.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ..engine import logits_edits
from ..engine.logits_edits import Edits, Operation
from ..engine.logits_processing import apply_by_length
from ..search import Hypothesis
from .outputs import ScoreRecord
from .refusals import OwnLoop

ROUNDING = 1e-5  # a log-probability above 0 by no more than this counts as 0


class NotMonotonic(Exception):
    """A processor raised a log-probability above 0: no bound holds, so the search must go level by level."""

    def __init__(self, tokens: Sequence[int], highest: float) -> None:
        super().__init__(f"a logits processor lifts a log-probability after {list(tokens)} to {highest:.4g}, above 0")


def banned_tokens(processors: Sequence[Any]) -> frozenset[int] | None:
    """The tokens to forbid everywhere, if that is all these processors do (the engine then needs none of them); else None."""
    banned: set[int] = set()
    for processor in processors:
        if type(processor) is hf.SuppressTokensLogitsProcessor:
            banned.update(processor.suppress_tokens.tolist())
        elif type(processor) is hf.NoBadWordsLogitsProcessor and all(len(word) == 1 for word in processor.sequence_bias):
            banned.update(word[0] for word in processor.sequence_bias)
        else:
            return None
    return frozenset(banned)


class Processors:
    """The processors of one call as the engine's hook: processes the log-probabilities (rows, vocabulary) of hypotheses.

    `monotonic`: raise NotMonotonic when a result is above 0. `drops`: see `AllowedTokens`. `record`: keeps the results.
    """

    def __init__(
        self,
        processors: Sequence[Any],
        ids: torch.Tensor,
        input_of: Callable[[Hypothesis], int],
        k: int,
        monotonic: bool,
        drops: bool = True,
        record: ScoreRecord | None = None,
    ) -> None:
        """`ids` (batch, prompt length) precede every output; `input_of` returns the number of a hypothesis' input."""
        self.ids = ids
        self.input_of = input_of
        self.monotonic = monotonic and bool(processors)
        self.drops = drops
        self.record = record
        self._apply = [self._adapt(per_input(processor, len(ids)), k) for processor in processors]

    def __call__(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        return apply_by_length(self._same_length, batch, [y.length for y in batch], scores)

    def one(self, i: int, tokens: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """Process the log-probabilities (1, vocabulary) after the generated `tokens` of the i-th input."""
        return self._apply_all([i], torch.tensor([tokens]), scores)

    def rows(self, inputs: list[int], tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Process and record log-probabilities (rows, vocabulary) after the generated `tokens` (rows, length) of these inputs."""
        scores = self._apply_all(inputs, tokens, scores)
        if self.record is not None:
            self.record.note(inputs, tokens, scores)
        return scores

    def _apply_all(self, inputs: list[int], tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids, device = torch.cat([self.ids[inputs], tokens.to(self.ids)], 1), scores.device
        scores = scores.to(ids.device)  # inputs may be on another device than the model
        for apply in self._apply:
            scores = apply(inputs, ids, scores)
        if self.monotonic and (highest := float(scores.max())) > 0:
            if highest > ROUNDING:
                raise NotMonotonic(tokens[int(scores.amax(1).argmax())].tolist(), highest)
            scores = scores.clamp(max=0)
        return scores.to(device)

    def _same_length(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        tokens = torch.tensor([y.tokens for y in batch], dtype=self.ids.dtype, device=self.ids.device).view(len(batch), -1)
        return self.rows([self.input_of(y) for y in batch], tokens, scores)

    def _adapt(self, processor: Any, k: int) -> Callable[[list[int], torch.Tensor, torch.Tensor], torch.Tensor]:
        """The processor as a function of the inputs' numbers, `ids` (rows, length) and scores (rows, vocabulary)."""
        if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
            return AllowedTokens(processor._prefix_allowed_tokens_fn, self.ids.shape[1], k, self.drops)
        if isinstance(processor, hf.WhisperNoSpeechDetection):
            return NoSpeech(processor, self.ids)
        if (make := next((make for kind, make in OF_ONE_INPUT.items() if isinstance(processor, kind)), None)) is not None:
            own = cache(partial(make, processor))
            return lambda inputs, ids, scores: torch.cat([own(i)(ids[n, None], scores[n, None]) for n, i in enumerate(inputs)])
        if isinstance(starts := getattr(processor, IGNORED, None), torch.Tensor):
            return lambda inputs, ids, scores: _copy_with(processor, **{IGNORED: starts[inputs]})(ids, scores)
        if len(inspect.signature(processor.__call__).parameters) > 2:
            name = type(processor).__name__
            raise ValueError(f"{name} takes more than input_ids and scores, which `generate` does not give it")
        return lambda inputs, ids, scores: processor(ids, scores)


@dataclass
class AllowedTokens:
    """`prefix_allowed_tokens_fn`: forbids all tokens but the allowed ones.

    For the empty hypothesis, and in greedy search, where there is one hypothesis only, allowed tokens are forced where other
    processors forbid them, as Hugging Face does. Any other hypothesis without a possible token is dropped if `drops`. Otherwise
    OwnLoop is raised: Hugging Face forces allowed tokens if none is possible in the whole beam, which depends on the other rows.
    """

    allowed: Callable[[int, torch.Tensor], list[int]]
    prompt_length: int
    k: int
    drops: bool

    def __call__(self, inputs: list[int], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = [self.allowed(i, ids[row]) for row, i in enumerate(inputs)]
        for i, prefix, tokens in zip(inputs, ids, allowed, strict=True):
            if len(tokens) == 0:
                raise ValueError(
                    f"prefix_allowed_tokens_fn allows nothing after {prefix.tolist()} of input {i}; "
                    "it must return at least one token, say the end of sequence"
                )
        if self.k == 1 or ids.shape[1] == self.prompt_length:
            theirs = [hf.PrefixConstrainedLogitsProcessor(lambda *_, own=tokens: own, 1) for tokens in allowed]
            return torch.cat([each(ids[row, None], scores[row, None]) for row, each in enumerate(theirs)])
        mask = torch.full_like(scores, -inf)
        for row, tokens in enumerate(allowed):
            mask[row, tokens] = 0
        scores = scores + mask
        if not self.drops and bool(scores.amax(1).isneginf().any()):
            raise OwnLoop("prefix_allowed_tokens_fn allows what another processor forbids")
        return scores


def _copy_with(processor: Any, **attributes: Any) -> Any:
    other = copy.copy(processor)
    vars(other).update(attributes)
    return other


IGNORED = "prompt_ignore_length"  # of a repetition penalty: leading tokens to ignore; since transformers 5.23 each row's padding


def per_input(processor: Any, inputs: int) -> Any:
    """The processor with its values for each row of `generate`'s expanded batch reduced to one for each input."""
    starts = getattr(processor, IGNORED, None)
    if not isinstance(starts, torch.Tensor) or len(starts) % inputs:
        return processor
    return _copy_with(processor, **{IGNORED: starts[:: len(starts) // inputs]})


def for_first_rows(processor: Any, rows: int) -> Any:
    """The processor, for the first rows of a batch."""
    starts = getattr(processor, IGNORED, None)
    return _copy_with(processor, **{IGNORED: starts[:rows]}) if isinstance(starts, torch.Tensor) else processor


OF_ONE_INPUT: dict[type, Callable[[Any, int], Any]] = {
    hf.EncoderRepetitionPenaltyLogitsProcessor: lambda p, i: _copy_with(p, encoder_input_ids=p.encoder_input_ids[i : i + 1]),
    hf.EncoderNoRepeatNGramLogitsProcessor: lambda p, i: _copy_with(
        p, batch_size=1, generated_ngrams=p.generated_ngrams[i : i + 1]
    ),
}
"""Processors that hold data of all inputs, and how to make one that holds those of the i-th only."""


class NoSpeech:
    """Whisper's silence detector: changes no scores, but needs each input's first step, which here do not come in one batch."""

    def __init__(self, processor: Any, ids: torch.Tensor) -> None:
        self._processor = processor
        if processor.start_of_trans_offset > 1:
            processor(ids, None)  # it runs the model itself
        else:
            processor._no_speech_prob = torch.zeros(len(ids))

    def __call__(self, inputs: list[int], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        processor = self._processor
        if ids.shape[1] == processor.begin_index and processor.start_of_trans_offset <= 1:
            probabilities = scores.softmax(-1)[:, processor.no_speech_token]
            for i, probability in zip(inputs, probabilities.tolist(), strict=True):
                processor._no_speech_prob[i] = probability
        return scores


MOST_OPERATIONS = 64  # with more, the device's search is not faster than `generate`'s own loop


class NotData(Exception):
    """A processor cannot be expressed as `Edits`."""


def as_edits(
    processors: Sequence[Any], ids: torch.Tensor, vocabulary: int, process: Processors, start: int, raw: bool = False
) -> list[Edits]:
    """The processors as `Edits`, one for each input. NotData where that is not possible.

    Of `ids` (batch, prompt length), padding included, a row on the device holds the last `start` tokens only. `raw`: processors
    see the model's scores without log-softmax (greedy search). `process.one` is what a search on the host calls instead.
    """
    operations: list[Operation] = []
    for processor in processors:
        known = KNOWN.get(type(processor), lambda _: None)(per_input(processor, len(ids)))
        if known is None or not all(_is_supported(each, len(ids), vocabulary) for each in known):
            raise NotData(f"{type(processor).__name__} is not known to the searches of the device")
        operations += known
    if len(operations) > MOST_OPERATIONS:
        raise NotData("the logits processors are too many for the searches of the device")
    before = ids.shape[1] - start
    if any(begin > before for each in operations for begin in each.starts or ()):
        raise NotData("a repetition penalty begins within the tokens that a row knows, for each input elsewhere")
    return logits_edits.edits(operations, len(ids), process.one, ids[:, :before].tolist(), raw)


def _is_supported(operation: Operation, inputs: int, vocabulary: int) -> bool:
    """Whether an operation fits the inputs, and its tokens the vocabulary (else `generate` has to report the error)."""
    if (own := operation.own if operation.starts is None else operation.starts) is not None:
        return len(own) == inputs
    if operation.kind == logits_edits.FORCE:  # a kernel takes at most 16 tokens
        return len(operation.data) <= 16 and all(0 <= token < vocabulary for token in operation.data)
    if operation.kind != logits_edits.BIAS:
        return True
    many = len(operation.data) // (2 + operation.first)
    return all(0 <= token < vocabulary for token in (*operation.data[many : 2 * many], *operation.data[3 * many :]))


def _numbers(tokens: Any) -> list[int]:
    return [int(token) for token in torch.as_tensor(tokens).flatten().tolist()]


def _ban(tokens: Any, first: int, last: int) -> list[Operation]:
    return [Operation(logits_edits.BAN, first, last, _numbers(tokens))] if last >= first else []


def _bias(processor: Any) -> list[Operation]:
    return logits_edits.bias_operations(list(processor.sequence_bias.items()), _biases_whole())


@cache
def _biases_whole() -> bool:
    """Whether transformers applies a sequence bias when the sequence's prefix is all of `input_ids`; 5.17 does not."""
    one = hf.SequenceBiasLogitsProcessor([[[1, 1], -1.0]])
    return bool(one(torch.ones(1, 1, dtype=torch.long), torch.zeros(1, 2))[0, 1] < 0)


def _repetition(processor: Any) -> list[Operation]:
    start = getattr(processor, IGNORED)
    starts = start.tolist() if isinstance(start, torch.Tensor) and bool(start.any()) else None
    first = start if isinstance(start, int) else 0
    return [Operation(logits_edits.PENALTY, logits_edits.bits(processor.penalty), first, starts=starts)]


def _encoder_repetition(processor: Any) -> list[Operation]:
    own = [sorted(set(row)) for row in processor.encoder_input_ids.tolist()]
    return [Operation(logits_edits.PENALTY, logits_edits.bits(processor.penalty), logits_edits.ALWAYS, own=own)]


def _encoder_ngrams(processor: Any) -> list[Operation]:
    n, own = processor.ngram_size, []
    for known in processor.generated_ngrams:
        ngrams = sorted({(*before, after) for before, tokens in known.items() for after in tokens})
        own.append(logits_edits.sequences([(ngram, -torch.inf) for ngram in ngrams], n))
    return [Operation(logits_edits.BIAS, n, 1, own=own)]


KNOWN: dict[type, Callable[[Any], list[Operation] | None]] = {
    hf.MinLengthLogitsProcessor: lambda p: _ban(p.eos_token_id, 0, p.min_length - 1),
    hf.MinNewTokensLengthLogitsProcessor: lambda p: _ban(p.eos_token_id, 0, p.prompt_length_to_skip + p.min_new_tokens - 1),
    hf.SuppressTokensLogitsProcessor: lambda p: _ban(p.suppress_tokens, 0, logits_edits.ALWAYS),
    hf.SuppressTokensAtBeginLogitsProcessor: lambda p: _ban(p.begin_suppress_tokens, p.begin_index, p.begin_index),
    hf.ForcedBOSTokenLogitsProcessor: lambda p: [Operation(logits_edits.FORCE, 1, data=[int(p.bos_token_id)])],
    hf.ForcedEOSTokenLogitsProcessor: lambda p: [Operation(logits_edits.FORCE, p.max_length - 1, data=_numbers(p.eos_token_id))],
    hf.NoBadWordsLogitsProcessor: _bias,
    hf.SequenceBiasLogitsProcessor: _bias,
    hf.NoRepeatNGramLogitsProcessor: lambda p: [Operation(logits_edits.NO_REPEAT, p.ngram_size)],
    hf.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
    hf.RepetitionPenaltyLogitsProcessor: _repetition,
    hf.EncoderRepetitionPenaltyLogitsProcessor: _encoder_repetition,
    hf.TemperatureLogitsWarper: lambda p: [Operation(logits_edits.SCALE, logits_edits.bits(p.temperature))],
    hf.LogitNormalization: lambda p: [Operation(logits_edits.NORMALIZE)],
}
