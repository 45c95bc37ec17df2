"""`bestfirst complete` writes what `generate` writes with the same settings, up to the stop string."""

from __future__ import annotations

import json
import random

import pytest
import torch

import bestfirst
import chat_models
from bestfirst.engine import scorer_for
from bestfirst.engine.engine import Job, text_before

WORDS = chat_models.TEXT.replace(".", "").replace(",", "").replace("!", "").replace("?", "").split()
PROMPTS = [" ".join(random.Random(seed).choices(WORDS, k=1 + seed % 6)) for seed in range(50)]
STRINGS = ["th", "o", " w", "ad"]  # in no special token's name, where Hugging Face would find them too


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chat_models.save(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model(folder):
    return bestfirst.load(folder)


def generated(ids: torch.Tensor, **settings: object) -> list[int]:
    """What Hugging Face generates after these tokens: beam search by log-probability, without early stopping."""
    model, tokenizer = chat_models.language_model(), chat_models.tokenizer()
    usual = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never", "do_sample": False, "max_new_tokens": 14}
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), tokenizer=tokenizer, pad_token_id=0, **usual | settings)
    return [token for token in found[0, ids.shape[1] :].tolist() if token != 0]


def prompt_ids(prompt: str, chat: bool) -> torch.Tensor:
    if chat:
        messages = [{"role": "user", "content": prompt}]
        return chat_models.tokenizer().apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
    return chat_models.tokenizer()(prompt, return_tensors="pt").input_ids


@pytest.mark.parametrize(
    ("arguments", "settings", "chat"),
    [
        ([], {}, False),
        (["--chat"], {}, True),
        ([each for string in STRINGS for each in ("--stop", string)], {"stop_strings": STRINGS}, False),
        (["--chat", "--min-length", 6, "--stop", " s"], {"min_new_tokens": 6, "stop_strings": [" s"]}, True),
        (["--length-penalty", 0.7], {"length_penalty": 0.7}, False),
    ],
)
def test_completions_of_fifty_prompts_equal_those_of_generate(call, folder, arguments, settings, chat):
    """Of 2k candidates per step, Hugging Face goes on with fewer than k if more than k end at once; bestfirst with k."""
    prompts = PROMPTS[: 50 if not settings or "stop_strings" in settings else 20]
    asked = ["--model", folder, "-k", 4, "--max-length", 14, "--json", *arguments]
    done = call("complete", *asked, text="\n".join(prompts) + "\n")
    assert done.code == 0, done.stderr
    strings = settings.get("stop_strings", [])
    endings = set()
    for prompt, line in zip(prompts, done.out.splitlines(), strict=True):
        found = json.loads(line)
        expected = generated(prompt_ids(prompt, chat), **settings)
        (best,) = found["hypotheses"]
        assert best["tokens"] == expected, prompt
        text = chat_models.tokenizer().decode(expected, skip_special_tokens=True)
        before = text_before(text, strings)
        assert found["text"] == (text if before is None else before)
        ended = "eos" if expected[-1] == 1 else "length" if before is None else "string"
        assert best.get("truncated", False) is (ended == "length")
        endings.add(ended)
    assert {"eos", "length"} & endings
    assert ("string" in endings) is bool(strings)


def test_a_special_token_as_stop_string_becomes_an_eos_token(model):
    """`<|user|>` has no text of its own: it ends a hypothesis as a token."""
    user = chat_models.tokenizer().convert_tokens_to_ids("<|user|>")
    decoding = bestfirst.Decoding(stop_strings=["<|user|>", "x"]).read(model)
    assert (decoding.eos, decoding.stop_strings) == ((1, user), ("x",))


def test_best_first_search_with_stop_strings_equals_beam_search(model):
    settings = {"beam": 4, "nbest": 3, "max_length": 12, "stop_strings": STRINGS, "min_length": 3, "accept_truncated": True}
    ours = bestfirst.decode(model, PROMPTS[:20], **settings)
    theirs = bestfirst.decode(model, PROMPTS[:20], strategy="beam", **settings)
    for one, other in zip(ours, theirs, strict=True):
        assert [y.tokens for y in one.hypotheses] == [y.tokens for y in other.hypotheses]
        assert one.calls <= other.calls
    assert all(one.exact for one in ours)


def test_conversations_are_encoded_with_the_chat_template(model):
    conversation = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the cat"}]
    expected = prompt_ids("the cat", True)[0].tolist()
    assert model.read([conversation[1]]).payload.tokens == tuple(expected)
    (result,) = bestfirst.decode(model, [conversation], beam=2, max_length=5, accept_truncated=True)
    assert result.text is not None
    plain = bestfirst.load()
    assert bestfirst.decode(plain, [conversation])[0].message == (
        f"model {plain.name!r} has no chat template; give it the text that it is to go on with"
    )


def test_chat_without_a_chat_template_is_a_usage_error(tmp_path, call):
    folder = chat_models.save(tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    done = call("complete", "--model", folder, "--chat", text="the cat\nthe dog\n")
    assert done.code == 2
    assert done.stderr.endswith("bestfirst: model 'plain' has no chat template; leave out --chat, or choose a chat model\n")
    done = call("complete", "--model", folder, "--target-lang", "de", text="the cat\n")
    assert done.code == 2
    assert "target language 'de': 'plain' is a language model; name it in the prompt" in done.stderr


def test_json_lines_may_hold_conversations(folder, tmp_path, call):
    conversation = [{"role": "user", "content": "the cat"}]
    lines = [json.dumps({"id": 1, "messages": conversation}), json.dumps({"id": 2, "messages": "the cat"})]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ["--model", folder, "--chat", "--input-field", "messages", "--max-length", 6, "-o", tmp_path / "out.jsonl"]
    assert run_command("complete", tmp_path / "talks.jsonl", *arguments) == 0
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["messages"] == conversation
    assert first["completion"] == second["completion"]
    arguments.remove("--chat")  # a prompt of JSON would be no error, and never meant
    done = call("complete", tmp_path / "talks.jsonl", *arguments[:-2])
    assert (done.code, "line 1: field 'messages' is a list, not a text" in done.stderr) == (1, True)


def run_command(*arguments: object) -> int:
    from bestfirst.cli import run

    return run([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model is missing: what comes with bestfirst translates; name the folder of a language model"),
        (["--model", "nowhere/at/all"], "no model folder at 'nowhere/at/all'"),
        (["--min-length", "-1"], "'-1' is not a whole number from 1 up"),
        (["--stop", ""], "--stop must be texts that are not empty"),
    ],
)
def test_usage_errors_are_reported(call, folder, arguments, said):
    if "--stop" in arguments:
        arguments = ["--model", folder, *arguments]
    done = call("complete", *arguments, text="the cat\n")
    assert done.code == 2
    assert said in done.stderr


def test_a_truncated_output_has_its_text_and_a_flag(model):
    (result,) = bestfirst.decode(model, ["the cat"], beam=3, max_length=2)
    assert (result.status, result.hypotheses, result.truncated) == ("incomplete", [], True)
    assert result.text == chat_models.tokenizer().decode(result.partial.tokens)
    (accepted,) = bestfirst.decode(model, ["the cat"], beam=3, max_length=2, accept_truncated=True)
    assert (accepted.status, accepted.truncated, accepted.text) == ("complete", True, result.text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop_strings": [""]}, r"stop_strings must be texts that are not empty, got \[''\]"),
        ({"min_length": -1}, "min_length must be a whole number from 0 up, got -1"),
        ({"min_length": 5, "max_length": 5}, r"min_length \(5\) leaves no room for EOS within max_length \(5\)"),
        ({"eos": "x"}, "Decoding.eos must be the token that ends a hypothesis, or several of them, got 'x'"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        bestfirst.Decoding(**settings)


def test_stop_strings_need_a_model_with_text():
    with pytest.raises(ValueError, match="stop_strings need a model that gives text; name tokens instead, with eos"):
        bestfirst.decode(bestfirst.FunctionModel(lambda prefix: [-1.0, -2.0], eos=0), [None], stop_strings="x")


def test_eos_and_min_length_can_be_set_for_any_model():
    toy = bestfirst.FunctionModel(lambda prefix: [-1.0, -1.5, -0.7], eos=0)
    (result,) = bestfirst.decode(toy, [None], beam=3, eos=1, max_length=4)
    assert result.hypotheses[0].tokens == (1,)
    (longer,) = bestfirst.decode(toy, [None], beam=3, min_length=2, nbest=2, max_length=6)
    assert [answer.tokens for answer in longer.hypotheses] == [(2, 2, 0), (2, 2, 2, 0)]
    assert bestfirst.Decoding(eos=[5, 3]).signature.endswith("|eos:(3, 5)")
    assert bestfirst.Decoding(**bestfirst.Decoding(eos=3, stop_strings="x").json()) == bestfirst.Decoding(eos=3, stop_strings="x")


def test_a_stop_string_does_not_match_across_distant_tokens():
    model = bestfirst.load()
    job = Job(0, model.reader("The")("Wo ist der Bahnhof?"), bestfirst.Decoding(beam=1, stop_strings=["The station"]))
    ends = job.search(scorer_for(model, job.decoding.objective)).ends
    cat, (station,) = model.target("cat") * 30, model.target("station")
    assert ends((station,))
    assert not ends((*cat, station))
    assert not ends((*cat, station, *cat[: ends._last - 1]))
    assert ends((*cat, *model.target("The station")))
