"""Grammars: every output matches, and is that of beam search with the same masks."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import bestfirst
from bestfirst import Constraint, Grammar, decode

pytest.importorskip("llguidance")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def language_model():
    """A Llama of two layers over bytes and BPE merges trained on a few lines."""
    lines = [json.dumps({"name": "Tom", "age": i, "tags": ["a", "b"]}) for i in range(30)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=320, special_tokens=["<eos>"], initial_alphabet=alphabet))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    return bestfirst.wrap(transformers.LlamaForCausalLM(config).eval(), tokenizer)


def valid(text):
    found = json.loads(text)
    assert {"name", "age"} <= set(found) <= {"name", "age", "tags"}
    assert isinstance(found["name"], str)
    assert len(found["name"]) <= 6
    assert 0 <= found["age"] <= 120
    assert len(found.get("tags", [])) <= 2
    assert set(found.get("tags", [])) <= {"a", "b"}
    return True


def test_outputs_conform_to_the_json_schema(language_model):
    grammar = Grammar.json(language_model, SCHEMA)
    prompts = [f"Person number {i}:" for i in range(8)]
    found = decode(language_model, prompts, beam=5, nbest=3, max_length=60, allowed=grammar)
    by_beam = decode(language_model, prompts, beam=5, nbest=3, max_length=60, allowed=grammar, strategy="beam")
    for result, other in zip(found, by_beam, strict=True):
        assert result.exact
        assert [answer.tokens for answer in result.hypotheses] == [answer.tokens for answer in other.hypotheses]
        assert all(valid(answer.text) for answer in result.hypotheses)
    assert all(len(result.hypotheses) == 3 for result in found)


def test_masks_allow_exactly_the_prefixes_of_matches_of_the_regular_expression(language_model):
    """Against Python's `re`: exactly the tokens that can be completed to a match are allowed after a prefix."""
    pattern = r"(ab|cd){1,2}e?"
    every = {a + b + e for a in ("ab", "cd") for b in ("", "ab", "cd") for e in ("", "e")}
    grammar = Grammar.regex(language_model, pattern)
    pieces = [language_model.tokenizer.decode([token]) for token in range(language_model.vocabulary)]
    waiting = [("", grammar.start())]
    seen = 0
    while waiting:
        text, state = waiting.pop()
        seen += 1
        allowed = grammar.allowed([state], language_model.eos)[0].tolist()
        follows = {t for t, piece in enumerate(pieces) if t != 0 and piece and any(w.startswith(text + piece) for w in every)}
        assert set(allowed) == follows | ({0} if text in every else set())
        assert (0 in allowed) == bool(re.fullmatch(pattern, text))
        waiting += [(text + pieces[token], grammar.advance([state], [token])[0]) for token in follows]
    assert seen > 10


def test_grammars_allow_the_leading_space_of_a_sentencepiece_model():
    model = bestfirst.load()
    found = decode(model, ["Guten Morgen!"], nbest=2, allowed=Grammar.regex(model, r"(Good|Nice) [a-z]+!"))[0]
    assert found.text == "Good morning!"
    assert all(re.fullmatch(r"(Good|Nice) [a-z]+!", answer.text) for answer in found.hypotheses)
    assert decode(model, ["Ja."], allowed=Grammar.lark(model, 'start: "Yes" "."? | "No"'))[0].text in ("Yes.", "Yes")


def test_an_output_under_a_grammar_ends_only_with_the_end_tokens_of_the_search(language_model):
    grammar = Grammar.regex(language_model, "a+")
    state = grammar.advance([grammar.start()], language_model.target("a"))[0]
    before, after = (set(grammar.allowed([state], eos)[0].tolist()) for eos in ({0}, {7}))
    assert 0 in before
    assert after == before - {0} | {7}


@pytest.mark.parametrize("start", ["start", "?start", "  start"])
def test_a_lark_grammar_may_refer_to_its_start_rule(start):
    """The leading space of a text is not repeated at the recursion."""
    model = bestfirst.load()
    grammar = Grammar.lark(model, f'{start}: "Yes" | "No" start "."')
    texts = [each.text for each in decode(model, ["Nein. Ja."], allowed=grammar, nbest=6, beam=6, max_length=16)[0].hypotheses]
    assert len(texts) > 2
    assert all(re.fullmatch(r"(No)*Yes\.*", text) and text.count("No") == text.count(".") for text in texts)


class Twice(Constraint):
    """Allows some tokens, unsorted and with duplicates."""

    signature = "twice"

    def start(self):
        return None

    def advance(self, states, tokens):
        return [None for _ in states]

    def allowed(self, states, eos):
        return [np.array([4739, 0, 2, 2, 50, 696, 696]) for _ in states]


def test_duplicate_allowed_tokens_count_once():
    model = bestfirst.load()
    answers = decode(model, ["Guten Morgen!"], allowed=Twice(), nbest=3)[0].hypotheses
    assert len({answer.tokens for answer in answers}) == 3


def test_allowed_takes_a_grammar_file_or_a_regex_by_name(tmp_path):
    model = bestfirst.load()
    (tmp_path / "answer.lark").write_text('start: "Yes." | "No."\n', encoding="utf-8")
    assert decode(model, ["Ja."], allowed=f"grammar:{tmp_path / 'answer.lark'}")[0].text == "Yes."
    assert decode(model, ["Ja."], allowed=r"regex:N\w+\.")[0].text == "No."


def test_a_grammar_that_the_vocabulary_cannot_write_gives_incomplete():
    """The embedded model's vocabulary has no brace."""
    model = bestfirst.load()
    assert decode(model, ["Tom ist zwölf."], allowed=Grammar.json(model, SCHEMA), max_length=20)[0].status == "incomplete"


@pytest.mark.parametrize("pattern", ["日本", "a{1000000}", r"[^\s\S]", "(((a{100}){100}){100}){100}"])
def test_a_pattern_that_cannot_be_completed_gives_no_partial_answer(pattern):
    """A matcher that fails or reaches a limit allows EOS; the output used to be "" or "a", marked exact."""
    model = bestfirst.load()
    (result,) = bestfirst.decode(model, ["Ja."], allowed=Grammar.regex(model, pattern), max_length=12)
    assert (result.status, result.hypotheses) == ("incomplete", [])


def test_invalid_grammars_are_refused(language_model, tmp_path):
    for wrong, message in (
        (lambda: Grammar.regex(language_model, "(a"), "cannot be read: unclosed group"),
        (lambda: Grammar.json(language_model, "{x"), "not a JSON object"),
        (lambda: Grammar.json(language_model, "[1]"), "not a JSON object"),
        (lambda: Grammar.json(language_model, {"type": "person"}), "Invalid type: person"),
        (lambda: Grammar.lark(language_model, "start: person"), 'unknown name: "person"'),
        (lambda: Grammar.regex(bestfirst.FunctionModel(lambda _: [0.0], 0), "a"), "has no tokenizer"),
        (lambda: decode(language_model, ["a"], allowed=f"schema:{tmp_path / 'none'}"), "cannot read what is allowed from .*none"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
