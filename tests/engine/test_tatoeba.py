"""The embedded model on the 200 shipped sentences: the paper's counts, Hugging Face's outputs, independence of batching."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bestfirst
from bestfirst import Stats
from bestfirst.engine.model_record import record_of
from bestfirst.scoring import LengthNormalized
from bestfirst.search import AnyOrderSearch
from bestfirst.settings import Budget

LINES = (Path(__file__).parents[1] / "data" / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def model():
    return bestfirst.load()


def paper_limit(length):
    return 2 * length + 10


def calls(results):
    return sum(result.calls for result in results) / len(results)


class Unpruned(AnyOrderSearch):
    """Without the pruning of Theorem 4.4, to count what it saves; under `leave` the result does not depend on it."""

    def _hopeless(self, y):
        return None


@pytest.mark.parametrize(("k", "best_first", "without_prune", "beam"), [(5, 15.34, 15.9, 45.2), (10, 18.68, 19.4, 90.0)])
def test_calls_are_those_of_the_paper_algorithm(model, monkeypatch, k, best_first, without_prune, beam):
    """Under `keep`, n_max = 2|x| + 10. Best-first makes fewer calls than were first measured, without Theorem 4.4's pruning."""
    ours = bestfirst.decode(model, LINES, max_length=paper_limit, beam=k, finished="keep")
    assert calls(ours) == pytest.approx(best_first, rel=0.02)
    by_level = bestfirst.decode(model, LINES, max_length=paper_limit, beam=k, finished="keep", strategy="beam")
    assert calls(by_level) == pytest.approx(beam, rel=0.02)
    monkeypatch.setattr("bestfirst.search.score.AnyOrderSearch", Unpruned)
    monkeypatch.setattr("bestfirst.search.score.StrictSearch.takes", lambda strategy, score: False)
    unpruned = bestfirst.decode(model, LINES, max_length=paper_limit, beam=k, finished="leave")
    assert calls(unpruned) == pytest.approx(without_prune, rel=0.02)
    assert [r.text for r in unpruned] == [r.text for r in ours]


@pytest.mark.parametrize("k", [5, 10])
def test_the_best_text_equals_hugging_faces(model, k):
    results = bestfirst.decode(model, LINES, beam=k, max_length=100, accept_truncated=True)
    order = sorted(range(len(LINES)), key=lambda i: len(LINES[i]))
    for start in range(0, len(order), 40):
        chosen = order[start : start + 40]
        batch = model.tokenizer([LINES[i] for i in chosen], return_tensors="pt", padding=True)
        with torch.inference_mode():
            found = model.model.generate(**batch, num_beams=k, length_penalty=0.0, early_stopping="never", max_length=101)
        for i, tokens in zip(chosen, found.tolist(), strict=True):
            text = model.tokenizer.decode(tokens, skip_special_tokens=True)
            if text != results[i].text:
                assert abs(logprob(model, LINES[i], tokens[1:]) - results[i].hypotheses[0].score) < NEAR_TIE, LINES[i]


def logprob(model, line, tokens):
    """The model's own log-probability of tokens up to EOS."""
    tokens = tokens[: tokens.index(0) + 1]
    source = torch.tensor([model.tokenizer(line).input_ids])
    start = torch.tensor([[*model.start_tokens, *tokens[:-1]]])
    with torch.inference_mode():
        logits = model.model(input_ids=source, decoder_input_ids=start).logits[0]
    return float(torch.log_softmax(logits, -1)[range(len(tokens)), tokens].double().sum())


# -- independence of batching ----------------------------------------------------------------------------------------------


@dataclass
class Comparable:
    """The part of a result that may depend on the input alone."""

    answers: list[tuple[tuple[int, ...], float]]
    calls: int

    @classmethod
    def of(cls, result):
        return cls([(answer.tokens, answer.score) for answer in result.hypotheses], result.calls)

    def same_as(self, other):
        """Equal up to near-ties: scores to 1e-4, and another order or count only where two scores are that close."""
        scores = all(abs(a[1] - b[1]) < NEAR_TIE for a, b in zip(self.answers, other.answers, strict=True))
        tokens = [a[0] for a in self.answers] == [b[0] for b in other.answers]
        tied = any(abs(a[1] - b[1]) < NEAR_TIE for a, b in zip(self.answers, self.answers[1:], strict=False))
        return scores and (tokens or tied) and (self.calls == other.calls or tied)


@pytest.mark.parametrize(
    "settings", [{"beam": 5, "nbest": 5}, {"beam": 10, "score": LengthNormalized(1.0)}], ids=["nbest", "normalized"]
)
def test_results_do_not_depend_on_row_budget_batch_and_order_of_inputs(model, cases, settings):
    lines = LINES[: len(cases(24, full=200))]
    settings = {**settings, "max_length": 60}
    expected = [Comparable.of(r) for r in bestfirst.decode(model, lines, row_budget=64, **settings)]
    for row_budget in (1, 7):
        found = [Comparable.of(r) for r in bestfirst.decode(model, lines, row_budget=row_budget, **settings)]
        assert all(a.same_as(b) for a, b in zip(found, expected, strict=True)), row_budget
    alone = [Comparable.of(bestfirst.decode(model, [line], **settings)[0]) for line in lines]
    assert all(a.same_as(b) for a, b in zip(alone, expected, strict=True))
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = bestfirst.decode(model, [lines[i] for i in order], row_budget=7, **settings)
    assert all(Comparable.of(r).same_as(expected[i]) for i, r in zip(order, shuffled, strict=True))


@pytest.mark.parametrize("k", [5, 10])
def test_one_sentence_takes_the_steps_of_optimally_stopped_beam_search(model, cases, k):
    """With room for a level in a step. By default a single input gets only as many rows as pay for the steps they save."""
    for line in LINES[: len(cases(25, full=200))]:
        (ours,) = bestfirst.decode(model, [line], beam=k, row_budget=k)
        (beam,) = bestfirst.decode(model, [line], beam=k, strategy="beam", stop="huang", row_budget=k)
        assert (ours.steps, ours.text) == (beam.steps, beam.text), line


def test_the_cache_stays_within_max_cache_tokens(model):
    free, bounded = Stats(), Stats()
    lines = LINES[:60]
    expected = bestfirst.decode(model, lines, beam=10, row_budget=64, stats=free)
    found = bestfirst.decode(model, lines, beam=10, row_budget=64, max_cache_tokens=300, stats=bounded)
    assert bounded.cache_tokens <= 300 < free.cache_tokens
    assert [r.text for r in found] == [r.text for r in expected]
    tight = Stats()
    (one, *_) = bestfirst.decode(model, lines[:3], beam=10, max_cache_tokens=1, stats=tight)
    assert tight.in_flight == 1
    assert one.text == expected[0].text


def test_a_wide_beam_scores_under_a_twentieth_of_beam_searchs_rows(model, monkeypatch):
    monkeypatch.setattr(record_of(model), "budget", Budget(96, free=96, alone=4))  # a typical measurement, on any machine
    stats = Stats()
    results = bestfirst.decode(model, LINES[:20], beam=500, max_length=60, stats=stats)
    beam = bestfirst.decode(model, LINES[:2], beam=500, max_length=60, finished="keep", strategy="beam")
    assert all(result.exact for result in results)
    assert 20 * sum(r.rows for r in results[:2]) < sum(r.rows for r in beam)
    assert [r.text for r in results[:2]] == [r.text for r in beam]


@pytest.mark.parametrize("k", [150, 520])
def test_wide_beams_equal_beam_search(model, k):
    """Their successors are selected together, and stored in less memory than lists take."""
    settings = {"beam": k, "nbest": 40, "max_length": 5, "accept_truncated": True}
    names = ("best-first", "beam")
    by = {name: bestfirst.decode(model, ["Wo ist der Bahnhof?"], strategy=name, **settings)[0] for name in names}
    found, wanted = ([(answer.tokens, answer.score) for answer in by[name].hypotheses] for name in names)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-4)
    assert by["best-first"].calls <= by["beam"].calls
