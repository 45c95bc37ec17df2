"""Schemathesis: requests generated from the OpenAPI document, valid and invalid, get only responses that it announces."""

from __future__ import annotations

import re
import subprocess
import sys
from math import inf, nan
from pathlib import Path

import bestfirst
from bestfirst.search import Answer
from bestfirst.serve.app import create_app
from bestfirst.serve.engine_thread import EngineThread
from bestfirst.serve.exchange import AnswerBodies, json_bytes
from bestfirst.serve.middleware import Hosts
from bestfirst.serve.openai import CompletionRequest
from bestfirst.serve.schemas import Limits, TextResult, TranslateRequest, Translation, text_result, text_result_json
from scale import FULL
from serve.served import ENVIRONMENT

TOO_LONG = """
[[operations]]
include-name = "POST /v1/completions"
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "429", "5xx"]
"""
"""Only the tokenizer knows how many tokens a prompt has: no schema can, and OpenAI's clients expect an error."""


def test_schemathesis_finds_nothing(server, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(TOO_LONG, encoding="utf-8")
    command = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", "all", "--max-examples", "100" if FULL else "12", "--seed", "8", "--suppress-health-check", "all"]
    line = [str(command), "run", f"{server.url}/openapi.json", "--request-timeout", "600", "--max-response-time", "600", *options]
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert server.health["queue"] == 0


def test_sound_bodies_of_every_path_are_answered_on_the_fast_path():
    model = bestfirst.FunctionModel(lambda prefix: [-0.7, -0.7], eos=0)
    model.chats = True
    app = create_app(EngineThread(model, Limits()), Limits(), hosts=Hosts("127.0.0.1"))
    (given,) = [each.kwargs for each in app.user_middleware if each.cls is AnswerBodies]
    assert {*AnswerBodies(app, **given)._paths} == {"/translate", "/search", "/v1/completions", "/v1/chat/completions"}


def test_the_documentation_names_every_field_of_translate():
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    table = page.split("What `/translate` takes:")[1].split("No other field")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(TranslateRequest.model_fields)
    answer = page.split("The answer has one entry")[1].split("**")[0]
    assert set(Translation.model_fields) <= set(re.findall(r"\w+", answer))


def test_a_serialised_result_has_every_field_of_its_schema_in_order():
    for found in ([], [Answer((5, 0), -1.5, -2.5, "yes", True, 3), Answer((0,), -3.0, -3.0)]):
        result = bestfirst.Result(found, calls=7, rows=9, steps=2, exact=True, status="complete", message="none")
        written = text_result(result)
        assert [*written] == [*TextResult.model_fields]
        assert all([*each] == [*Translation.model_fields] for each in written["hypotheses"])
        assert TextResult.model_validate(written).model_dump() == {
            **{name: getattr(result, name) for name in ("status", "message", "exact", "calls", "rows", "steps")},
            "text": "yes" if found else "",
            "hypotheses": [
                {name: getattr(each, name) for name in Translation.model_fields} | {"tokens": [*each.tokens]} for each in found
            ],
        }


def test_the_json_of_a_result_is_that_of_its_fields():
    """For all numbers and characters. An unfinished output is no translation, and a model may give no text."""
    numbers = (-1.5, -1e-7, 1e16, 1e22, 5e-324, -0.0, inf, -inf, nan, -3)
    odd = [Answer((1, 2, 0), n, n, text) for n in numbers for text in ('a "b" \\ \n \0 \x7f \u2028 é 😀', "", None)]
    results = [
        bestfirst.Result([each, Answer((), 0.0, 0.0, "b", True, 7)], 1, 2, 3, status="complete", exact=True) for each in odd
    ]
    results += [bestfirst.Result([], 1, 2, 3, status="incomplete", partial=odd[0]), bestfirst.Result(message="why")]
    for result in results:
        answers = [{name: getattr(each, name) for name in Translation.model_fields} for each in result.hypotheses]
        fields = {name: getattr(result, name) for name in ("status", "message", "exact", "calls", "rows", "steps")}
        text = (answers[0]["text"] or "") if answers else ""
        assert (
            text_result_json(result)
            == json_bytes({**fields, "text": text, "hypotheses": answers})
            == json_bytes(text_result(result))
        )


def test_equal_requests_share_one_settings_object_and_others_do_not():
    body = TranslateRequest.within(Limits())
    asked = [{}, {"beam": 6}, {"nbest": 2}, {"max_length": 9}, {"length_penalty": 0.5}, {"length_penalty": 1}]
    asked += [{"score": {"name": name, "alpha": alpha}} for name in ("gnmt", "length-normalized") for alpha in (0.5, 1)]
    made = [body(text="a", **each).decoding(strategy) for each in asked for strategy in ("best-first", "beam")]
    again = [body(text="b", **each).decoding(strategy) for each in asked for strategy in ("best-first", "beam")]
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert len({id(each) for each in made}) == len(made)
    assert all(each.nbest == (2 if given.get("nbest") else 1) for given, each in zip(asked, made[::2], strict=True))
    assert made[-2] == bestfirst.Decoding(score=asked[-1]["score"]["name"], score_options={"alpha": 1.0})


def test_equal_completion_requests_share_one_settings_object_and_others_do_not():
    asked = [{}, {"n": 6}, {"beam_width": 7}, {"max_tokens": 9}, {"min_tokens": 2}, {"length_penalty": 0.5}, {"stop": "a"}]
    made, again = ([CompletionRequest(prompt=text, **each).decoding(900) for each in asked] for text in "ab")
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert len({id(each) for each in made}) == len(made)
    assert CompletionRequest(prompt="a", stop=["a"]).decoding(900) is made[-1]
    assert CompletionRequest(prompt="a", max_tokens=90).decoding(100).max_length == 20  # 100 hypotheses in a beam of 5
