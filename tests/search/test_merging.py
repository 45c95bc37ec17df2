"""Merging of hypotheses with equal states: Viterbi's answer for taggers, the same by best-first and by beam search."""

from __future__ import annotations

import random
from itertools import product
from math import exp, inf, log

import pytest

from bestfirst import FunctionModel, Model, MutualInformation, Scored, Trie, decode


class Tagger(Model):
    """A linear chain: a tag's score depends on the word and on the previous tag. Tags are 1 to `tags`, EOS is 0."""

    eos = 0

    def __init__(self, tags: int, merging: bool = True) -> None:
        self.tags = tags
        self.merging = merging

    def row(self, word: int, before: int) -> list[float]:
        rng = random.Random(f"{word} {before}")
        weights = [rng.gauss(0, 2) for _ in range(self.tags)]
        total = log(sum(map(exp, weights)))
        return [weight - total for weight in weights]

    def start(self, source):
        return source

    def max_length(self, source):
        return len(source) + 1

    def score(self, batch):
        out = []
        for words, prefix in batch:
            if len(prefix) == len(words):
                row = [0.0] + [-inf] * self.tags
            else:
                row = [-inf, *self.row(words[len(prefix)], prefix[-1] if prefix else 0)]
            out.append(Scored(row, words))
        return out

    def merge_key(self, source, prefix):
        return prefix[-1] if self.merging else None


def viterbi(model: Tagger, words: list[int]) -> tuple[float, tuple[int, ...]]:
    best = {0: (0.0, ())}
    for word in words:
        rows = {before: model.row(word, before) for before in best}
        best = {
            tag: max((value + rows[before][tag - 1], (*tags, tag)) for before, (value, tags) in best.items())
            for tag in range(1, model.tags + 1)
        }
    return max(best.values())


def backward(model: Tagger, words: list[int]) -> list[dict[int, float]]:
    """By position and previous tag: the best score of the remaining tags."""
    ahead = [dict.fromkeys(range(model.tags + 1), 0.0)]
    for word in reversed(words):
        rest = ahead[0]
        rows = {before: model.row(word, before) for before in rest}
        ahead.insert(0, {before: max(x + rest[i + 1] for i, x in enumerate(row)) for before, row in rows.items()})
    return ahead


class Backward:
    """The perfect heuristic, from `backward`: A* then expands only the best path."""

    admissible = True

    def __init__(self, model: Tagger) -> None:
        self.model = model
        self.tables: dict[tuple[int, ...], list[dict[int, float]]] = {}

    def __call__(self, y, context):
        words = context.source
        if tuple(words) not in self.tables:
            self.tables[tuple(words)] = backward(self.model, words)
        return self.tables[tuple(words)][min(y.length, len(words))][y.tokens[-1] if y.tokens else 0]


def sentences(cases: range, longest: int) -> list[list[int]]:
    return [[random.Random(f"{case}").randrange(50) + i for i in range(1 + case % longest)] for case in cases]


@pytest.mark.parametrize("strategy", ["best-first", "beam", "best-first-unpruned"])
@pytest.mark.parametrize("finished", ["leave", "keep"])
def test_merging_with_one_slot_per_tag_finds_the_viterbi_answer(strategy, finished):
    if strategy == "best-first-unpruned" and finished == "keep":
        pytest.skip("nothing is pruned")
    model = Tagger(4)
    texts = sentences(range(200), 12)
    results = decode(model, texts, strategy=strategy, beam=4, finished=finished)
    for words, result in zip(texts, results, strict=True):
        value, tags = viterbi(model, words)
        assert result.hypotheses[0].tokens == (*tags, 0)
        assert result.hypotheses[0].score == pytest.approx(value)
        assert result.calls <= 4 * len(words) + 2
    plain = decode(Tagger(4, merging=False), texts, beam=4)
    missed = sum(one.hypotheses[0].tokens != other.hypotheses[0].tokens for one, other in zip(results, plain, strict=True))
    assert missed > 0  # without merging some answers are missed


def test_best_first_search_merges_as_beam_search_does(cases, tally):
    """For any beam, row budget and number of answers."""
    wrong = searches = 0
    for case in cases(150, full=2000):
        rng = random.Random(case)
        model = Tagger(rng.randint(2, 6))
        words = [rng.randrange(60) for _ in range(rng.randint(1, 9))]
        k = rng.randint(1, 6)
        nbest = rng.randint(1, k)
        settings = {"beam": k, "nbest": nbest, "finished": rng.choice(["leave", "keep"])}
        expected = reference(model, words, k)[:nbest]
        for strategy, budget in (("best-first", 1), ("best-first", 9), ("beam", 1), ("beam", 9)):
            (result,) = decode(model, [words], strategy=strategy, row_budget=budget, **settings)
            found = [(round(y.score, 9), y.tokens) for y in result.hypotheses]
            searches += 1
            wrong += found != [(round(value, 9), (*tags, 0)) for value, tags in expected]
    tally("searches that merge states", searches, wrong)
    assert wrong == 0


def reference(model: Tagger, words: list[int], k: int) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search level by level: the best candidate for each last tag, and of these the k best."""
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for word in words:
        best: dict[int, tuple[float, tuple[int, ...]]] = {}
        for value, tags in beam:
            for i, x in enumerate(model.row(word, tags[-1] if tags else 0)):
                new = (value + x, (*tags, i + 1))
                old = best.get(i + 1)
                if old is None or (-new[0], new[1]) < (-old[0], old[1]):
                    best[i + 1] = new
        beam = sorted(best.values(), key=lambda each: (-each[0], each[1]))[:k]
    return beam


def rare(ids, scores):
    """A 1 at the beginning makes a later 2 unlikely."""
    if ids.shape[1]:
        scores[ids[:, 0] == 1, 2] -= 5
    return scores


rare.never_rises = True


@pytest.mark.parametrize("settings", [
    {"allowed": Trie([[1, 2, 1], [3, 2, 2], [2, 1, 3]])},
    {"processors": [rare]},
    {"stop_strings": ["112"]},
    {"score": MutualInformation(FunctionModel(lambda prefix: [-9.0, -2.0, *[-0.5 - sum(prefix)] * 2], eos=0), 0.5, 0.01)},
])  # fmt: skip
@pytest.mark.parametrize("strategy", ["best-first", "beam"])
def test_what_looks_at_the_whole_prefix_is_not_merged(strategy, settings):
    answers = []
    for merging in (True, False):
        model = Tagger(3, merging)
        model.text = lambda source, tokens: "".join(map(str, tokens))
        (result,) = decode(model, [[4, 7, 5]], strategy=strategy, beam=30, nbest=5, **settings)
        answers.append(result.hypotheses)
    assert answers[0] == answers[1]
    assert answers[0]


def test_a_star_with_a_backward_heuristic_needs_one_call_per_token():
    """200 of 200 optimal: the heuristic reads the input and returns the best remaining score."""
    model = Tagger(5, merging=False)
    texts = sentences(range(200), 10)
    results = decode(model, texts, strategy="a-star", heuristic=Backward(model))
    optimal = 0
    for words, result in zip(texts, results, strict=True):
        value, tags = viterbi(model, words)
        optimal += result.hypotheses[0].tokens == (*tags, 0) and result.exact
        assert result.hypotheses[0].score == pytest.approx(value)
        assert result.calls == len(words) + 1
    assert optimal == 200


def test_merging_finds_the_best_of_all_taggings():
    model = Tagger(3)
    for words in sentences(range(40), 5):
        best = max(
            (sum(model.row(word, before)[tag - 1] for word, before, tag in zip(words, (0, *tags), tags, strict=False)), tags)
            for tags in product(range(1, 4), repeat=len(words))
        )
        (result,) = decode(model, [words], beam=3)
        assert result.hypotheses[0].tokens == (*best[1], 0)


@pytest.mark.parametrize("strategy", ["best-first", "beam", "best-first-unpruned", "breadth-first"])
def test_a_trace_names_hypotheses_dropped_by_merging(strategy):
    """No beam is full here: there are fewer states than slots."""
    texts = sentences(range(5), 6)
    plain, traced = (decode(Tagger(4), texts, strategy=strategy, beam=5, trace=trace) for trace in (False, True))
    assert [(each.hypotheses, each.calls) for each in traced] == [(each.hypotheses, each.calls) for each in plain]
    merged = 0
    for events in (each.trace.events for each in traced):
        pushed = {event["id"]: event for event in events if event["event"] == "push"}
        for event in (event for event in events if event["event"] in ("refuse", "prune") and event["why"] != "ancestor"):
            assert (event["why"], "better" in event) == ("merged", False)
            y = {**pushed.get(event["id"], {}), **event}
            alike = [z for z in pushed.values() if (z["token"], z["length"]) == (y["token"], event["at"]) and z["id"] != y["id"]]
            assert any(z["score"] >= y["score"] for z in alike)
            merged += 1
    assert merged
