"""Edits: what is done to the log-probabilities of next tokens before the best are chosen, as data that a kernel reads.

Operations run one after another, each on all tokens of one row. A row's *tokens so far* are the prompt's and the generated ones.

| kind | first | second | data |
| --- | --- | --- | --- |
| `BAN` | from so many tokens so far | to so many | tokens that may not come |
| `FORCE` | at so many tokens so far | | tokens that are certain; no other may come |
| `NO_REPEAT` | n: no n-gram of the tokens so far may come again | | |
| `BIAS` | the longest sequence | | by `sequences`: what is added to a last token, where the others precede it |
| `PENALTY` | the factor's bits | the first place that counts | tokens that are less, or more, likely; none: those so far |
| `SCALE` | the divisor's bits | | |
| `NORMALIZE` | | | |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

BAN, FORCE, NO_REPEAT, BIAS, PENALTY, SCALE, NORMALIZE = range(7)
FIELDS = 6  # of an operation, written down: its kind, first, second, where its data is, how much, and whose
ALWAYS = 1 << 30  # tokens so far that no output has


@dataclass(frozen=True)
class Operation:
    """One of them. `own`: its data is different for each input."""

    kind: int
    first: int = 0
    second: int = 0
    data: Sequence[int] = ()
    own: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, eq=False)
class Edits:
    """The operations of one input: `code` is the same for all inputs of a call, `given` is its own part of their data.

    `process` does the same on the host: an input's number, generated tokens, log-probabilities (1, vocabulary) in, the last out.
    """

    code: bytes
    given: np.ndarray
    process: Callable[[int, Sequence[int], Any], Any] | None = None


def edits(operations: Sequence[Operation], inputs: int, process: Callable[[int, Sequence[int], Any], Any] | None) -> list[Edits]:
    """For each input the same operations, with its own data."""
    own = [each.own for each in operations if each.own is not None]
    code = encoded(operations)
    if not own:
        return [Edits(code, _NOTHING, process)] * inputs
    return [Edits(code, _given([data[i] for data in own]), process) for i in range(inputs)]


def encoded(operations: Sequence[Operation]) -> bytes:
    """How many operations there are, their fields, their data."""
    head, data, own = [len(operations)], list[int](), 0
    start = 1 + FIELDS * len(operations)
    for each in operations:
        if each.own is not None:
            own += 1
            head += [each.kind, each.first, each.second, 2 * (own - 1), 0, 1]
        else:
            head += [each.kind, each.first, each.second, start + len(data), len(each.data), 0]
            data += each.data
    return np.array([*head, *data], dtype=np.int32).tobytes()


def _given(parts: Sequence[Sequence[int]]) -> np.ndarray:
    """Where each part begins and how long it is, then the parts."""
    start, head = 2 * len(parts), list[int]()
    for part in parts:
        head += [start, len(part)]
        start += len(part)
    return np.fromiter((x for part in (head, *parts) for x in part), np.int32, start)


_NOTHING = np.zeros(0, dtype=np.int32)


def bits(number: float) -> int:
    """A number in single precision, as an integer has it."""
    return int(np.float32(number).view(np.int32))


def sequences(biases: Sequence[tuple[Sequence[int], float]], longest: int) -> list[int]:
    """Data of `BIAS`: of all sequences the length; the last token; what is added; then the one before the last, and so on."""
    out = [len(tokens) for tokens, _ in biases]
    out += [tokens[-1] for tokens, _ in biases]
    out += [bits(bias) for _, bias in biases]
    for back in range(2, longest + 1):
        out += [tokens[-back] if back <= len(tokens) else 0 for tokens, _ in biases]
    return out


def bias_operations(biases: Sequence[tuple[Sequence[int], float]]) -> list[Operation]:
    """Add to a token's log-probability where it completes a sequence.

    Tokens of one operation are looked at side by side, so those that end two sequences need a second one, unless they are banned.
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
    for some in filter(None, rounds):
        longest = max(len(tokens) for tokens, _ in some)
        operations.append(Operation(BIAS, longest, data=sequences(some, longest)))
    return operations
