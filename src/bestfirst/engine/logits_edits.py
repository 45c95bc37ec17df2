"""Edits: logits processors as data, which a device kernel interprets before top-k.

Operations run one after another, each on all tokens of one row. A row's *tokens so far* are the prompt's and the generated ones.

| kind | first | second | data |
| --- | --- | --- | --- |
| `BAN` | from this many tokens so far | to this many | banned tokens |
| `FORCE` | at this many tokens so far | | the only tokens allowed, with log-probability 0 |
| `NO_REPEAT` | n: no n-gram of the tokens so far may repeat | | |
| `BIAS` | length of the longest sequence | see below | made by `sequences`: biases for tokens that complete a sequence |
| `PENALTY` | the factor's bits | index from which tokens so far count | further tokens to penalise (or boost), sorted |
| `SCALE` | the divisor's bits | | |
| `NORMALIZE` | | | |

If `second` of `BIAS` is 1, a sequence that spans all tokens so far counts as well. On the device a row knows its ancestors; of a
decoder-only model's prompt, only the last token is among them. The prefix *before* them is part of an input's own data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

BAN, FORCE, NO_REPEAT, BIAS, PENALTY, SCALE, NORMALIZE = range(7)
HEAD = 3  # header: number of operations; index of the input's unseen prefix in its data, or -1; whether raw scores are edited
FIELDS = 6  # per encoded operation: kind, first, second, offset of its data, their number, and whether they are the input's own
ALWAYS = 1 << 30  # more tokens so far than any output has


Process = Callable[[int, Sequence[int], Any], Any]


@dataclass(frozen=True)
class Operation:
    """One operation. `own`: data that differ per input; `starts` (`PENALTY`): per input, the index from which tokens so far
    count, if all of these lie in the prefix that a row does not know on the device."""

    kind: int
    first: int = 0
    second: int = 0
    data: Sequence[int] = ()
    own: Sequence[Sequence[int]] | None = None
    starts: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class Edits:
    """The operations for one input: `code` is the same for all inputs of a call, `given` holds this input's own data.

    `process` does the same on the host: (input number, generated tokens, log-probabilities (1, vocabulary)) ->
    log-probabilities. `raw`: the operations edit unnormalised scores, which are normalised afterwards. `callback`: a processor
    that no kernel implements, called on the host in the middle of a device step for rows of equal length: (input numbers,
    generated tokens (rows, length), scores) -> scores. All jobs of an engine have the same callback.
    """

    code: bytes
    given: np.ndarray
    process: Process | None = None
    raw: bool = False
    callback: Callable[[list[int], Any, Any], Any] | None = None


class NotAnswered(Exception):
    """`Edits.callback` raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def edits(
    operations: Sequence[Operation],
    inputs: int,
    process: Process | None,
    before: Sequence[Sequence[int]] = (),
    raw: bool = False,
) -> list[Edits]:
    """The same operations for each input, with its own data. `before`: the inputs' prefixes of one length that device rows do
    not know."""
    if before and before[0]:
        operations = [_shifted(before, each) for each in operations]
    if raw:
        operations = [*operations, Operation(NORMALIZE)]
    own = [each.own for each in operations if each.own is not None]
    reads_prefix = bool(before and before[0]) and any(each.kind in (NO_REPEAT, BIAS) for each in operations)
    code = encoded(operations, 2 * len(own) if reads_prefix else -1, raw)
    own += [before] if reads_prefix else []
    if not own:
        return [Edits(code, NOTHING, process, raw)] * inputs
    return [Edits(code, _packed([data[i] for data in own]), process, raw) for i in range(inputs)]


def _shifted(before: Sequence[Sequence[int]], operation: Operation) -> Operation:
    """The operation with positions relative to the first token that a row knows on the device."""
    n, first, second = len(before[0]), operation.first, operation.second
    if operation.kind == BAN:
        return replace(operation, first=first - n, second=second - n)
    if operation.kind == FORCE:
        return replace(operation, first=first - n)
    if operation.kind == PENALTY and second < ALWAYS:
        starts = operation.starts or [second] * len(before)
        penalised = [sorted(set(tokens[start:])) for tokens, start in zip(before, starts, strict=True)]
        return replace(operation, second=0 if operation.starts else second - n, own=penalised)
    return operation


def encoded(operations: Sequence[Operation], before: int = -1, raw: bool = False) -> bytes:
    """int32s as bytes: a header of `HEAD`, `FIELDS` for each operation, then their shared data."""
    head, data, own = [len(operations), before, int(raw)], list[int](), 0
    start = HEAD + FIELDS * len(operations)
    for each in operations:
        if each.own is not None:
            own += 1
            head += [each.kind, each.first, each.second, 2 * (own - 1), 0, 1]
        else:
            head += [each.kind, each.first, each.second, start + len(data), len(each.data), 0]
            data += each.data
    return np.array([*head, *data], dtype=np.int32).tobytes()


def _packed(parts: Sequence[Sequence[int]]) -> np.ndarray:
    """An input's own data: (offset, length) of each part, then the parts."""
    start, head = 2 * len(parts), list[int]()
    for part in parts:
        head += [start, len(part)]
        start += len(part)
    return np.fromiter((x for part in (head, *parts) for x in part), np.int32, start)


NOTHING = np.zeros(0, dtype=np.int32)


def bits(number: float) -> int:
    """The float32 bit pattern of a number as an integer."""
    return int(np.float32(number).view(np.int32))


def sequences(biases: Sequence[tuple[Sequence[int], float]], longest: int) -> list[int]:
    """Data of `BIAS`, a column per sequence: lengths, last tokens, bias bits, then tokens before the last, going backwards."""
    out = [len(tokens) for tokens, _ in biases]
    out += [tokens[-1] for tokens, _ in biases]
    out += [bits(bias) for _, bias in biases]
    for back in range(2, longest + 1):
        out += [tokens[-back] if back <= len(tokens) else 0 for tokens, _ in biases]
    return out


def bias_operations(biases: Sequence[tuple[Sequence[int], float]], whole: bool = True) -> list[Operation]:
    """Adds a bias to tokens that complete a sequence; with `whole`, also if the sequence spans all tokens so far.

    An operation applies its sequences in parallel, so those with the same last token need separate operations, except for bans.
    """
    rounds: list[list[tuple[Sequence[int], float]]] = [[each for each in biases if each[1] == -inf]]
    ends: list[set[int]] = [set()]
    for tokens, bias in (each for each in biases if each[1] != -inf):
        place = next((i for i, last in enumerate(ends) if i > 0 and tokens[-1] not in last), len(ends))
        if place == len(ends):
            ends.append(set())
            rounds.append([])
        ends[place].add(tokens[-1])
        rounds[place].append((tokens, bias))
    operations = []
    for group in filter(None, rounds):
        longest = max(len(tokens) for tokens, _ in group)
        operations.append(Operation(BIAS, longest, int(whole), sequences(group, longest)))
    return operations


def min_length_edits(n: int, eos: Sequence[int], start: int) -> Edits:
    """Bans EOS until an output has n tokens; `start`: how many tokens so far a row has at its beginning."""

    def process(_: int, tokens: Sequence[int], scores: Any) -> Any:
        scores = scores.clone()
        scores[:, [*eos] if len(tokens) < n else []] = -inf
        return scores

    return edits([Operation(BAN, 0, start + n - 1, eos)], 1, process)[0]
