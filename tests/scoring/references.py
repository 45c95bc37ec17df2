"""Simple step-synchronous beam search for any score, rule and stop; and Hugging Face's, transcribed from its source.

Toys and items are those of `reference`: a toy maps a prefix to increments, token 0 is EOS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from bestfirst.scoring import Score
from bestfirst.search import Context
from reference import EOS, Item, Toy

Stop = Callable[[list[Item], list[Item]], bool]  # called with a level, in order of rank, and the answers so far, best first


class Outcome(NamedTuple):
    answers: list[tuple[tuple[int, ...], float]]  # tokens and score, best first
    calls: int


def children(toy: Toy, y: Item) -> list[Item]:
    """One-token extensions, which sort as unfinished hypotheses: by value, then tokens."""
    extended = [(token, y.value + increment) for token, increment in enumerate(toy(y.tokens)) if increment > -inf]
    return [Item(-value, y.length + 1, (*y.tokens, token), value) for token, value in extended]


def step_synchronous(
    toy: Toy,
    score: Score,
    context: Context,
    *,
    k: int,
    n: int,
    finished: str,
    stop: Stop = lambda level, answers: False,
    optimal: bool = False,
    ending: Callable[[tuple[int, ...]], float] = lambda prefix: 0.0,
) -> Outcome:
    """Beam search, one level after another.

    `optimal`: hypotheses whose bound comes after the n-th answer are not extended. `ending` maps the prefix before EOS to the
    score that finishing adds.
    """

    def worth(y: Item) -> Item:
        final = score.final(y.value, y.length, context) + (ending(y.tokens[:-1]) if y.finished else 0.0)
        return y._replace(cost=-final)

    level, answers, calls, width = [Item(0.0, 0, (), 0.0)], [], 0, k
    for t in range(context.n_max):
        active = [y for y in level if not y.finished]
        if optimal and len(answers) >= n:
            active = [y for y in active if (-score.bound(y.value, t, context), t, y.tokens) < answers[n - 1][:3]]
        if not active or stop(level, answers):
            break
        calls += len(active)
        ranked = sorted(z for y in active for z in children(toy, y))
        if finished == "keep":
            level = sorted([*(y for y in level if y.finished), *map(worth, ranked)])[:k]
            answers = [y for y in level if y.finished]
            continue
        accepted = [z for z in ranked[:width] if z.finished]
        if finished == "shrink":
            level = ranked[:width]
            width -= len(accepted)
        else:
            level = sorted(accepted + [z for z in ranked if not z.finished][:k])
        answers = sorted([*answers, *map(worth, accepted)])
    return Outcome([(y.tokens, -y.cost) for y in answers[:n]], calls)


def hugging_face(toy: Toy, *, k: int, n_max: int, n: int, alpha: float, early_stopping: bool | str) -> Outcome:
    """`generate(num_beams=k, num_return_sequences=n, length_penalty=alpha)` of transformers 5, with our tie-breaking."""
    running: list[Item] = [Item(0.0, 0, (), 0.0)]
    pool: list[Item] = []
    calls = 0
    for t in range(1, n_max + 1):
        calls += len(running)
        candidates = sorted(z for y in running for z in children(toy, y))[: 2 * k]
        done = [z.finished or t == n_max for z in candidates]
        scored = [z._replace(cost=-z.value / t**alpha) for z, d in zip(candidates[:k], done[:k], strict=True) if d]
        pool = sorted(pool + scored)[:k]
        running = [z for z, d in zip(candidates, done, strict=True) if not d][:k]
        if not running or (early_stopping is True and len(pool) == k):
            break
        length = n_max if early_stopping == "never" and alpha > 0 else t
        if len(pool) == k and not running[0].value / length**alpha > -pool[-1].cost:
            break
    return Outcome([(y.tokens, -y.cost) for y in pool[:n]], calls)


def diverse(toy: Toy, *, k: int, groups: int, penalty: float, n_max: int) -> set[tuple[tuple[int, ...], float]]:
    """Hugging Face's group beam search (transformers 4) by log-probability, run to the end: the answers of all groups."""
    each = k // groups
    running = [[Item(0.0, 0, (), 0.0)] for _ in range(groups)]
    pools: list[list[Item]] = [[] for _ in range(groups)]
    for _ in range(n_max):
        chosen: Counter[int] = Counter()
        for g in range(groups):
            found = []
            for y in running[g]:
                for z in children(toy, y):
                    value = y.value + (toy(y.tokens)[z.tokens[-1]] - penalty * chosen[z.tokens[-1]])
                    found.append(z._replace(cost=-value, value=value))
            ranked = sorted(found)
            pools[g] = sorted(pools[g] + [z for z in ranked[:each] if z.tokens[-1] == EOS])
            running[g] = [z for z in ranked if z.tokens[-1] != EOS][:each]
            chosen.update(z.tokens[-1] for z in running[g])
    return {(y.tokens, y.value) for pool in pools for y in pool[:each]}
