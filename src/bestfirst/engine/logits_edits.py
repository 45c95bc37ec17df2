"""Edits: what is done to the log-probabilities of next tokens before the best are chosen, as data that a kernel reads.

Operations run one after another, each on all tokens of one row. A row's *tokens so far* are the prompt's and the generated ones.

| kind | first | second | data |
| --- | --- | --- | --- |
| `BAN` | from so many tokens so far | to so many | tokens that may not come |
| `FORCE` | at so many tokens so far | | tokens that are certain; no other may come |
| `NO_REPEAT` | n: no n-gram of the tokens so far may come again | | |
| `BIAS` | the longest sequence | see below | by `sequences`: what is added to a last token, where the others precede it |
| `PENALTY` | the factor's bits | the place from which tokens so far count | other tokens that are less, or more, likely, sorted |
| `SCALE` | the divisor's bits | | |
| `NORMALIZE` | | | |

`BIAS` counts a sequence that all tokens so far are part of if `second` is 1, and not if it is 0. On the device a row knows its
ancestors; of a language model's prompt the last token is the first of them. What comes *before* is part of an input's own data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

BAN, FORCE, NO_REPEAT, BIAS, PENALTY, SCALE, NORMALIZE = range(7)
HEAD = 3  # how many operations there are; where an input's tokens before are, or -1; whether rows are edited as they are
FIELDS = 6  # of an operation, written down: its kind, first, second, where its data is, how much, and whose
ALWAYS = 1 << 30  # tokens so far that no output has


Process = Callable[[int, Sequence[int], Any], Any]


@dataclass(frozen=True)
class Operation:
    """One of them. `own`: its data is different for each input; `starts`: so is the place from which tokens so far count
    (`PENALTY`), all of them before those that a row knows on the device."""

    kind: int
    first: int = 0
    second: int = 0
    data: Sequence[int] = ()
    own: Sequence[Sequence[int]] | None = None
    starts: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class Edits:
    """The operations of one input: `code` is the same for all inputs of a call, `given` is its own part of their data.

    `process` does the same on the host: an input's number, generated tokens, log-probabilities (1, vocabulary) in, the last out.
    `raw`: what is edited are the model's scores as they are; afterwards they are normalised. `asked`: what no kernel knows. It is
    called between two parts of a step for rows of one length: the numbers of their inputs, what was generated (rows, length) and
    scores in, the last out. All jobs of an engine have the same.
    """

    code: bytes
    given: np.ndarray
    process: Process | None = None
    raw: bool = False
    asked: Callable[[list[int], Any, Any], Any] | None = None


class NotAnswered(Exception):
    """What was asked has raised `error`."""

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
    """For each input the same operations, with its own data. `before`: its tokens before those that a row knows on the device, as
    many for all inputs."""
    if before and before[0]:
        operations = [_after(before, each) for each in operations]
    if raw:
        operations = [*operations, Operation(NORMALIZE)]
    own = [each.own for each in operations if each.own is not None]
    looked_at = bool(before and before[0]) and any(each.kind in (NO_REPEAT, BIAS) for each in operations)
    code = encoded(operations, 2 * len(own) if looked_at else -1, raw)
    own += [before] if looked_at else []
    if not own:
        return [Edits(code, NOTHING, process, raw)] * inputs
    return [Edits(code, _given([data[i] for data in own]), process, raw) for i in range(inputs)]


def _after(before: Sequence[Sequence[int]], operation: Operation) -> Operation:
    """The same operation, its places counted from the first token that a row knows."""
    n, first, second = len(before[0]), operation.first, operation.second
    if operation.kind == BAN:
        return replace(operation, first=first - n, second=second - n)
    if operation.kind == FORCE:
        return replace(operation, first=first - n)
    if operation.kind == PENALTY and second < ALWAYS:
        starts = operation.starts or [second] * len(before)
        counted = [sorted(set(tokens[start:])) for tokens, start in zip(before, starts, strict=True)]
        return replace(operation, second=0 if operation.starts else second - n, own=counted)
    return operation


def encoded(operations: Sequence[Operation], before: int = -1, raw: bool = False) -> bytes:
    """`HEAD`, the operations' fields, their data."""
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


def _given(parts: Sequence[Sequence[int]]) -> np.ndarray:
    """Where each part begins and how long it is, then the parts."""
    start, head = 2 * len(parts), list[int]()
    for part in parts:
        head += [start, len(part)]
        start += len(part)
    return np.fromiter((x for part in (head, *parts) for x in part), np.int32, start)


NOTHING = np.zeros(0, dtype=np.int32)


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


def bias_operations(biases: Sequence[tuple[Sequence[int], float]], whole: bool = True) -> list[Operation]:
    """Add to a token's log-probability where it completes a sequence; with `whole`, one that all tokens so far are part of, too.

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
        operations.append(Operation(BIAS, longest, int(whole), sequences(some, longest)))
    return operations


def at_least(n: int, eos: Sequence[int], start: int) -> Edits:
    """No output ends before n tokens; a row knows so many at its `start`."""

    def process(_: int, tokens: Sequence[int], scores: Any) -> Any:
        scores = scores.clone()
        scores[:, [*eos] if len(tokens) < n else []] = -inf
        return scores

    return edits([Operation(BAN, 0, start + n - 1, eos)], 1, process)[0]
