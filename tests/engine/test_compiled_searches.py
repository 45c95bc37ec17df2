"""Compiled searches alone, on small trees of increments: cases that models seldom produce, such as beginning again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bestfirst.engine.compiled_engine import norms
from bestfirst.engine.steps.native import search_plan as s
from bestfirst.engine.steps.native.calls import at
from bestfirst.engine.steps.native.search_memory import SearchMemory, StepMemory
from bestfirst.scoring import GNMT, LengthNormalized
from bestfirst.search import Context, StepSearch, Successors, best_first_beam
from bestfirst.strategies import HuggingFaceStep
from search.audit import World
from search.test_step import random_world, recovering

pytest.importorskip("numba")

from bestfirst.engine.steps.native import searches

SCORES = [LengthNormalized(0.3), LengthNormalized(1.0), LengthNormalized(2.0), GNMT(0.6)]


def successors(world: World, prefix: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """As from a model, in float32: as many as can matter, the best first."""
    values = np.array(world.increments(prefix), np.float32)
    order = [t for t in np.lexsort((np.arange(len(values)), -values)).tolist() if values[t] > -np.inf][: world.k + 1]
    return values[order].tolist(), order


def in_python(world: World, score: Any, rows: int) -> tuple[Any, ...]:
    plan, context = best_first_beam(world.k).using(stop=HuggingFaceStep()), Context(world.n_max, 4)
    search = StepSearch(plan, score=score, eos={world.eos}, context=context, n=world.n, accept_truncated=world.truncated)
    while ready := search.frontier(min(rows, search.level_rows)):
        for y in ready:
            search.commit(y, Successors(*successors(world, y.tokens)))
    found = search.result()
    return [(each.tokens, each.logprob) for each in found.hypotheses], found.calls, found.rows, search._leaves_out


def compiled(world: World, score: Any, rows: int) -> tuple[Any, ...]:
    complete = world.n_max if world.truncated else None
    one = SearchMemory(k=world.k, n=world.n, n_max=world.n_max, keep=False, complete=complete, ends={world.eos})
    one.until_step(norms(score, world.n_max), max(world.n, world.k))
    step, width = StepMemory(rows), one.width
    e, p, heads = step.numbers, np.zeros(10, np.int64), np.array([at(one.head)])
    best, tokens, slots = np.empty((rows, width), np.float32), np.zeros((rows, width), np.int64), np.zeros(rows, np.int32)
    e[[s.SEARCHES, s.SEARCHES_AT, s.BUDGET, s.FREE, s.BEST_OF_AT, s.TOKENS_OF_AT]] = (
        1,
        at(heads),
        rows,
        rows,
        at(best),
        at(tokens),
    )
    p[9] = at(slots)
    while True:
        one.make_room()
        queued, found, lengths = one.head[s.ROW_ROOM], one.head[s.ANSWER_ROOM], world.n_max + 2
        step.room(s.GUESS_COSTS_AT, rows)
        step.room(s.GUESSES_AT, 3 * rows, np.int32)
        for place, size, kind in (
            (s.COSTS_AT, queued, np.float64), (s.CURSORS_AT, 3 * queued, np.int32), (s.COUNTS_AT, 3 * lengths, np.int64),
            (s.MARKS_AT, 5 * lengths, np.float64), (s.ANSWERS_AT, 2 * found, np.int32), (s.ANSWER_VALUES_AT, found, np.float64),
            (s.AWAY_COSTS_AT, queued, np.float64), (s.AWAY_CURSORS_AT, 3 * queued, np.int32),
        ):  # fmt: skip
            step.room(s.PLAYED_AT + place, size, kind)
        n = searches.plan(e)
        if one.head[s.OVER] > 0:
            return one.answers, one.head[s.CALLS], one.head[s.SCORED], one.head[s.LEAVES_OUT] == 1
        best[:] = -np.inf
        for row, node in enumerate(step._about[0, :n].tolist()):
            values, ids = successors(world, one.tokens(node))
            best[row, : len(ids)], tokens[row, : len(ids)] = values, ids
        assert searches.commit(e, p, n, width)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_search_that_begins_again(ends, rows):
    found = compiled(recovering(ends), LengthNormalized(1.0), rows)
    assert found == in_python(recovering(ends), LengthNormalized(1.0), rows)
    assert not found[-1]


def test_compiled_searches_equal_searches_in_python_on_random_trees(cases, tally):
    faults = searched = 0
    for seed in cases(400, full=20_000):
        _, _, world = random_world(seed)
        score, rows = SCORES[seed % len(SCORES)], (1, 2, world.k, 16)[seed % 4]
        found = compiled(world, score, rows)
        searched += 1
        faults += found != in_python(world, score, rows)
    tally("compiled searches = searches in Python", searched, faults)
    assert faults == 0
