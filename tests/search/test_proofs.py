"""The steps of the proofs in docs/algorithm.md and docs/scores.md, on random trees with ties."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path

from search.audit import KINDS, Node, Tokens, World, best, by_value, full, next_level, patience_search, random_increments

Beams = list[list[Node]]
Concern = Callable[[Node, Node], bool]
"""Whether a finished hypothesis is of concern, beside the n-th answer."""

SCORES: tuple[Callable[[float, int], float], ...] = (
    lambda v, t: v,
    lambda v, t: v / max(t, 1),
    lambda v, t: v + t,
    lambda v, t: v * (5 + t) / 6,
)


def random_world(seed: int, score: Callable[[float, int], float] | None = None) -> tuple[random.Random, World]:
    rng = random.Random(f"proofs {seed}")
    vocabulary, k, n_max = rng.randint(2, 4), rng.randint(1, 4), rng.randint(2, 8)
    increments = random_increments(rng.choice(KINDS), vocabulary, f"proofs {seed}")
    keep, n, eos = rng.random() < 0.5, rng.randint(1, k), rng.choice((0, vocabulary - 1))
    return rng, World(increments, score or rng.choice(SCORES), keep, k, n, n_max, False, eos)


def beams_of(world: World, scored: set[Tokens]) -> Beams:
    """B: the beams if these hypotheses are scored, and the children of all others are unknown."""
    known = world._replace(increments=lambda prefix: world.increments(prefix) if prefix in scored else ())
    return full(known).beams


def open_members(beams: Beams, scored: set[Tokens]) -> list[Node]:
    return [y for beam in beams[:-1] for y in beam if not y.done and y.tokens not in scored]


def growing_searches(rng: random.Random, world: World) -> Iterator[tuple[set[Tokens], Beams, list[Node]]]:
    """The scored set, the beams and the open members of a growing search that scores the best, the longest, or any next."""
    scored: set[Tokens] = set()
    order = rng.choice((partial(bound, world), lambda y: -y.length, lambda y: rng.random()))
    while waiting := open_members(beams := beams_of(world, scored), scored):
        yield scored, beams, waiting
        scored.add(min(waiting, key=order if rng.random() < 0.9 else by_value).tokens)
    yield scored, beams, waiting


# -- docs/algorithm.md: outside the shadows B and B* are equal ---------------------------------------------------------------


def falls_off(world: World, beams: Beams, y: Node) -> int:
    """D(y), under *leave*."""
    lengths = range(y.length + 1, world.n_max + 1)
    return next((u for u in lengths if sum(not z.done and z.value > y.value for z in beams[u]) >= world.k), world.n_max + 1)


def shadow_scores(world: World, beams: Beams, y: Node) -> Iterator[tuple[int, float]]:
    """σ(y, u) for each length u: the best that a continuation of `y` can have there, a value (*leave*) or a score (*keep*)."""
    if not world.keep:
        yield from ((u, y.value) for u in range(y.length + 1, falls_off(world, beams, y)))
        return

    def barred(score: float, u: int) -> bool:
        return sum(-z.cost > score for z in beams[u]) >= world.k

    goes_on, finished = True, []
    for u in range(y.length + 1, world.n_max + 1):
        goes_on = goes_on and not barred(world.score(y.value, u), u)
        finished = [score for score in [*finished, *([world.score(y.value, u)] if goes_on else [])] if not barred(score, u)]
        if finished:
            yield u, max(finished)


def test_beams_are_equal_outside_the_shadows(cases, tally):
    """Including open members of which one is shorter than another, ranks behind it, and falls off at a length in between."""
    looked = faults = between = 0
    for seed in cases(220, full=10_000):
        rng, world = random_world(seed)
        whole = full(world).beams
        for _, beams, waiting in growing_searches(rng, world):
            highest = [-inf] * (world.n_max + 1)
            for u, reached in chain.from_iterable(shadow_scores(world, beams, y) for y in waiting):
                highest[u] = max(highest[u], reached)
            for u, (ours, theirs) in enumerate(zip(beams, whole, strict=True)):
                outside = [{z for z in beam if (-z.cost if world.keep else z.value) > highest[u]} for beam in (ours, theirs)]
                looked, faults = looked + 1, faults + (outside[0] != outside[1])
            if not world.keep:
                between += any(
                    z.value < y.value
                    and z.length < y.length
                    and falls_off(world, beams, z) < falls_off(world, beams, y) <= world.n_max
                    for y in waiting
                    for z in waiting
                )
    tally("beams compared outside shadows", looked, faults)
    assert faults == 0
    assert between > 0


# -- docs/scores.md: hypotheses of concern are the same -----------------------------------------------------------------------


def bound(world: World, y: Node) -> tuple[float, int, Tokens]:
    return -max(world.score(y.value, u) for u in range(y.length + 1, world.n_max + 1)), y.length, y.tokens


def not_after(y: Node, a: Node) -> bool:
    return y[:3] <= a[:3]


def scores_no_less(y: Node, a: Node) -> bool:
    return y.cost <= a.cost


def differences(seed: int, concern: Concern, score: Callable[[float, int], float] | None = None) -> tuple[int, bool]:
    """Of one search when it may stop: beams whose hypotheses of concern differ from beam search's; whether answers differ."""
    rng, world = random_world(seed, score)
    whole = full(world)
    for _, beams, waiting in growing_searches(rng, world):
        found = beams[-1] if world.keep else chain.from_iterable(beams)
        answers = sorted(y for y in found if y.done)
        if len(answers) < world.n or any(bound(world, y) < answers[world.n - 1][:3] for y in waiting):
            continue
        a = answers[world.n - 1]

        def of_concern(y: Node, a: Node = a) -> bool:
            return concern(y, a) if y.done else y.length < world.n_max and bound(world, y) < a[:3]

        differ = sum(set(filter(of_concern, b)) != set(filter(of_concern, c)) for b, c in zip(beams, whole.beams, strict=True))
        return differ, best(answers, world.n) != best(whole.answers, world.n)
    return 0, False


def total(cases: range, counted: Callable[[int], tuple[int, bool]]) -> tuple[int, int]:
    found = [counted(seed) for seed in cases]
    return sum(differ for differ, _ in found), sum(answers for _, answers in found)


def test_hypotheses_of_concern_equal_those_of_beam_search(cases, tally):
    """Of concern: answers not after the n-th in the order. Not all answers with at least its score: some ties are not found."""
    tried = cases(300, full=20_000)
    faults = total(tried, partial(differences, concern=not_after))
    tally("searches of which what is of concern was compared", len(tried), sum(faults))
    assert faults == (0, 0)
    differ, answers = total(tried, partial(differences, concern=scores_no_less))
    assert differ > 0
    assert answers == 0


def test_the_proof_for_keep_fails_for_a_score_that_does_not_rise_strictly():
    """Constant at short lengths: the proof's step for `keep` fails, and answers differ. Three of 2,500 seeds that were tried."""

    def flat(v: float, t: int) -> float:
        return -1000.0 if t < 4 else v / t

    for seed in (447, 666, 877):
        differ, answers = differences(seed, not_after, flat)
        assert differ > 0
        assert answers


def test_shrinking_beams_are_neither_keep_nor_leave(cases):
    """Marian's: a finished hypothesis narrows the beams; it neither holds a slot while good enough nor leaves it free."""
    other = {True: 0, False: 0}
    for seed in cases(100, full=100):
        _, world = random_world(seed)
        shrunk = best(patience_search(world._replace(keep=False), 1.0, shrinks=True).answers, world.n)
        other[world.keep] += shrunk != best(full(world).answers, world.n)
    assert min(other.values()) > 0


def test_beams_with_everything_scored_are_the_full_beams():
    """`beams_of` and `next_level` agree."""
    _, world = random_world(3)
    whole = full(world).beams
    assert beams_of(world, {y.tokens for beam in whole for y in beam}) == whole
    assert next_level(world, whole[0]) == whole[1]


def test_the_docs_state_the_tested_steps_of_the_proofs():
    docs = Path(__file__).parents[2] / "docs"
    algorithm, scores = (" ".join((docs / name).read_text(encoding="utf-8").split()) for name in ("algorithm.md", "scores.md"))
    assert "nor is a shorter one behind another whose own D lies between" in algorithm
    assert "Marian does neither: each finished hypothesis makes its beam one narrower" in algorithm
    assert "finished and does not come after *a* in the order" in scores
    assert "because F rises strictly with the value" in scores
