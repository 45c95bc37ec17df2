"""`StepSearch`: Hugging Face's `early_stopping=False` in strict order, without hypotheses that cannot be among the n best."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf, log

import pytest

from bestfirst.scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability, Score
from bestfirst.search import AnyOrderSearch, Context, Search, StepSearch, Successors, best_first_beam
from bestfirst.strategies import HuggingFaceStep
from search.audit import KINDS, Tokens, World, best, full, hugging_face_search, random_increments

SOURCE = 4
SCORES: list[Score] = [LengthNormalized(1.0), LengthNormalized(2.0), GNMT(0.6), LengthReward(0.5), BoundedLengthReward(1.0, 1.5)]


def random_world(seed: int) -> tuple[str, Score, World]:
    """With late EOS and lengths at which tokens cost little, so that scores fall and recover."""
    rng = random.Random(f"step {seed}")
    score, kind, k, n_max = rng.choice(SCORES), rng.choice(KINDS), rng.randint(1, 5), rng.randint(4, 14)
    vocabulary = rng.randint(2, 5)
    plain = random_increments(kind, vocabulary, f"step {seed}")
    late, scale = rng.choice((0.0, 2.0, 4.0)), [rng.choice((0.25, 1.0, 1.0, 3.0)) for _ in range(n_max)]

    def increments(prefix: Tokens) -> tuple[float, ...]:
        found = [each * scale[len(prefix)] for each in plain(prefix)]
        found[eos] -= late if len(prefix) < n_max / 2 else 0.0
        return tuple(found)

    context = Context(n_max, SOURCE)
    n = rng.choice((1, 1, 1, rng.randint(1, k), k + 1))
    truncated, eos = rng.random() < 0.3, rng.choice((0, vocabulary - 1))
    return kind, score, World(increments, lambda v, t: score.final(v, t, context), False, k, n, n_max, truncated, eos)


def run(search: Search, world: World, rows: int | None, rng: random.Random) -> Search:
    """Score `rows` hypotheses at a time, or (None) a random part of the frontier in random order."""
    while ready := search.frontier(rows or rng.choice((1, 3, 100))):
        for y in ready if rows else rng.sample(ready, rng.randint(1, len(ready))):
            found = world.increments(y.tokens)
            tokens = sorted((t for t, value in enumerate(found) if value > -inf), key=lambda t: (-found[t], t))
            search.commit(y, Successors([found[t] for t in tokens], tokens))
    return search


def run_plan(kind: Callable[..., Search], score: Score, world: World, rows: int | None, seed: int) -> Search:
    plan = best_first_beam(world.k).using(stop=HuggingFaceStep())
    context = Context(world.n_max, SOURCE)
    search = kind(plan, score=score, eos={world.eos}, context=context, n=world.n, accept_truncated=world.truncated)
    return run(search, world, rows, random.Random(seed))


def answers(search: Search) -> list[tuple[Tokens, float]]:
    return [(each.tokens, each.score) for each in search.result().hypotheses]


def test_step_search_gives_hugging_faces_answers_with_no_more_calls(cases, tally):
    """No more than `AnyOrderSearch`, which scores all that precedes the step, or beam search; ties included, in any order."""
    searches = faults = saved = 0
    for seed in cases(300, full=20_000):
        _, score, world = random_world(seed)
        theirs = hugging_face_search(world, False)
        expected = best(theirs.answers, world.n)
        found = [run_plan(StepSearch, score, world, rows, seed) for rows in (1, world.k, None)]
        before = run_plan(AnyOrderSearch, score, world, 1, seed)
        calls = {search.result().calls for search in found}
        searches += len(found)
        faults += sum(answers(search) != expected for search in (*found, before))
        faults += len(calls) > 1 or found[0].result().rows not in calls
        faults += max(calls) > min(before.result().calls, theirs.calls)
        saved += before.result().calls - max(calls)
    tally("searches by Hugging Face's step", searches, faults)
    assert faults == 0
    assert saved > 0


@pytest.mark.parametrize("eos", [0, 1])
@pytest.mark.parametrize(("kind", "score"), [(StepSearch, LengthNormalized(1.0)), (AnyOrderSearch, LogProbability())])
def test_equal_scores_decide_the_step(kind, score, eos):
    """Two tokens of probability 1/2, n = 2: as many calls as beam search, although all scores are equal."""
    world = World(lambda prefix: (log(0.5), log(0.5)), lambda v, t: score.final(v, t, Context(5)), False, 2, 2, 5, eos=eos)
    theirs = hugging_face_search(world, False)
    search = run_plan(kind, score, world, 1, 0)
    assert answers(search) == best(theirs.answers, 2)
    assert search.result().calls == theirs.calls == 2


def test_the_partial_hypothesis_has_its_final_score_when_nothing_finishes():
    world = World(lambda prefix: (-inf, -0.6, -1.1), lambda v, t: v / t, False, 2, 1, 3)
    partials = [run_plan(kind, LengthNormalized(1.0), world, 1, 0).result().partial for kind in (StepSearch, AnyOrderSearch)]
    assert partials[0] == partials[1]
    assert partials[0].score == pytest.approx(-0.6)


def recovering(ends: bool) -> World:
    """If `ends`, the best of all comes long after the k answers at which Hugging Face stops, one of which is left out.

    k = 2: an answer of score -1; [2], which can only become one of -1.5; and a path whose score falls to -1.6 and rises to -0.64.
    """
    tree = {
        (): (-1.0, -0.1, -3.0),
        (1,): (-inf, -0.1),
        (2,): (0.0 if ends else -inf, -0.5),
        (1, 1): (-inf, -0.1, -0.2),
        (1, 1, 1): (-inf, -15.7),
        (1, 1, 2): (-inf, -16.7),
    }

    def increments(prefix: Tokens) -> tuple[float, ...]:
        return tree.get(prefix, (0.0,) if len(prefix) == 24 else (-inf, 0.0))

    return World(increments, lambda v, t: v / max(t, 1), False, 2, 1, 30)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("rows", [1, 2, None])
def test_the_search_restarts_if_a_hypothesis_left_out_could_decide_the_stop(ends, rows):
    world = recovering(ends)
    expected = best(hugging_face_search(world, False).answers, 1)
    assert expected[0][1] == (-1.0 if ends else -16.0 / 25)
    search = run_plan(StepSearch, LengthNormalized(1.0), world, rows, 0)
    assert answers(search) == expected
    assert search.children[search.root, 2].successors is not None


def test_every_prefix_below_which_a_chain_changes_the_answers_is_scored(cases, tally):
    """A lower bound: prefixes below which one chain at no cost, of any length or without EOS, changes the answers."""
    tried = faults = needed = scored = 0
    for seed in cases(40, full=1000):
        kind, score, world = random_world(seed)
        if kind not in ("peaked", "flat") or world.truncated or world.n_max > 8 or world.k > 3:
            continue
        search = run_plan(StepSearch, score, world, 1, seed)
        expected = answers(search)
        tried += 1
        for y in (y for level in full(world).beams[: world.n_max] for y in level if not y.done):
            chains = [
                (*y.tokens, *[1 - min(world.eos, 1)] * (end - y.length - 1), world.eos)
                for end in range(y.length + 1, world.n_max + 2)
            ]
            if any(
                best(hugging_face_search(with_chain(world, chain, y.length), False).answers, world.n) != expected
                for chain in chains
            ):
                needed += 1
                faults += not was_on_a_beam(search, y.tokens)
        scored += search.result().calls
    tally("prefixes that Hugging Face's stop needs", needed, faults)
    assert tried > 0
    assert faults == 0
    assert needed <= scored


def with_chain(world: World, chain: Tokens, at: int) -> World:
    """This world with nothing but one chain below the prefix of length `at`."""

    def increments(prefix: Tokens) -> tuple[float, ...]:
        if prefix[:at] != chain[:at]:
            return world.increments(prefix)
        if prefix != chain[: len(prefix)] or len(prefix) >= len(chain):
            return ()
        return tuple(0.0 if token == chain[len(prefix)] else -inf for token in range(max(2, *chain) + 1))

    return world._replace(increments=increments)


def was_on_a_beam(search: StepSearch, tokens: Tokens) -> bool:
    """Whether this prefix was on a beam of the search."""
    y = search.root
    for token in tokens:
        if y.successors is None or token not in y.successors.tokens:
            return False
        child = search.children.get((y, y.successors.tokens.index(token)))
        if child is None:
            return False
        y = child
    return y.on_beam
