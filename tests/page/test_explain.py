"""`explain`: every claim about a wanted output is compared with real searches."""

from __future__ import annotations

import random
from math import exp, inf

import pytest

import bestfirst
from bestfirst import Decoding, Trie
from bestfirst.explaining import explain
from bestfirst.search import best_first_beam
from toys import Case, random_cases, run

WIDEST = 12  # the largest beam tried on toys


def toy_model(case: Case) -> bestfirst.FunctionModel:
    return bestfirst.FunctionModel(lambda prefix: list(case.toy(tuple(prefix))), eos=0)


def random_output(case: Case, rng: random.Random) -> tuple[int, ...] | None:
    """A random output of the toy, without its end token, or None at a dead end."""
    tokens: list[int] = []
    for _ in range(rng.randint(1, max(1, case.n_max - 1))):
        possible = [t for t, value in enumerate(case.toy(tuple(tokens))) if value > -inf and t != 0]
        if not possible:
            return None
        weights = [exp(case.toy(tuple(tokens))[t]) for t in possible]
        tokens.append(rng.choices(possible, weights)[0])
    can_end = len(tokens) < case.n_max and case.toy(tuple(tokens))[0] > -inf
    return tuple(tokens) if can_end else None


def answers(case: Case, k: int) -> list[tuple[int, ...]]:
    """All answers of beam search with beam k, in order: as many as it can have."""
    n = k if case.finished == "keep" else 10**6
    return [tokens for tokens, _ in run(case.toy, best_first_beam(k, case.finished), case.n_max, n=n).answers]


def test_claims_agree_with_searches(cases, tally):
    """Lost or kept, its place, and the smallest beam that keeps it: every beam up to `WIDEST` is searched."""
    numbers = cases(120, full=2000)
    lost = kept = 0
    for case in random_cases(numbers, title="explain"):
        wanted = random_output(case, random.Random(case.seed))
        if wanted is None:
            continue
        claim = explain(
            toy_model(case), None, wanted, beam=case.k, finished=case.finished, max_length=case.n_max, max_beam=WIDEST
        )
        found = answers(case, case.k)
        assert claim.tokens == (*wanted, 0)
        assert (claim.lost is None) == (claim.tokens in found), case
        if claim.lost is None:
            assert found[claim.place - 1] == claim.tokens
            kept += 1
        else:
            assert claim.rank > case.k
            lost += 1
        keeping = [k for k in range(1, WIDEST + 1) if claim.tokens in answers(case, k)]
        assert claim.smallest == (keeping[0] if keeping else None), case
        if keeping:
            assert answers(case, keeping[0])[claim.smallest_place - 1] == claim.tokens
        assert [answer.tokens for answer in claim.answers] == found[:1]
    tally("outputs explained", lost + kept, 0)
    assert lost > 10
    assert kept > 10


def test_ranks_are_counted_among_all_candidates(cases):
    """Compared with a plain beam search: the candidates of a length are the sorted children of the kept hypotheses."""
    for case in random_cases(cases(60, full=600), title="ranks"):
        wanted = random_output(case, random.Random(case.seed))
        if wanted is None or case.finished == "keep":
            continue
        claim = explain(toy_model(case), None, wanted, beam=case.k, max_length=case.n_max, max_beam=1)
        kept = [((), 0.0)]
        for length, step in enumerate(claim.steps, 1):
            children = [((*y, t), value + add) for y, value in kept for t, add in enumerate(case.toy(y)) if add > -inf]
            children.sort(key=lambda child: (-child[1], child[0]))
            unfinished = [child for child in children if child[0][-1] != 0]
            rivals = children if step.token == 0 else unfinished
            assert step.rank == 1 + [tokens for tokens, _ in rivals].index(claim.tokens[:length])
            if length == claim.lost:
                assert step.rank > case.k
                break
            kept = unfinished[: case.k]


@pytest.mark.parametrize(
    ("source", "wanted", "beam", "finished"),
    [
        ("Wo ist der Bahnhof?", "Where's the station?", 1, "leave"),
        ("Wie melkt man eine Kuh?", "What do you milk a cow?", 2, "leave"),
        ("Wie melkt man eine Kuh?", "What do you milk a cow?", 2, "keep"),
        ("Ich habe keine Zeit.", "I don't have the time.", 1, "leave"),
    ],
)
def test_the_smallest_beam_is_verified_on_the_embedded_model(model, source, wanted, beam, finished):
    claim = explain(model, source, wanted, beam=beam, finished=finished, max_beam=40)
    assert claim.text == wanted
    assert claim.lost is not None
    assert claim.rank > beam
    assert claim.smallest is not None
    (result,) = bestfirst.decode(model, [source], beam=claim.smallest, finished=finished, nbest=claim.smallest_place)
    assert result.exact
    assert result.hypotheses[-1].tokens == claim.tokens
    assert result.hypotheses[-1].score == pytest.approx(claim.score, abs=1e-4)
    for k in range(1, claim.smallest):
        n = k if finished == "keep" else 60
        (result,) = bestfirst.decode(model, [source], beam=k, finished=finished, nbest=n)
        assert claim.tokens not in [answer.tokens for answer in result.hypotheses]


def test_the_beam_and_the_rule_of_a_strategy_are_explained():
    toy = bestfirst.FunctionModel(lambda prefix: [[-1.0, -0.6, -2.5, -2.0], [-0.5, -1.1, -2.0, -1.3]][len(prefix) % 2], eos=0)
    for strategy, named in (("greedy", {"beam": 1}), (best_first_beam(2, "keep"), {"beam": 2, "finished": "keep"})):
        assert explain(toy, None, [3, 3], strategy=strategy) == explain(toy, None, [3, 3], **named)


def test_outputs_are_explained_under_other_scores_than_log_probability(model):
    settings = {"score": "length-normalized", "score_options": {"alpha": 1.0}}
    claim = explain(model, "Wo ist der Bahnhof?", "Where is the train station?", beam=5, max_beam=5, **settings)
    short = bestfirst.Decoding(length_penalty=1.0, max_length="9x")
    assert explain(model, "Wo ist der Bahnhof?", "Where is the train station?", short, max_beam=5).score == claim.score
    assert claim.lost is None
    (result,) = bestfirst.decode(model, ["Wo ist der Bahnhof?"], beam=5, nbest=claim.place, **settings)
    assert result.hypotheses[-1].tokens == claim.tokens
    assert claim.score == pytest.approx(claim.logprob / len(claim.tokens))


def test_outputs_and_settings_that_cannot_be_explained_are_refused(model):
    with pytest.raises(ValueError, match="the wanted output is empty"):
        explain(model, "Ja.", " ")
    with pytest.raises(ValueError, match=r"must be a text or token ids, got \['Yes\.'\]"):
        explain(model, "Ja.", ["Yes."])
    with pytest.raises(ValueError, match="cannot write '東京': '東京' is not in its vocabulary"):
        explain(model, "Ja.", "東京")
    with pytest.raises(ValueError, match=r"has \d tokens with its end, more than max_length, 3; raise it"):
        explain(model, "Ja.", "Yes, sir", max_length=3)
    with pytest.raises(ValueError, match="finished must be 'keep' or 'leave', got 'shrink'"):
        explain(model, "Ja.", "Yes.", finished="shrink")
    with pytest.raises(ValueError, match="finished must be 'keep' or 'leave', got 'shrink'"):
        explain(model, "Ja.", "Yes.", Decoding(strategy="beam", finished="shrink"))
    for strategy in ("best-first-unpruned", best_first_beam(3, queue_capacity=2)):
        with pytest.raises(ValueError, match="cannot be explained: it does not return beam search's answers"):
            explain(model, "Ja.", "Yes.", strategy=strategy)
    for settings in (
        {"allowed": Trie([[4, 5]])},
        {"must_contain": ["a"]},
        {"min_length": 9},
        {"stop_strings": ["a"]},
        {"eos": 5},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} cannot be explained: leave it out"):
            explain(model, "Ja.", "Yes.", **settings)
    with pytest.raises(ValueError, match="max_calls cannot be explained: leave it out"):
        explain(model, "Ja.", "Yes.", max_calls=3)
    with pytest.raises(TypeError, match="settings are given twice: as an object, and as beam"):
        explain(model, "Ja.", "Yes.", bestfirst.Decoding(), beam=3)
    toy = bestfirst.FunctionModel(lambda prefix: [-1.0, -inf], eos=0)
    with pytest.raises(ValueError, match="FunctionModel reads no outputs; give token ids instead of text"):
        explain(toy, None, "Yes.")
    with pytest.raises(ValueError, match="the model cannot write 1 after 'nothing'"):
        explain(toy, None, [1])
