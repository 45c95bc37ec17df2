"""Step-synchronous references, simple and slow: Algorithm 1 (`keep`), today's beam search (`leave`), exhaustive search.

A toy model is a function from a prefix to a list of increments, one for each token; `eos` is token 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

Toy = Callable[[tuple[int, ...]], Sequence[float]]
EOS = 0


class Item(NamedTuple):
    """A hypothesis; sorts in the order of every algorithm here: score descending, real length ascending, tokens."""

    cost: float  # minus the score
    length: int
    tokens: tuple[int, ...]
    value: float

    @property
    def finished(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] == EOS


def plain(value: float, length: int) -> float:
    return value


def extend(model: Toy, y: Item, final: Callable[[float, int], float]) -> list[Item]:
    out = []
    for token, increment in enumerate(model(y.tokens)):
        if increment > -inf:
            value = y.value + increment
            out.append(Item(-final(value, y.length + 1), y.length + 1, (*y.tokens, token), value))
    return out


class Reference(NamedTuple):
    answers: list[Item]  # best first
    beams: list[list[Item]]  # beams[t], in order; under `leave` the unfinished and the accepted ones
    calls: int


def beam_keep(model: Toy, k: int, n_max: int, final: Callable[[float, int], float] = plain, n: int | None = None) -> Reference:
    """Algorithm 1: a finished hypothesis keeps its slot.

    With `n` optimally stopped, for a monotonic score: hypotheses after the n-th finished one of the beam are not extended.
    """
    beam = [Item(-final(0.0, 0), 0, (), 0.0)]
    beams, calls = [beam], 0
    for _ in range(n_max):
        finished = [y for y in beam if y.finished]
        if n is not None and len(finished) >= n:
            beam = [y for y in beam if y.finished or y < finished[n - 1]]
        if all(y.finished for y in beam):
            break
        calls += sum(not y.finished for y in beam)
        pool = [z for y in beam for z in ([y] if y.finished else extend(model, y, final))]
        beam = sorted(pool)[:k]
        beams.append(beam)
    return Reference([y for y in beam if y.finished], beams, calls)


def beam_leave(
    model: Toy,
    k: int,
    n_max: int,
    n: int = 1,
    final: Callable[[float, int], float] = plain,
    bound: Callable[[float, int], float] = plain,
    accept_truncated: bool = False,
) -> Reference:
    """Today's beam search, optimally stopped: a finished hypothesis of rank < k moves to a pool and the beam refills.

    Stops when no unfinished hypothesis can precede the n-th of the pool; ties are broken as everywhere.
    """
    running = [Item(0.0, 0, (), 0.0)]
    pool: list[Item] = []
    beams, calls = [running], 0
    for t in range(n_max):
        if len(pool) >= n:
            worst = pool[n - 1]
            running = [y for y in running if (-bound(y.value, t), t, y.tokens) < worst[:3]]
        if not running:
            break
        calls += len(running)
        candidates = sorted(z for y in running for z in extend(model, y, plain))
        done = [i for i, z in enumerate(candidates) if z.finished or (accept_truncated and t + 1 == n_max)]
        accepted = [candidates[i] for i in done if i < k]
        running = [z for i, z in enumerate(candidates) if i not in set(done)][:k]
        beams.append(sorted(accepted + running))
        pool = sorted(pool + [Item(-final(z.value, z.length), *z[1:]) for z in accepted])
    return Reference(pool[:n], beams, calls)


def beam_search(model: Toy, k: int, n_max: int, n: int, finished: str) -> Reference:
    """Beam search under either rule, optimally stopped: the n best answers, and their calls level by level."""
    if finished == "keep":
        full = beam_keep(model, k, n_max, n=n)
        return full._replace(answers=full.answers[:n])
    return beam_leave(model, k, n_max, n)


def certificate(model: Toy, k: int, n_max: int, n: int, finished: str) -> set[tuple[int, ...]]:
    """The prefixes that any exact method must score: on beam search's beams, before the n-th answer in the order, not dead.

    `y` is dead when hypotheses that precede it fill longer beams. Under `keep`: all k slots of one beam. Under `leave`, from its
    length upwards: the k slots for unfinished ones of a beam, before any beam on which fewer than k hypotheses precede it (there
    a continuation of `y` could still finish), or the k first places of every beam through n_max.
    """
    unlimited = n_max * (k + 1) + 1  # more than the possible number of answers: never stops
    full = beam_keep(model, k, n_max) if finished == "keep" else beam_leave(model, k, n_max, unlimited)
    level = dict(enumerate(full.beams))

    def dead(y: Item) -> bool:
        for longer in range(y.length + 1, n_max + 1):
            before = [z for z in level.get(longer, ()) if z < y]
            if finished == "keep":
                if len(before) >= k:
                    return True
            elif len(before) < k:
                return False
            elif sum(not z.finished for z in before) >= k:
                return True
        return finished == "leave"

    needed = [y for beam in full.beams for y in beam if not y.finished and y.length < n_max and not dead(y)]
    if len(full.answers) >= n:
        needed = [y for y in needed if y < full.answers[n - 1]]
    return {y.tokens for y in needed}


def exhaustive(model: Toy, n_max: int) -> list[Item]:
    """Every complete hypothesis, best first."""
    found, stack = [], [Item(0.0, 0, (), 0.0)]
    while stack:
        y = stack.pop()
        if y.finished:
            found.append(y)
        elif y.length < n_max:
            stack += extend(model, y, plain)
    return sorted(found)
