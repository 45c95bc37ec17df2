"""The paper, section 3.3: the queue of beams, and the comparisons that an insertion costs."""

from __future__ import annotations

import random
from math import log2

import pytest

from bestfirst.search import Agenda, Beam, Hypothesis

compared = 0


class Counted(float):
    """A number that counts its comparisons."""

    def __lt__(self, other: float) -> bool:
        global compared
        compared += 1
        return float.__lt__(self, other)

    def __gt__(self, other: float) -> bool:
        global compared
        compared += 1
        return float.__gt__(self, other)


def hypothesis(cost: float, number: int, finished: bool = False) -> Hypothesis:
    y = Hypothesis(None, -1, -cost, -cost, finished)
    y.length = 1
    y.rank = y.key = (Counted(cost), 1, (number,))
    return y


def comparisons(beam: Beam, y: Hypothesis) -> int:
    global compared
    compared = 0
    beam.insert(y)
    return compared


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("k", [1, 5, 100, 1000])
def test_section_3_3_a_full_beam_refuses_a_hypothesis_in_one_comparison(k, keep):
    beam = Beam(1, k, keep)
    for number in range(k):
        beam.insert(hypothesis(number, number))
    assert beam.full
    late = hypothesis(k, k)
    assert comparisons(beam, late) == 1
    assert late not in beam.members


@pytest.mark.parametrize("k", [1, 5, 100, 1000])
def test_section_3_3_a_hypothesis_enters_a_beam_in_log_k_comparisons(k):
    beam, rng = Beam(1, k, keep=True), random.Random(k)
    most = max(comparisons(beam, hypothesis(rng.random(), number)) for number in range(3 * k))
    assert most <= log2(k + 1) + 2


@pytest.mark.parametrize("keep", [True, False])
def test_members_of_a_beam_do_not_depend_on_the_order_of_insertion(keep):
    """keep: the k best; leave: the k best unfinished, and the finished ones of rank below k."""
    for seed in range(200):
        rng = random.Random(seed)
        k = rng.randint(1, 6)
        inserted = [hypothesis(rng.choice((1, 2, 3)), number, finished=rng.random() < 0.4) for number in range(20)]
        beam = Beam(1, k, keep)
        for y in rng.sample(inserted, len(inserted)):
            beam.insert(y)
        ranked = sorted(inserted, key=lambda y: y.rank)
        if not keep:
            unfinished = [y for y in ranked if not y.finished][:k]
            ranked = [y for i, y in enumerate(ranked) if y in unfinished or (y.finished and i < k)]
        assert beam.members == (ranked[:k] if keep else ranked)


def test_the_head_of_the_agenda_is_the_best_hypothesis_of_all_beams():
    rng, agenda = random.Random(0), Agenda()
    waiting = []
    agenda.beams += [Beam(length, 100, keep=False) for length in range(5)]
    for number in range(60):
        y = hypothesis(rng.choice((1, 2, 3, 4)), number)
        y.length = rng.randrange(5)
        y.key = (y.key[0], y.length, (number,))
        agenda.enqueue(y)
        waiting.append(y)
    while waiting:
        first = min(waiting, key=lambda y: y.key)
        assert agenda.head() is first
        assert agenda.queued() == len(waiting)
        y = rng.choice([first, rng.choice(waiting)])
        agenda.dequeue(y)
        waiting.remove(y)
    assert agenda.head() is None
