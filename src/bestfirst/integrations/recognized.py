"""Recognized: Hugging Face's own logits processors as `Edits`, for the searches of a GPU.

They are known by their exact type: a subclass may do something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ..engine import edits
from ..engine.edits import Edits, Operation
from .processors import Processors

MOST_OPERATIONS = 64  # above it, nothing is gained over `generate`'s own loop


class NotData(Exception):
    """A processor that has no counterpart among `Edits`."""


def recognized(processors: Sequence[Any], ids: torch.Tensor, vocabulary: int, process: Processors) -> list[Edits]:
    """The edits of each input; NotData where a processor is not known. `ids` (batch, prompt length), without padding."""
    operations: list[Operation] = []
    for processor in processors:
        found = KNOWN.get(type(processor), lambda _: None)(processor)
        if found is None or not all(_usual(each, len(ids), vocabulary) for each in found):
            raise NotData(f"{type(processor).__name__} is not known to the searches of the device")
        operations += found
    if len(operations) > MOST_OPERATIONS:
        raise NotData("the logits processors are too many for the searches of the device")
    return edits.edits(operations, len(ids), process.one)


def _usual(operation: Operation, inputs: int, vocabulary: int) -> bool:
    """Whether it is about these inputs and, where that is `generate`'s to complain about, about tokens that there are."""
    if operation.own is not None:
        return len(operation.own) == inputs
    return operation.kind not in (edits.FORCE, edits.BIAS) or _within(operation, vocabulary)


def _within(operation: Operation, vocabulary: int) -> bool:
    """Whether all tokens of an operation are in the vocabulary, and no more than a kernel takes at once are certain."""
    if operation.kind == edits.FORCE:
        return len(operation.data) <= 16 and all(0 <= token < vocabulary for token in operation.data)
    many = len(operation.data) // (2 + operation.first)
    return all(0 <= token < vocabulary for token in (*operation.data[many : 2 * many], *operation.data[3 * many :]))


def _numbers(tokens: Any) -> list[int]:
    return [int(token) for token in torch.as_tensor(tokens).flatten().tolist()]


def _ban(tokens: Any, first: int, last: int) -> list[Operation]:
    return [Operation(edits.BAN, first, last, _numbers(tokens))] if last >= first else []


def _bias(processor: Any) -> list[Operation]:
    return edits.bias_operations(list(processor.sequence_bias.items()))


def _encoder_repetition(processor: Any) -> list[Operation]:
    own = [sorted(set(row)) for row in processor.encoder_input_ids.tolist()]
    return [Operation(edits.PENALTY, edits.bits(processor.penalty), own=own)]


def _encoder_ngrams(processor: Any) -> list[Operation]:
    n, own = processor.ngram_size, []
    for known in processor.generated_ngrams:
        ngrams = sorted({(*before, after) for before, tokens in known.items() for after in tokens})
        own.append(edits.sequences([(ngram, -torch.inf) for ngram in ngrams], n))
    return [Operation(edits.BIAS, n, own=own)]


KNOWN: dict[type, Callable[[Any], list[Operation] | None]] = {
    hf.MinLengthLogitsProcessor: lambda p: _ban(p.eos_token_id, 0, p.min_length - 1),
    hf.MinNewTokensLengthLogitsProcessor: lambda p: _ban(p.eos_token_id, 0, p.prompt_length_to_skip + p.min_new_tokens - 1),
    hf.SuppressTokensLogitsProcessor: lambda p: _ban(p.suppress_tokens, 0, edits.ALWAYS),
    hf.SuppressTokensAtBeginLogitsProcessor: lambda p: _ban(p.begin_suppress_tokens, p.begin_index, p.begin_index),
    hf.ForcedBOSTokenLogitsProcessor: lambda p: [Operation(edits.FORCE, 1, data=[int(p.bos_token_id)])],
    hf.ForcedEOSTokenLogitsProcessor: lambda p: [Operation(edits.FORCE, p.max_length - 1, data=_numbers(p.eos_token_id))],
    hf.NoBadWordsLogitsProcessor: _bias,
    hf.SequenceBiasLogitsProcessor: _bias,
    hf.NoRepeatNGramLogitsProcessor: lambda p: [Operation(edits.NO_REPEAT, p.ngram_size)],
    hf.EncoderNoRepeatNGramLogitsProcessor: _encoder_ngrams,
    hf.RepetitionPenaltyLogitsProcessor: lambda p: [Operation(edits.PENALTY, edits.bits(p.penalty), p.prompt_ignore_length or 0)],
    hf.EncoderRepetitionPenaltyLogitsProcessor: _encoder_repetition,
    hf.TemperatureLogitsWarper: lambda p: [Operation(edits.SCALE, edits.bits(p.temperature))],
    hf.LogitNormalization: lambda p: [Operation(edits.NORMALIZE)],
}
