"""Processors: Hugging Face's logits processors, called for hypotheses of mixed lengths and inputs; or, for the searches of a GPU,
as data (`recognized`).

A processor looks at `input_ids` and their length, so rows are handed over in groups of one length, prompt and padding included:
log-probabilities for beam search, the model's scores as they are for greedy search. One that maps a row to its input by its
place in the batch is asked for one input at a time. As data they are known by their exact type: a subclass may do something else.
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

ROUNDING = 1e-5  # a log-probability that is above 0 by no more than this is 0


class NotMonotonic(Exception):
    """A processor made a token more than certain: no bound holds, so the search must go level by level."""

    def __init__(self, tokens: Sequence[int], highest: float) -> None:
        super().__init__(f"a logits processor lifts a log-probability after {list(tokens)} to {highest:.4g}, above 0")


def banned_tokens(processors: Sequence[Any]) -> frozenset[int] | None:
    """What these processors forbid, if forbidding tokens everywhere is all they do; the engine then needs none of them."""
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
    """The processors of one call, as a hook of the engine: (hypotheses, log-probabilities (rows, vocabulary)) in, the same out.

    `monotonic`: raise NotMonotonic when a log-probability comes out above 0. `drops`: see `AllowedTokens`. `record`: where it is
    noted what comes out.
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
        """`ids` (batch, prompt length) stand before every output; `input_of` tells which of them a hypothesis belongs to."""
        self.ids = ids
        self.input_of = input_of
        self.monotonic = monotonic and bool(processors)
        self.drops = drops
        self.record = record
        self._apply = [self._adapt(one_an_input(processor, len(ids)), k) for processor in processors]

    def __call__(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        return apply_by_length(self._group, batch, [y.length for y in batch], scores)

    def one(self, i: int, tokens: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """For what was generated of the i-th input: log-probabilities (1, vocabulary) in, the same out."""
        return self._applied([i], torch.tensor([tokens]), scores)

    def rows(self, inputs: list[int], tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """For what was generated of these inputs, (rows, length): log-probabilities (rows, vocabulary) in, the same out."""
        scores = self._applied(inputs, tokens, scores)
        if self.record is not None:
            self.record.note(inputs, tokens, scores)
        return scores

    def _applied(self, inputs: list[int], tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids, device = torch.cat([self.ids[inputs], tokens.to(self.ids)], 1), scores.device
        scores = scores.to(ids.device)  # inputs may be elsewhere than the model
        for apply in self._apply:
            scores = apply(inputs, ids, scores)
        if self.monotonic and (highest := float(scores.max())) > 0:
            if highest > ROUNDING:
                raise NotMonotonic(tokens[int(scores.amax(1).argmax())].tolist(), highest)
            scores = scores.clamp(max=0)
        return scores.to(device)

    def _group(self, batch: Sequence[Hypothesis], scores: torch.Tensor) -> torch.Tensor:
        tokens = torch.tensor([y.tokens for y in batch], dtype=self.ids.dtype, device=self.ids.device).view(len(batch), -1)
        return self.rows([self.input_of(y) for y in batch], tokens, scores)

    def _adapt(self, processor: Any, k: int) -> Callable[[list[int], torch.Tensor, torch.Tensor], torch.Tensor]:
        if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
            return AllowedTokens(processor._prefix_allowed_tokens_fn, self.ids.shape[1], k, self.drops)
        if isinstance(processor, hf.WhisperNoSpeechDetection):
            return NoSpeech(processor, self.ids)
        if (make := next((make for kind, make in OF_ONE_INPUT.items() if isinstance(processor, kind)), None)) is not None:
            own = cache(partial(make, processor))
            return lambda inputs, ids, scores: torch.cat([own(i)(ids[n, None], scores[n, None]) for n, i in enumerate(inputs)])
        if isinstance(starts := getattr(processor, IGNORED, None), torch.Tensor):
            return lambda inputs, ids, scores: _changed(processor, **{IGNORED: starts[inputs]})(ids, scores)
        if len(inspect.signature(processor.__call__).parameters) > 2:
            raise ValueError(
                f"{type(processor).__name__} takes more than input_ids and scores, which `generate` does not give it"
            )
        return lambda inputs, ids, scores: processor(ids, scores)


@dataclass
class AllowedTokens:
    """`prefix_allowed_tokens_fn`: only what it allows. For the empty hypothesis, and in greedy search, where one hypothesis is
    all there is, what it allows is forced where other processors forbid it, as Hugging Face does.

    Any other hypothesis that is left with nothing is dropped with `drops`. Without, OwnLoop is raised: if nothing is left to a
    whole beam, Hugging Face forces what is allowed, and what else is in the beam decides.
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


def _changed(processor: Any, **own: Any) -> Any:
    other = copy.copy(processor)
    vars(other).update(own)
    return other


IGNORED = "prompt_ignore_length"  # of a repetition penalty: what does not count, since transformers 5.23 the padding of each row


def one_an_input(processor: Any, inputs: int) -> Any:
    """The processor; what it knows of each row that `generate` has copied an input to, it knows of each input."""
    starts = getattr(processor, IGNORED, None)
    if not isinstance(starts, torch.Tensor) or len(starts) % inputs:
        return processor
    return _changed(processor, **{IGNORED: starts[:: len(starts) // inputs]})


def of_first_rows(processor: Any, rows: int) -> Any:
    """The processor, as it is for the first rows of a batch."""
    starts = getattr(processor, IGNORED, None)
    return _changed(processor, **{IGNORED: starts[:rows]}) if isinstance(starts, torch.Tensor) else processor


OF_ONE_INPUT: dict[type, Callable[[Any, int], Any]] = {
    hf.EncoderRepetitionPenaltyLogitsProcessor: lambda p, i: _changed(p, encoder_input_ids=p.encoder_input_ids[i : i + 1]),
    hf.EncoderNoRepeatNGramLogitsProcessor: lambda p, i: _changed(
        p, batch_size=1, generated_ngrams=p.generated_ngrams[i : i + 1]
    ),
}
"""Processors that know the inputs, and how to make one that knows the i-th only."""


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


MOST_OPERATIONS = 64  # above it, nothing is gained over `generate`'s own loop


class NotData(Exception):
    """A processor that has no counterpart among `Edits`."""


def recognized(
    processors: Sequence[Any], ids: torch.Tensor, vocabulary: int, process: Processors, start: int, raw: bool = False
) -> list[Edits]:
    """The edits of each input; NotData where a processor is not known. Of `ids` (batch, prompt length), padding included, a row
    knows the last `start` on the device. `raw`: what processors see are scores that are not normalised."""
    operations: list[Operation] = []
    for processor in processors:
        found = KNOWN.get(type(processor), lambda _: None)(one_an_input(processor, len(ids)))
        if found is None or not all(_usual(each, len(ids), vocabulary) for each in found):
            raise NotData(f"{type(processor).__name__} is not known to the searches of the device")
        operations += found
    if len(operations) > MOST_OPERATIONS:
        raise NotData("the logits processors are too many for the searches of the device")
    before = ids.shape[1] - start
    if any(begin > before for each in operations for begin in each.starts or ()):
        raise NotData("a repetition penalty begins within the tokens that a row knows, for each input elsewhere")
    return logits_edits.edits(operations, len(ids), process.one, ids[:, :before].tolist(), raw)


def _usual(operation: Operation, inputs: int, vocabulary: int) -> bool:
    """Whether it is about these inputs and, where that is `generate`'s to complain about, about tokens that there are."""
    if (own := operation.own if operation.starts is None else operation.starts) is not None:
        return len(own) == inputs
    if operation.kind == logits_edits.FORCE:  # and no more than a kernel takes at once
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
    """Whether a sequence counts that all tokens so far are part of; in transformers 5.17 it does not."""
    one = hf.SequenceBiasLogitsProcessor([[[1, 1], -1.0]])
    return bool(one(torch.ones(1, 1, dtype=torch.long), torch.zeros(1, 2))[0, 1] < 0)


def _repetition(processor: Any) -> list[Operation]:
    start = getattr(processor, IGNORED)
    starts = start.tolist() if isinstance(start, torch.Tensor) and bool(start.any()) else None
    return [
        Operation(
            logits_edits.PENALTY, logits_edits.bits(processor.penalty), start if isinstance(start, int) else 0, starts=starts
        )
    ]


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
