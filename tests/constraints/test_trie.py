"""Tries: their items, and that decoding under a trie is beam search over its items."""

from __future__ import annotations

import json
import pickle
import random
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest

import bestfirst
from bestfirst import FunctionModel, Trie, decode
from cli.process import only_line
from cli.process import run as command
from reference import EOS
from toys import KINDS, random_toy


def random_items(rng: random.Random, vocabulary: int, n_max: int) -> list[tuple[int, ...]]:
    """Some sequences without EOS, shorter than n_max; a few of them twice."""
    every = [tokens for n in range(n_max) for tokens in product(range(1, vocabulary), repeat=n)]
    return rng.choices(every, k=rng.randint(1, 12))


def masked(toy, items):
    """The toy with all outputs but the items made impossible: the definition of the constraint."""
    begun = {tokens[:n] for tokens in items for n in range(len(tokens) + 1)}

    def increments(prefix):
        return [
            value if (prefix in items if token == EOS else (*prefix, token) in begun) else -inf
            for token, value in enumerate(toy(prefix))
        ]

    return increments


def answers_of(results):
    return [[(answer.tokens, answer.score) for answer in result.hypotheses] for result in results]


def test_search_under_a_trie_equals_search_with_all_other_outputs_masked(cases, tally):
    """For every k the answers of beam search on the masked toy; for a wide beam, the best of all items."""
    wrong = 0
    numbers = cases(400, full=10_000)
    for seed in numbers:
        rng = random.Random(f"trie {seed}")
        vocabulary, n_max = rng.randint(2, 5), rng.randint(1, 5)
        toy = random_toy(rng.choice(KINDS), vocabulary, seed)
        items = random_items(rng, vocabulary, n_max)
        k = rng.choice((1, 2, 3, 5, 64))
        settings = {
            "beam": k,
            "nbest": rng.randint(1, k),
            "max_length": n_max,
            "finished": rng.choice(("leave", "keep")),
            "strategy": rng.choice(("best-first", "beam")),
            "row_budget": rng.choice((1, 3, 64)),
        }
        if rng.random() < 0.3:
            settings["length_penalty"] = rng.choice((-0.5, 0.6, 1.0))
        trie = Trie(items)
        found = decode(FunctionModel(toy, EOS), [None], allowed=trie, **settings)
        expected = decode(FunctionModel(masked(toy, set(items)), EOS), [None], **settings)
        wrong += answers_of(found) != answers_of(expected) or found[0].calls != expected[0].calls
        for answer in found[0].hypotheses:
            assert items[answer.item] == answer.tokens[:-1]
        if k == 64 and settings["finished"] == "leave" and "length_penalty" not in settings:
            best = best_items(toy, items)[: settings["nbest"]]
            wrong += [(a.tokens, pytest.approx(a.score)) for a in found[0].hypotheses] != best
    tally("constrained searches", len(numbers), wrong)
    assert wrong == 0


def best_items(toy, items):
    """All items, scored and sorted."""
    scored = []
    for item in set(items):
        output = (*item, EOS)
        score = sum(toy(output[:t])[token] for t, token in enumerate(output))
        if score > -inf:
            scored.append((-score, len(output), output))
    return [(output, -score) for score, _, output in sorted(scored)]


@pytest.mark.parametrize("seed", range(20))
def test_a_trie_holds_its_items(seed, tmp_path):
    rng = random.Random(seed)
    items = [tuple(rng.choices(range(6), k=rng.randint(0, 4))) for _ in range(rng.randint(1, 40))]
    trie = Trie(items)
    trie.save(tmp_path / "items.trie")
    for each in (trie, Trie.load(tmp_path / "items.trie"), Trie(map(list, items))):
        assert list(each) == sorted(set(items))
        assert len(each) == len(set(items))
        assert [each.item(item) for item in items] == [items.index(item) for item in items]
        assert each.signature == trie.signature
        assert (7, 7) not in each


def test_the_rows_of_an_array_are_items():
    rows = np.random.default_rng(0).integers(0, 50, (500, 3))
    assert list(Trie(rows)) == sorted(set(map(tuple, rows.tolist())))


def test_invalid_items_files_and_tokens_are_refused(tmp_path):
    for wrong, message in (
        ([], "at least one sequence"),
        (["Hello"], "Trie.of_texts"),
        ([[-1]], "from 0 on, got -1"),
        ([[2**40]], "from 0 on, got 1099511627776"),
        ([1, 2], "a list of whole numbers for each item"),
        (np.ones((2, 2)), "float64"),
    ):
        with pytest.raises(ValueError, match=message):
            Trie(wrong)
    path = tmp_path / "items.trie"
    Trie([[1, 2], [1, 3]]).save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[: len(whole) // 2], whole[:-1], whole[:130] + b"\xff" * 8 + whole[138:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a trie that was saved here"):
            Trie.load(path)
    with pytest.raises(ValueError, match=r"allowed must be a Trie \(of texts: Trie\.of_texts\(model, texts\)\)"):
        decode(FunctionModel(lambda prefix: [0.0], 0), [None], allowed=[[1]])
    with pytest.raises(ValueError, match="token 7 is allowed, and the model has the tokens 0 to 0"):
        decode(FunctionModel(lambda prefix: [0.0], 0), [None], allowed=Trie([[7]]))


DATA = Path(__file__).parents[1] / "data"


def test_texts_that_the_model_cannot_write_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match=r"1 of 4 texts are left out: .* '{}'"):
        trie = Trie.of_texts(bestfirst.load(), ["", "Good morning!", "{}", "Good evening!"])
    assert sorted(trie.items[trie.items >= 0].tolist()) == [1, 3]
    with pytest.raises(ValueError, match=r"none of 1 texts can be allowed: the model cannot write '{}'"):
        Trie.of_texts(bestfirst.load(), ["{}"])


def test_a_file_of_outputs_that_is_not_utf_8_is_refused_with_the_line(tmp_path):
    (tmp_path / "allowed").write_bytes("Ja.\r\n\nNé.\nna\xefve\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"from '.*allowed': line 3 is not UTF-8"):
        decode(bestfirst.load(), [], allowed=str(tmp_path / "allowed"))


LINES = ("Good morning!", "Where is the station?", "I did not say that.", "Good evening!", "Where is the school?")


def test_the_embedded_model_generates_only_allowed_lines(tmp_path):
    model = bestfirst.load()
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    results = decode(model, ["Guten Morgen!", "Wo ist der Bahnhof?", "Guten Tag!"], beam=5, nbest=5, allowed=str(path))
    assert [result.text for result in results[:2]] == list(LINES[:2])
    for result in results:
        assert sorted(answer.item for answer in result.hypotheses) == list(range(5))
        assert all(answer.text == LINES[answer.item] for answer in result.hypotheses)
    by_beam = decode(model, ["Guten Tag!"], beam=5, nbest=5, strategy="beam", allowed=str(path))
    assert [answer.tokens for answer in by_beam[0].hypotheses] == [answer.tokens for answer in results[2].hypotheses]


@pytest.mark.parametrize("own", [False, True])
def test_at_a_temperature_scores_are_not_normalised_over_what_is_allowed(own):
    """As at temperature 1, and on a device: an allowed output has the score that it has without the constraint."""
    model = FunctionModel(random_toy("flat", 5, 1), EOS) if own else bestfirst.load()
    settings = {"beam": 4, "max_length": 12, "score_options": {"temperature": 2.0}}
    free = decode(model, [None if own else "Guten Tag!"], **settings)[0].hypotheses[0]
    held = decode(model, [None if own else "Guten Tag!"], allowed=Trie([free.tokens[:-1]]), **settings)[0].hypotheses[0]
    assert held.tokens == free.tokens
    assert (held.score, held.logprob) == pytest.approx((free.score, free.logprob), abs=1e-4)


@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_custom_generate_equals_generate_with_prefix_allowed_tokens_fn(early_stopping):
    """`allowed` against `prefix_allowed_tokens_fn` on the same trie.

    Not with `early_stopping=True`: if fewer than k prefixes are allowed, Hugging Face counts impossible ones (at -1e9) as
    finished, and they make it stop.
    """
    model = bestfirst.load()
    lines = (DATA / "tatoeba-200.en").read_text(encoding="utf-8").splitlines()
    trie = Trie.of_texts(model, lines)
    sources = (DATA / "tatoeba-200.de").read_text(encoding="utf-8").splitlines()[:12]
    inputs = model.tokenizer(sources, return_tensors="pt", padding=True)
    asked = {"num_beams": 4, "num_return_sequences": 2, "early_stopping": early_stopping, "max_new_tokens": 40}
    asked |= {"return_dict_in_generate": True, "output_scores": True}

    def allowed_tokens(_, ids):
        node = trie.start()
        for token in ids[1:].tolist():
            if token in model.eos or token == model.tokenizer.pad_token_id:
                return sorted(model.eos)
            node = trie.child(node, token)
        return trie.allowed([node], model.eos)[0].tolist()

    theirs = model.model.generate(**inputs, **asked, prefix_allowed_tokens_fn=allowed_tokens)
    ours = model.model.generate(**inputs, **asked, allowed=trie, custom_generate=bestfirst.generate)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert ours.sequences_scores.tolist() == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
    texts = model.tokenizer.batch_decode(ours.sequences, skip_special_tokens=True)
    assert set(texts) <= set(lines)


def test_the_translate_command_generates_only_lines_of_the_allowed_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    done = command("translate", "--allowed", path, "--json", stdin=b"Guten Morgen!\nWo ist die Schule?\n")
    found = [json.loads(line)["hypotheses"][0] for line in done.stdout.splitlines()]
    assert [(each["text"], each["item"]) for each in found] == [(LINES[0], 0), (LINES[4], 4)]
    missing = command("translate", "--allowed", tmp_path / "none", stdin=b"Hallo!\n")
    assert (missing.returncode, "none' of what is allowed" in only_line(missing.stderr)) == (2, True)


def test_a_trie_can_be_pickled_after_a_lookup():
    trie = Trie([[4, 7], [4, 8], [5]])
    assert trie.item([4, 8]) == 1
    again = pickle.loads(pickle.dumps(trie))
    assert (again.signature, again.item([4, 8]), [5] in again, [6] in again) == (trie.signature, 1, True, False)


def test_outputs_under_a_trie_end_with_the_end_tokens_of_the_settings(cases):
    """As with a model whose own these are. The model's own end token is one like any other then, and may be in the trie."""
    for seed in cases(60, full=1000):
        rng = random.Random(f"ends {seed}")
        vocabulary = rng.randint(3, 6)
        toy = random_toy(rng.choice(KINDS), vocabulary, seed)
        trie = Trie(random_items(rng, vocabulary, 4))
        settings = {"allowed": trie, "beam": rng.randint(1, 4), "max_length": 5, "strategy": rng.choice(("best-first", "beam"))}
        found, expected = (decode(FunctionModel(toy, eos), [None], eos=EOS, **settings)[0] for eos in (vocabulary - 1, EOS))
        assert (found.hypotheses, found.calls, found.exact) == (expected.hypotheses, expected.calls, expected.exact)


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 1.0, "stop": "hf-false"}, {"stop": "hf-true"}], ids=str)
def test_a_compiled_search_under_a_trie_ends_with_the_end_tokens_of_the_settings(settings):
    model = bestfirst.load()
    (end,), (comma,) = model.eos, (token for token in model.target("Yes, no.") if model.piece(token).strip() == ",")
    trie = Trie.of_texts(model, LINES)
    for eos in (comma, [comma, end]):
        asked = {"allowed": trie, "eos": eos, "beam": 4, "nbest": 4, **settings}
        (found,), (traced,) = decode(model, ["Guten Morgen!"], **asked), decode(model, ["Guten Morgen!"], trace=True, **asked)
        assert [(each.tokens, each.item) for each in found.hypotheses] == [(each.tokens, each.item) for each in traced.hypotheses]
        assert [LINES[each.item] for each in found.hypotheses] == [each.text for each in found.hypotheses]
        assert comma in {each.tokens[-1] for each in found.hypotheses} <= {comma, end}


def test_eos_inside_a_sequence_is_refused():
    model = bestfirst.load()
    (end,) = model.eos
    with pytest.raises(ValueError, match=f"token {end} ends an output, and a sequence of the trie has it; leave it out"):
        bestfirst.decode(model, ["Ja."], allowed=Trie([[4739, 696], [4739, end, 696]]))
