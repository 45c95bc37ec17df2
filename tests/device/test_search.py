"""Searches on the device equal those of `bestfirst.search`: same answers, same scores, same calls, for any schedule."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine import Job
from bestfirst.engine.device.device_step import DeviceStep, best
from bestfirst.engine.device.session import Session
from bestfirst.engine.device.state import Shape
from bestfirst.models import Source
from bestfirst.scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability
from bestfirst.search import AnyOrderSearch, Context, Patience, Successors, beam, best_first_beam
from bestfirst.settings import Decoding
from bestfirst.strategies import FirstFinished, ShortestFirstPruned, stopping
from toys import random_toy

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="toys are asked by the host: nothing for a graph")
EOS = 0


class Toys:
    """Stands in for a Hugging Face model: an input is a toy's number, and nothing is encoded."""

    eos, banned = (EOS,), ()

    def __init__(self, toys):
        self.toys = toys

    def text(self, source, tokens):
        return None

    def logits(self, index, prefix):
        return torch.tensor(self.toys[index](prefix), dtype=torch.float32)

    def successors(self, index, prefix, width, temperature=1.0):
        logits = self.logits(index, prefix)
        values, tokens, total = best(logits[None] / temperature, width, None)
        gains = (values - total[:, None]).clamp(max=0)[0].tolist()
        found = [(gain, token) for gain, token in zip(gains, tokens[0].tolist(), strict=True) if gain > -torch.inf]
        own = logits.log_softmax(-1).tolist()
        return Successors([gain for gain, _ in found], [token for _, token in found], [own[token] for _, token in found])


class ToyStep(DeviceStep):
    """Gets logits from the toys instead of a decoder."""

    def decoder(self, rows):
        self._embed(rows)
        out = torch.zeros(rows, self.weights.vocabulary)
        for row in range(int(self.state.counters[0])):
            node, length = int(self.row_node[row]), int(self.row_length[row])
            prefix = tuple(self.state.node_token[self.state.paths[node, 1 : length + 1].long()].tolist())
            out[row] = self.weights.toys.logits(self.weights.numbers[int(self.row_input[row])], prefix)
        return out


def session_of(toys, vocabulary, k, n, n_max, inputs, nodes, **more):
    width = min(k + 1, vocabulary)
    shape = Shape(k, n, inputs, 1, n_max + 2, nodes, width, **{"keep": True, "heated": True, **more})
    table = torch.zeros(vocabulary + 1, 1)
    weights = SimpleNamespace(
        room=lambda tokens, source: torch.zeros(tokens, 0), width=1, heads=1, size=1, dtype=torch.float32,
        device=torch.device("cpu"), vocabulary=vocabulary, toys=toys,
        embedding=table, positions=torch.zeros(n_max + 2, 1), embed_scale=1.0,
        encoder=lambda packed: packed.tokens, source_keys=lambda hidden, used: torch.zeros(len(hidden), 0),
    )  # fmt: skip
    session = Session(None, shape, weights, ToyStep)
    session.begin([EOS], [], [vocabulary])
    weights.numbers = [None] * inputs
    return session


def job(index, n_max, **settings):
    return Job(index, Source(SimpleNamespace(source=(1,), hidden=None, length=1), 1, n_max), Decoding(**settings))


def run(session, *batches):
    """Yields finished jobs; whenever none waits, the next batch of jobs is submitted."""
    waiting, coming = deque(), deque(batches)
    while session or waiting or coming:
        if not waiting and coming:
            waiting.extend(coming.popleft())
        yield from session.step(waiting)


def with_rows_per_step(session, rows):
    """The session, with this many rows per step; it notes for `ToyStep` which toy is in which slot."""
    session._rows_for = lambda active: rows
    admit = session.admission

    def note(jobs, slots, rules):
        admit(jobs, slots, rules)
        for slot, each in zip(slots, jobs, strict=True):
            session.weights.numbers[slot] = each.index

    session.admission = note
    return session


def decode(toys, vocabulary, k, n, n_max, accept_truncated=False, inputs=None, nodes=2000, rows=16, ahead=0, rules=None):
    """All toys, each as one input: `inputs` at a time, `rows` per step, and a host that is `ahead` steps behind."""
    session = with_rows_per_step(session_of(toys, vocabulary, k, n, n_max, inputs or len(toys.toys), nodes), rows)
    session.ahead = ahead
    settings = {"beam": k, "nbest": n, "accept_truncated": accept_truncated, **(rules or {})}
    jobs = [job(index, n_max, **settings) for index in range(len(toys.toys))]
    return {each.index: result for each, result in run(session, jobs[:2], jobs[2:])}, session


def reference(toys, index, k, n, n_max, width, accept_truncated=False, rules=None):
    """Kernels count every call that the bounds allow, as `AnyOrderSearch` does; `StepSearch` and `LevelSearch` omit some."""
    settings = {"strategy": best_first_beam(k), "nbest": n, "accept_truncated": accept_truncated, **(rules or {})}
    decoding = Decoding(**settings)
    context = Context(n_max, 1)
    search = AnyOrderSearch(
        decoding.plan, score=decoding.objective, eos={EOS}, context=context, n=n, accept_truncated=accept_truncated
    )
    while ready := search.frontier(1):
        search.commit(ready[0], toys.successors(index, ready[0].tokens, width, getattr(decoding.objective, "temperature", 1.0)))
    return search.result()


def assert_same_result(mine, theirs):
    assert [answer.tokens for answer in mine.hypotheses] == [answer.tokens for answer in theirs.hypotheses]
    assert [answer.score for answer in mine.hypotheses] == [answer.score for answer in theirs.hypotheses]
    own = [answer.logprob for answer in theirs.hypotheses]
    assert [answer.logprob for answer in mine.hypotheses] == pytest.approx(own, abs=1e-5)
    assert (mine.calls, mine.status, mine.exact) == (theirs.calls, theirs.status, theirs.exact)
    assert (mine.partial and mine.partial.tokens) == (theirs.partial and theirs.partial.tokens)


SETTINGS = [(1, 1, 4, 16, False), (2, 2, 5, 1, False), (3, 1, 6, 3, True), (5, 3, 5, 16, False), (4, 4, 3, 7, True)]


@pytest.mark.parametrize(("k", "n", "n_max", "rows", "truncated"), SETTINGS)
@pytest.mark.parametrize("kind", ["peaked", "dead-ends"])
def test_answers_scores_and_calls_equal_those_of_search(cases, tally, k, n, n_max, rows, truncated, kind):
    """Speculation of every width; with one row per step, order is strict. Dead ends leave searches without an answer."""
    numbers = cases(2, full=60)
    toys = Toys([random_toy(kind, 6, f"device {k} {seed}") for seed in numbers])
    found, _ = decode(toys, 6, k, n, n_max, truncated, rows=rows)
    for index in range(len(toys.toys)):
        assert_same_result(found[index], reference(toys, index, k, n, n_max, min(k + 1, 6), truncated))
    tally("searches on the device", len(toys.toys), 0)


SCORES = {
    "log-probability": LogProbability(),
    "temperature": LogProbability(2.5),
    "length penalty 1": LengthNormalized(1.0),
    "length penalty 2": LengthNormalized(2.0),
    "length penalty -0.5": LengthNormalized(-0.5),
    "GNMT": GNMT(0.8),
    "reward": LengthReward(0.7),
    "bounded reward": BoundedLengthReward(0.9, 3.0),
}
STOPS = {
    "proven": best_first_beam,
    "hf-false": lambda k: stopping(best_first_beam(k), "hf-false"),
    "hf-true": lambda k: beam(k).using(stop=Patience(1.0, "hf-true"), order=ShortestFirstPruned()),
    "patience": lambda k: beam(k).using(stop=Patience(1.6), order=ShortestFirstPruned()),
    "ctranslate2": lambda k: beam(k).using(stop=FirstFinished(1.3), order=ShortestFirstPruned()),
    "patience, all of a level": lambda k: stopping(beam(k), "patience", factor=1.3),
    "beam": beam,
    "beam, optimal stop": lambda k: stopping(beam(k), "huang"),
    "beam, to the end": lambda k: stopping(beam(k), "exhausted"),
    "keep": lambda k: best_first_beam(k, "keep"),
    "beam, keep": lambda k: beam(k, "keep"),
}


FEW = ("log-probability", "length penalty 1")  # the scores for stop rules that differ little from others


RULES = [(a, b) for a in SCORES for b in STOPS if a in FEW or not b.startswith("beam")]
KNOWN = [(a, b) for a, b in RULES if b != "ctranslate2" or not SCORES[a].value_only]  # else it looks at the first of a beam


@pytest.mark.parametrize(("score", "stop"), KNOWN)
def test_every_score_and_stop_rule_equals_search(cases, tally, score, stop):
    """Answers, scores and calls, whatever is scored ahead; with and without outputs truncated at the maximum length."""
    for number in cases(1, full=40):
        rng = random.Random(f"{score} {stop} {number}")
        k, n_max, rows, truncated = rng.choice((1, 2, 3, 5)), rng.randint(3, 7), rng.choice((1, 3, 16)), rng.random() < 0.6
        n = rng.randint(1, k)
        toys = Toys([random_toy("peaked", 6, f"rules {score} {stop} {number} {seed}") for seed in range(2)])
        rules = {"strategy": STOPS[stop](k), "score": SCORES[score]}
        found, _ = decode(toys, 6, k, n, n_max, truncated, rows=rows, rules=rules)
        for index in range(len(toys.toys)):
            assert_same_result(found[index], reference(toys, index, k, n, n_max, min(k + 1, 6), truncated, rules))
        tally("searches on the device, by score and stop", len(toys.toys), 0)


def test_children_of_a_wide_beam_are_merged_in_chunks():
    """More successors than are merged at once."""
    toys = Toys([random_toy("flat", 24, "wide")])
    found, _ = decode(toys, 24, 18, 2, 3)
    assert_same_result(found[0], reference(toys, 0, 18, 2, 3, 19))


def test_inputs_share_slots_and_release_their_nodes():
    toys = Toys([random_toy("peaked", 5, f"turns {seed}") for seed in range(5)])
    found, session = decode(toys, 5, 3, 1, 4, inputs=2, ahead=2)
    for index in range(5):
        assert_same_result(found[index], reference(toys, index, 3, 1, 4, 4))
    assert session.peak_in_flight == 2
    assert int(session.state.counters[4]) == session.shape.nodes - 1


@pytest.mark.parametrize("ahead", [0, 2])
def test_without_free_nodes_later_inputs_are_removed_and_restarted(ahead):
    toys = Toys([random_toy("flat", 5, f"room {seed}") for seed in range(4)])
    found, _ = decode(toys, 5, 3, 1, 5, nodes=34, ahead=ahead)
    for index in range(4):
        assert_same_result(found[index], reference(toys, index, 3, 1, 5, 4))


def test_a_single_input_that_does_not_fit_is_out_of_memory():
    toys = Toys([random_toy("flat", 5, "too large")])
    with pytest.raises(torch.OutOfMemoryError, match="one input alone"):
        decode(toys, 5, 3, 1, 6, nodes=3)


def test_non_finite_scores_are_reported():
    toys = Toys([lambda prefix: (float("nan"),) * 4])
    with pytest.raises(ValueError, match="not finite"):
        decode(toys, 4, 2, 1, 3)


def test_results_are_returned_while_inputs_still_wait():
    """With more inputs than can be in flight, the first results are returned before the last input is admitted."""
    toys = Toys([random_toy("peaked", 4, f"pile {seed}") for seed in range(9)])
    session = session_of(toys, 4, 1, 1, 1, 1, 40)
    session._rows_for = lambda active: 1
    session.weights.numbers[0] = 0
    waiting = deque(job(index, 1, beam=1) for index in range(9))
    while not session.step(waiting):
        pass
    assert waiting


def test_an_interrupted_session_can_restart():
    toys = Toys([random_toy("peaked", 5, f"left {seed}") for seed in range(2)])
    found, session = decode(toys, 5, 3, 1, 4)
    jobs = [job(index, 4, beam=3) for index in range(2)]
    session.step(deque(jobs))
    assert session.in_flight == 2
    session.begin([EOS], [], [5])
    again = {each.index: result for each, result in run(session, jobs)}
    for index in range(2):
        assert_same_result(again[index], found[index])


def test_jobs_of_one_session_may_have_different_beams_and_n_best():
    toys = Toys([random_toy("peaked", 6, f"mixed {seed}") for seed in range(4)])
    session = session_of(toys, 6, 5, 4, 5, 4, 2000)
    session.weights.numbers = [0, 1, 2, 3]
    asked = [(5, 4, False), (1, 1, False), (3, 2, True), (2, 2, False)]
    jobs = [job(i, 5, beam=k, nbest=n, accept_truncated=truncated) for i, (k, n, truncated) in enumerate(asked)]
    found = {each.index: result for each, result in run(session, jobs)}
    for index, (k, n, truncated) in enumerate(asked):
        assert_same_result(found[index], reference(toys, index, k, n, 5, min(k + 1, 6), truncated))


def test_a_cancelled_job_releases_its_nodes():
    toys = Toys([random_toy("flat", 5, f"gone {seed}") for seed in range(2)])
    session = session_of(toys, 5, 3, 1, 5, 2, 2000)
    session.weights.numbers = [0, 1]
    jobs = [job(index, 5, beam=3) for index in range(2)]
    session.step(deque(jobs))
    session.cancel(jobs[0])
    found = {each.index: result for each, result in run(session)}
    assert list(found) == [1]
    assert_same_result(found[1], reference(toys, 1, 3, 1, 5, 4))
    assert int(session.state.counters[4]) == session.shape.nodes - 1
