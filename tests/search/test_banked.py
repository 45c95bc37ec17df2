"""Required words (`must_contain`): beam search with one beam, a bank, for every number of missing tokens."""

from __future__ import annotations

import random
from math import inf

import pytest

import bestfirst
from bestfirst import Diverse, FunctionModel, decode
from bestfirst.search import BrokenLaw, Patience, beam, best_first_beam
from bestfirst.search.required_words import RequiredWords
from cli.process import only_line
from cli.process import run as command
from reference import EOS
from toys import KINDS, random_toy


def occurs(word, tokens):
    return any(tokens[i : i + len(word)] == word for i in range(len(tokens)))


def missing(sets, tokens):
    """From the whole output: the shortest words of the absent sets, less the most that one has begun; whether none is absent."""
    absent = [words for words in sets if not any(occurs(word, tokens) for word in words)]
    shortest = [min(map(len, words)) for words in absent]
    begun = [0]
    for words, least in zip(absent, shortest, strict=True):
        begun += [least - len(w) + n for w in words for n in range(1, len(w)) if len(tokens) >= n and tokens[-n:] == w[:n]]
    return sum(shortest) - max(begun), not absent


def random_word(rng, vocabulary):
    return tuple(rng.choices(range(1, vocabulary), k=rng.randint(1, 3)))


def by_definition(toy, sets, k, n, n_max, final):
    """Level by level: of all children, the k best for every number of missing tokens."""
    level, answers = [(0.0, ())], []
    for length in range(1, n_max + 1):
        banks = {}
        for value, tokens in level:
            complete = missing(sets, tokens)[1]
            for token, gain in enumerate(toy(tokens)):
                if gain == -inf or (token == EOS and not complete):
                    continue
                bank = 0 if token == EOS else missing(sets, (*tokens, token))[0]
                banks.setdefault(bank, []).append((-(value + gain), (*tokens, token)))
        level = []
        for bank, children in banks.items():
            children.sort()
            answers += [(-final(-v, length), length, y) for v, y in children[:k] if y[-1] == EOS and bank == 0]
            level += [(-v, y) for v, y in children if y[-1] != EOS][:k]
    return [(y, pytest.approx(-score)) for score, _, y in sorted(answers)[:n]]


def test_search_with_required_words_equals_its_definition(cases, tally):
    """Answers and scores, best-first and level by level; words may overlap, be alternatives, or not all fit."""
    numbers, wrong = cases(150, full=10_000), 0
    for seed in numbers:
        rng = random.Random(f"banked {seed}")
        vocabulary, n_max, k = rng.randint(3, 5), rng.randint(2, 6), rng.choice((1, 2, 3, 8))
        toy = random_toy(rng.choice(KINDS), vocabulary, seed)
        sets = [[random_word(rng, vocabulary) for _ in range(rng.choice((1, 1, 2)))] for _ in range(rng.randint(1, 2))]
        n, alpha = rng.randint(1, k), rng.choice((0, 0, 1.0))
        settings = {"beam": k, "nbest": n, "max_length": n_max, "row_budget": rng.choice((1, 3, 64))}
        settings["strategy"] = rng.choice(("best-first", "beam"))
        asked = [words[0] if len(words) == 1 and rng.random() < 0.5 else words for words in sets]
        found = decode(FunctionModel(toy, EOS), [None], must_contain=asked, length_penalty=alpha, **settings)[0]
        expected = by_definition(toy, sets, k, n, n_max, lambda v, t, alpha=alpha: v / t**alpha)
        wrong += [(answer.tokens, answer.score) for answer in found.hypotheses] != expected
        assert all(any(occurs(w, answer.tokens) for w in words) for answer in found.hypotheses for words in sets)
    tally("searches with words that must occur", len(numbers), wrong)
    assert wrong == 0


def test_incremental_states_count_missing_tokens_as_whole_outputs_do():
    rng = random.Random(0)
    for _ in range(300):
        sets = [[tuple(rng.choices((1, 2), k=rng.randint(1, 4))) for _ in range(rng.randint(1, 2))] for _ in range(2)]
        words = RequiredWords(sets)
        state, tokens = words.start, ()
        for token in rng.choices((1, 2, 3), k=8):
            state, tokens = words.after(state, token), (*tokens, token)
            assert (state.missing, not state.missing) == missing(sets, tokens)


LINE = "Wo ist der Bahnhof?"


@pytest.mark.parametrize("by_torch", [False, True])
def test_outputs_of_the_embedded_model_contain_the_required_words(by_torch: bool):
    """Although the words are unlikely; with the same result by beam search."""
    model = bestfirst.load()
    model = bestfirst.wrap(model.model, model.tokenizer) if by_torch else model
    asked = ["please", ["evening", "night"]]
    found = decode(model, [LINE], beam=4, nbest=2, max_length=14, must_contain=asked)[0]
    by_beam = decode(model, [LINE], beam=4, nbest=2, max_length=14, must_contain=asked, strategy="beam")[0]
    assert found.exact
    assert [answer.tokens for answer in found.hypotheses] == [answer.tokens for answer in by_beam.hypotheses]
    assert all("please" in a.text and ("evening" in a.text or "night" in a.text) for a in found.hypotheses)
    scores = [answer.score for answer in by_beam.hypotheses]
    assert [answer.score for answer in found.hypotheses] == pytest.approx(scores, abs=1e-4)
    usual = decode(model, [LINE], beam=4)[0]
    assert decode(model, [LINE], beam=4, must_contain=["station"])[0].text == usual.text  # "station" occurs anyway: no cost


def test_the_translate_command_takes_must_contain():
    done = command("translate", "--must-contain", "please", "--must-contain", "night|evening", stdin=f"{LINE}\n".encode())
    assert "please" in done.stdout.decode()
    wrong = command("translate", "--must-contain", "a", "--allowed", "regex:b", stdin=b"a\n")
    assert (wrong.returncode, "--must-contain does not go with --allowed" in only_line(wrong.stderr)) == (2, True)


@pytest.mark.parametrize("strategy", ["best-first", "beam"])
def test_rising_scores_are_refused_with_required_words(strategy):
    """Bounds rely on falling scores, level by level too; a wrong result would be called exact."""
    model = FunctionModel(lambda prefix: [-1.0, 0.5, -2.0], 0)
    with pytest.raises(BrokenLaw, match="log-probabilities are at most"):
        decode(model, [None], must_contain=[[2]], max_length=4, strategy=strategy)


def test_settings_that_required_words_exclude_are_refused():
    model = FunctionModel(lambda prefix: [-1.0, -1.0], 0)
    for settings, message in (
        ({"must_contain": "a"}, "is a list of words, got 'a'"),
        ({"must_contain": [3.5]}, "got 3.5"),
        ({"must_contain": [[]]}, r"got \[\]"),
        ({"must_contain": [[1]], "finished": "keep"}, "does not go with finished='keep'"),
        ({"must_contain": [[1]], "strategy": "best-first-unpruned"}, "does not go with strategy"),
        ({"must_contain": [[1]], "strategy": "beam", "beam": 4, "score": Diverse(2, 0.5)}, "does not go with score 'diverse'"),
        ({"must_contain": [[1]], "max_calls": 3}, "does not go with max_calls"),
        ({"must_contain": [[1]], "stop": "hf-never", "strategy": "beam"}, "does not go with stop"),
        ({"must_contain": [[1]], "strategy": beam(5).using(stop=Patience(1.0, "hf-true"))}, "does not go with stop"),
        ({"must_contain": [[1]], "strategy": best_first_beam(5).using(heuristic=lambda y, x: 0.0)}, "does not go with heuristic"),
        ({"must_contain": [[1]], "method": "stopping", "length_penalty": 1.0}, "does not go with method='stopping'"),
        ({"must_contain": ["a"]}, "cannot write 'a', which must occur"),
    ):
        with pytest.raises(ValueError, match=message):
            decode(model, [None], **settings)
