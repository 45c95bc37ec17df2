"""Searches on the device are those of `bestfirst.search`: same answers, same scores, same calls, whatever the schedule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine.device.attention import best
from bestfirst.engine.device.entry import Entrant
from bestfirst.engine.device.flight import Flight
from bestfirst.engine.device.state import Shape
from bestfirst.engine.device.step import Step
from bestfirst.scoring import LogProbability
from bestfirst.search import Context, Search, Successors, best_first_beam
from toys import random_toy

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="toys are asked by the host: nothing for a graph")
EOS = 0


class Toys:
    """Stands for a Hugging Face model: an input is a toy's number, and nothing is encoded."""

    eos, banned = (EOS,), ()

    def __init__(self, toys):
        self.toys = toys

    def text(self, source, tokens):
        return None

    def logits(self, index, prefix):
        return torch.tensor(self.toys[index](prefix), dtype=torch.float32)

    def successors(self, index, prefix, width):
        values, tokens, total = best(self.logits(index, prefix)[None], width, None)
        gains = (values - total[:, None]).clamp(max=0)[0].tolist()
        found = [(gain, token) for gain, token in zip(gains, tokens[0].tolist(), strict=True) if gain > -torch.inf]
        return Successors([gain for gain, _ in found], [token for _, token in found])


class ToyStep(Step):
    """Asks the toys in place of a decoder."""

    def decoder(self, rows):
        self._embed(rows)
        out = torch.zeros(rows, self.weights.vocabulary)
        for row in range(int(self.state.counters[0])):
            node, length = int(self.row_node[row]), int(self.row_length[row])
            prefix = tuple(self.state.node_token[self.state.paths[node, 1 : length + 1].long()].tolist())
            out[row] = self.weights.toys.logits(self.weights.numbers[int(self.row_input[row])], prefix)
        return out


def flight_of(toys, vocabulary, k, n, n_max, accept_truncated, inputs, nodes):
    width = min(k + 1, vocabulary)
    shape = Shape(k, n, accept_truncated, inputs, 1, n_max + 2, nodes, width, (vocabulary,))
    table = torch.zeros(vocabulary + 1, 1)
    weights = SimpleNamespace(
        layers=[], width=1, heads=1, size=1, dtype=torch.float32, device=torch.device("cpu"), vocabulary=vocabulary, toys=toys,
        embedding=table, positions=torch.zeros(n_max + 2, 1), embed_scale=1.0,
        source_keys=lambda packed: torch.zeros(len(packed.tokens), 0),
    )  # fmt: skip
    flight = Flight(toys, shape, weights, ToyStep)
    weights.numbers = [None] * inputs
    return flight


def decode(toys, vocabulary, k, n, n_max, accept_truncated=False, inputs=None, nodes=2000, rows=16, ahead=0):
    """All toys, each as one input; so many at a time, with so many rows in a step, and a host that is so many looks behind."""
    flight = flight_of(toys, vocabulary, k, n, n_max, accept_truncated, inputs or len(toys.toys), nodes)
    flight._rows_for = lambda active: rows
    flight.ahead = ahead
    enter = flight.entry

    def note(entrants, slots):
        enter(entrants, slots)
        for slot, entrant in zip(slots, entrants, strict=True):
            flight.weights.numbers[slot] = entrant.index

    flight.entry = note
    source = SimpleNamespace(payload=SimpleNamespace(source=(1,)))
    entrants = [Entrant(index, source, n_max) for index in range(len(toys.toys))]
    return {entrant.index: result for entrant, result in flight.run(iter([entrants[:2], entrants[2:]]))}, flight


def reference(toys, index, k, n, n_max, width, accept_truncated=False):
    context = Context(n_max=n_max)
    search = Search(
        best_first_beam(k), score=LogProbability(), eos={EOS}, context=context, n=n, accept_truncated=accept_truncated
    )
    while (y := search.needed()) is not None:
        search.commit(y, toys.successors(index, y.tokens, width))
    return search.result()


def same(mine, theirs):
    assert [answer.tokens for answer in mine.hypotheses] == [answer.tokens for answer in theirs.hypotheses]
    assert [answer.score for answer in mine.hypotheses] == [answer.score for answer in theirs.hypotheses]
    assert (mine.calls, mine.status, mine.exact) == (theirs.calls, theirs.status, theirs.exact)
    assert (mine.partial and mine.partial.tokens) == (theirs.partial and theirs.partial.tokens)


SETTINGS = [(1, 1, 4, 16, False), (2, 2, 5, 1, False), (3, 1, 6, 3, True), (5, 3, 5, 16, False), (4, 4, 3, 7, True)]


@pytest.mark.parametrize(("k", "n", "n_max", "rows", "truncated"), SETTINGS)
@pytest.mark.parametrize("kind", ["peaked", "dead-ends"])
def test_answers_scores_and_calls_are_those_of_search(cases, tally, k, n, n_max, rows, truncated, kind):
    """Speculation of every width; a step of one row is strict order. Dead ends leave searches without an answer."""
    numbers = cases(2, full=60)
    toys = Toys([random_toy(kind, 6, f"device {k} {seed}") for seed in numbers])
    found, _ = decode(toys, 6, k, n, n_max, truncated, rows=rows)
    for index in range(len(toys.toys)):
        same(found[index], reference(toys, index, k, n, n_max, min(k + 1, 6), truncated))
    tally("searches on the device", len(toys.toys), 0)


def test_children_of_a_wide_beam_come_in_chunks():
    """More successors than are merged at a time."""
    toys = Toys([random_toy("flat", 24, "wide")])
    found, _ = decode(toys, 24, 18, 2, 3)
    same(found[0], reference(toys, 0, 18, 2, 3, 19))


def test_inputs_take_turns_and_give_their_nodes_back():
    toys = Toys([random_toy("peaked", 5, f"turns {seed}") for seed in range(5)])
    found, flight = decode(toys, 5, 3, 1, 4, inputs=2, ahead=2)
    for index in range(5):
        same(found[index], reference(toys, index, 3, 1, 4, 4))
    assert flight.most_in_flight == 2
    assert int(flight.state.counters[4]) == flight.shape.nodes - 1


@pytest.mark.parametrize("ahead", [0, 2])
def test_without_a_free_node_the_later_inputs_make_room_and_begin_again(ahead):
    toys = Toys([random_toy("flat", 5, f"room {seed}") for seed in range(4)])
    found, _ = decode(toys, 5, 3, 1, 5, nodes=34, ahead=ahead)
    for index in range(4):
        same(found[index], reference(toys, index, 3, 1, 5, 4))


def test_one_input_that_does_not_fit_is_out_of_memory():
    toys = Toys([random_toy("flat", 5, "too large")])
    with pytest.raises(torch.OutOfMemoryError, match="one input alone"):
        decode(toys, 5, 3, 1, 6, nodes=3)


def test_scores_that_are_not_finite_are_told():
    toys = Toys([lambda prefix: (float("nan"),) * 4])
    with pytest.raises(ValueError, match="not finite"):
        decode(toys, 4, 2, 1, 3)


def test_results_do_not_pile_up():
    """Of more inputs than can be in flight, the first results are there before the last input is let in."""
    toys = Toys([random_toy("peaked", 4, f"pile {seed}") for seed in range(9)])
    flight = flight_of(toys, 4, 1, 1, 1, False, 1, 40)
    flight._rows_for = lambda active: 1
    flight.weights.numbers[0] = 0
    source = SimpleNamespace(payload=SimpleNamespace(source=(1,)))
    next(flight.run(iter([[Entrant(index, source, 1) for index in range(9)]])))
    assert flight._waiting


def test_a_flight_that_was_interrupted_begins_anew():
    toys = Toys([random_toy("peaked", 5, f"left {seed}") for seed in range(2)])
    found, flight = decode(toys, 5, 3, 1, 4)
    source = SimpleNamespace(payload=SimpleNamespace(source=(1,)))
    entrants = [Entrant(index, source, 4) for index in range(2)]

    def interrupted():
        yield entrants
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(flight.run(interrupted()))
    assert flight.in_flight == 2
    again = {entrant.index: result for entrant, result in flight.run(iter([entrants]))}
    for index in range(2):
        same(again[index], found[index])
