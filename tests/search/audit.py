"""Beam search, its stopping rules and its least calls, written from their definitions without code of the package.

A world is a random tree of increments with a score on it. Everything is computed from the full beams, level by level;
`test_audit.py` compares every search of the package with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from math import exp, inf, log
from typing import NamedTuple

Tokens = tuple[int, ...]
Answers = list[tuple[Tokens, float]]


class Node(NamedTuple):
    """A hypothesis. `cost` is minus its score, so that nodes sort best first: by score, length, tokens."""

    cost: float
    length: int
    tokens: Tokens
    value: float
    done: bool


class World(NamedTuple):
    """A search problem: `increments` of a prefix by token, `score` of a value at a length, and the settings."""

    increments: Callable[[Tokens], tuple[float, ...]]
    score: Callable[[float, int], float]
    keep: bool
    k: int
    n: int
    n_max: int
    truncated: bool = False  # whether a hypothesis of length n_max counts as finished
    eos: int = 0  # its place among the tokens decides ties

    def node(self, tokens: Tokens, value: float) -> Node:
        length = len(tokens)
        done = tokens[-1:] == (self.eos,) or (self.truncated and length == self.n_max)
        return Node(-self.score(value, length), length, tokens, value, done)

    def children(self, y: Node) -> list[Node]:
        found = enumerate(self.increments(y.tokens))
        return [self.node((*y.tokens, token), y.value + increment) for token, increment in found if increment > -inf]


def by_value(y: Node) -> tuple[float, Tokens]:
    return -y.value, y.tokens


def next_level(world: World, level: list[Node]) -> list[Node]:
    """The beam after this one, in order of rank."""
    found = [z for y in level if not y.done for z in world.children(y)]
    if world.keep:
        return sorted([*found, *(y for y in level if y.done)])[: world.k]
    found.sort(key=by_value)
    going = [y for y in found if not y.done][: world.k]
    return sorted([*(y for y in found[: world.k] if y.done), *going], key=by_value)


class Full(NamedTuple):
    """All beams of a search that never stops, and all answers, best first."""

    beams: list[list[Node]]
    answers: list[Node]


def full(world: World) -> Full:
    beams = [[Node(-world.score(0.0, 0), 0, (), 0.0, False)]]
    while len(beams) <= world.n_max:
        beams.append(next_level(world, beams[-1]))
    found = beams[-1] if world.keep else [y for beam in beams for y in beam]
    return Full(beams, sorted(y for y in found if y.done))


def best(answers: list[Node], n: int) -> Answers:
    return [(y.tokens, -y.cost) for y in answers[:n]]


# -- the least calls -------------------------------------------------------------------------------------------------------


def least(world: World, whole: Full) -> set[Tokens]:
    """The prefixes whose continuations could change the n best answers, if nothing is known of them but that values fall.

    A continuation of `y` at no cost has at each length the score of the value of `y` there. It goes on while fewer than k
    members of that beam are better, and is an answer where it holds its slot to the end.
    """
    nth = whole.answers[world.n - 1] if len(whole.answers) >= world.n else None
    needed = set()
    for y in (y for beam in whole.beams[: world.n_max] for y in beam if not y.done):
        reached = scores_under_keep(world, whole, y) if world.keep else scores_under_leave(world, whole, y)
        if any(nth is None or (-score, y.length, y.tokens) < nth[:3] for score in reached):
            needed.add(y.tokens)
    return needed


def scores_under_leave(world: World, whole: Full, y: Node) -> list[float]:
    out = []
    for length in range(y.length + 1, world.n_max + 1):
        ahead = [z for z in whole.beams[length] if z.value > y.value]
        if len(ahead) < world.k:
            out.append(world.score(y.value, length))
        if sum(not z.done for z in ahead) >= world.k:
            break
    return out


def scores_under_keep(world: World, whole: Full, y: Node) -> list[float]:
    def out_at(length: int, score: float) -> bool:
        return sum(z[:3] < (-score, y.length, y.tokens) for z in whole.beams[length]) >= world.k

    scores = []
    for length in range(y.length + 1, world.n_max + 1):
        score = world.score(y.value, length)
        if not any(out_at(longer, score) for longer in range(length, world.n_max + 1)):
            scores.append(score)
        if out_at(length, score):
            break
    return scores


def least_by_trial(world: World, whole: Full) -> set[Tokens]:
    """`least` by trial: prefixes below which a single chain at no cost, without siblings, changes the n best answers."""
    expected = best(whole.answers, world.n)
    other = 0 if world.eos else 1  # the token of such a chain
    found = set()
    for y in (y for beam in whole.beams[: world.n_max] for y in beam if not y.done):
        for length in range(y.length + 1, world.n_max + 1):
            chain = (*y.tokens, *[other] * (length - y.length - 1), world.eos)

            def increments(prefix: Tokens, chain: Tokens = chain, at: int = y.length) -> tuple[float, ...]:
                if prefix[:at] != chain[:at]:
                    return world.increments(prefix)
                if prefix != chain[: len(prefix)] or len(prefix) >= len(chain):
                    return ()
                return tuple(0.0 if token == chain[len(prefix)] else -inf for token in range(max(other, world.eos) + 1))

            if best(full(world._replace(increments=increments)).answers, world.n) != expected:
                found.add(y.tokens)
                break
    return found


# -- level by level, with the stops of the field ----------------------------------------------------------------------------


class Stopped(NamedTuple):
    answers: list[Node]
    calls: int


def level_by_level(world: World, stop: Callable[[list[Node], list[Node], list[Node]], bool], shrinks: bool = False) -> Stopped:
    """Beam search that calls `stop` before each level, with the level, its unfinished members and the answers, all best first.

    `shrinks`: each answer makes the later beams one narrower.
    """
    level, answers, calls = full(world._replace(n_max=0)).beams[0], [], 0
    for _ in range(world.n_max):
        going = sorted((y for y in level if not y.done), key=by_value)
        if not going or stop(level, going, answers):
            break
        calls += len(going)
        # If a finished hypothesis narrows the later beams, it holds a slot of its own beam, as under `keep`.
        level = next_level(world._replace(k=world.k - len(answers), keep=True), going) if shrinks else next_level(world, level)
        done = [y for y in level if y.done]
        answers = sorted(done if world.keep else [*answers, *done])
    return Stopped(answers, calls)


def hugging_face_search(world: World, early_stopping: bool | str) -> Stopped:
    """The three `early_stopping` rules of `generate`; for n > k, with a pool of n."""
    enough = max(world.k, world.n)

    def stop(level: list[Node], going: list[Node], answers: list[Node]) -> bool:
        if len(answers) < enough:
            return False
        at = {world.n_max, going[0].length} if early_stopping == "never" else {going[0].length}
        return early_stopping is True or max(world.score(going[0].value, length) for length in at) <= -answers[enough - 1].cost

    return level_by_level(world, stop)


def patience_search(world: World, factor: float, shrinks: bool = False) -> Stopped:
    """Stops at `factor` times k answers."""
    return level_by_level(world, lambda level, going, answers: len(answers) >= factor * world.k, shrinks)


def opennmt_search(world: World) -> Stopped:
    """Stops when the n best of a beam are finished."""
    return level_by_level(world, lambda level, going, answers: len(answers) >= world.n and all(y.done for y in level[: world.n]))


def ctranslate2_search(world: World, factor: float, plain: bool) -> Stopped:
    """Stops at `factor` times k answers, rounded; for plain log-probability at n, once the best of some beam was finished."""
    finished = False

    def stop(level: list[Node], going: list[Node], answers: list[Node]) -> bool:
        nonlocal finished
        finished |= level[0].done
        return finished and len(answers) >= world.n if plain else len(answers) >= max(1, int(factor * world.k + 0.5))

    return level_by_level(world, stop)


# -- random worlds ---------------------------------------------------------------------------------------------------------

KINDS = ("ties", "peaked", "flat", "dead-ends")


def random_increments(kind: str, vocabulary: int, seed: object) -> Callable[[Tokens], tuple[float, ...]]:
    """Normalised log-probabilities; for `ties`, small whole numbers."""

    @cache
    def increments(prefix: Tokens) -> tuple[float, ...]:
        rng = random.Random(f"audit {kind} {vocabulary} {seed} {prefix}")
        if kind == "ties":
            return tuple(-float(rng.choice((0, 0, 1, 1, 2, 3))) for _ in range(vocabulary))
        weights = [exp(rng.gauss(0, 0.6 if kind == "flat" else 2.2)) for _ in range(vocabulary)]
        if kind == "dead-ends":
            weights = [weight if rng.random() < 0.6 else 0.0 for weight in weights]
        return tuple(min(0.0, log(weight / sum(weights))) if weight else -inf for weight in weights)

    return increments
