"""Requests with `allowed` get the outputs that `decode` finds under the same constraint."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException

import bestfirst
from bestfirst.serve.allowed import ServedConstraints
from cli.process import run
from serve.served import Served, run_async

ITEMS = ["Good morning!", "Good evening!", "Where is the station?", "Where is the school?"]
SCHEMA = {"type": "boolean"}  # not an object: the embedded model's vocabulary has no braces
STATION = "Wo ist der Bahnhof?"


@pytest.fixture(scope="module")
def constrained(tmp_path_factory) -> Iterator[Served]:
    pytest.importorskip("llguidance")
    file = tmp_path_factory.mktemp("allowed") / "items.txt"
    file.write_text("\n".join(ITEMS) + "\n", encoding="utf-8")
    served = Served("--allowed", f"items={file}", "--allowed", "greeting=regex:(Good|Nice) [a-z]+!", "--grammars")
    yield served
    served.stop()


def post_json(served: Served, path: str = "/translate", **fields: object) -> tuple[int, dict]:
    answer = served.post(path, fields)
    return answer.status, answer.json


@pytest.mark.parametrize("allowed", ["items", {"outputs": ITEMS}])
def test_answers_from_a_list_and_their_item_numbers_equal_decode(constrained, model, allowed):
    code, found = post_json(constrained, text=STATION, beam=4, nbest=4, allowed=allowed)
    trie = bestfirst.Trie.of_texts(model, ITEMS)
    (result,) = bestfirst.decode(model, [STATION], beam=4, nbest=4, allowed=trie)
    assert code == 200
    shown = [(each["item"], each["text"], each["score"]) for each in found["results"][0]["hypotheses"]]
    assert shown == [(each.item, each.text, pytest.approx(each.score)) for each in result.hypotheses]


def test_a_regex_by_name_and_in_the_request_give_the_same_output(constrained):
    _, named = post_json(constrained, text="Guten Morgen!", allowed="greeting")
    _, given = post_json(constrained, text="Guten Morgen!", allowed={"regex": "(Good|Nice) [a-z]+!"})
    assert named["results"][0]["text"] == given["results"][0]["text"] == "Good morning!"


def test_json_schema_in_allowed_and_in_openai_response_format(constrained):
    _, found = post_json(constrained, text="Ja.", max_length=60, allowed={"json_schema": SCHEMA})
    assert json.loads(found["results"][0]["text"]) in (True, False)
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    code, found = post_json(constrained, "/v1/completions", prompt="Ja.", max_tokens=60, response_format=wanted)
    assert code == 200
    assert json.loads(found["choices"][0]["text"]) in (True, False)


def test_a_constraint_holds_for_every_text_of_its_request_and_for_no_other_request(constrained):
    only = {"outputs": ["Where is the school?"]}
    lines = constrained.post("/translate", {"text": [STATION] * 3, "allowed": only, "stream": True}).lines
    assert {line["text"] for line in lines if line.get("text")} == {"Where is the school?"}
    assert post_json(constrained, text=STATION)[1]["results"][0]["text"] == "Where is the station?"


@pytest.mark.parametrize(
    ("status", "allowed", "said"),
    [
        (404, "nothing", "nothing of the name 'nothing'; it has 'items', 'greeting'"),
        (422, {"outputs": []}, "allowed.outputs: list should have at least 1 item"),
        (422, {"outputs": ["ok", 3]}, "allowed.outputs.1: input should be a valid string, got 3"),
        (422, {"regex": "a" * 4001}, "allowed.regex: string should have at most 4000 characters"),
        (404, {"outputs": ["ok", "\u4f60\u597d"]}, "the model cannot write '\u4f60\u597d'"),
        (422, {"outputs": ["ok", "a" * 400_000]}, "an output may have 10,000 characters, one has 400,000"),
        (422, {"regex": "(["}, "the grammar cannot be read"),
        (422, {"grammar": "nonsense"}, "the grammar cannot be read"),
        (422, {"regex": "a", "grammar": "b"}, "must be a name, or an object"),
        (422, 7, "must be a name, or an object"),
    ],
)
def test_unknown_or_invalid_constraints_are_refused_with_the_reason(constrained, status, allowed, said):
    code, found = post_json(constrained, text=STATION, allowed=allowed)
    assert (code, said in found["detail"]) == (status, True), found


def test_a_server_started_without_constraints_refuses_them(server):
    code, found = post_json(server, text=STATION, allowed={"regex": "a"})
    assert (code, found["detail"]) == (404, "allowed: this server takes no regex; it would have to be started with --grammars")
    assert post_json(server, text=STATION, allowed="items")[0] == 404


@pytest.mark.parametrize(("value", "said"), [("items", "write NAME=FILE"), ("a=/nowhere/x", "there is no file '/nowhere/x'")])
def test_an_invalid_allowed_option_ends_the_start_with_the_reason(value, said):
    ended = run("serve", "--port", "0", "--allowed", value)
    assert ended.returncode == 2
    assert said in ended.stderr.decode()


def test_a_stop_string_within_the_allowed_outputs_is_refused():
    """It would end an output that is not allowed. The request gets the message of `decode`."""
    model = bestfirst.FunctionModel(lambda prefix: [-1.0] * 4, 0)
    model.special_token = {"<stop>": 2}.get
    constraints = ServedConstraints(model, {"items": bestfirst.Trie([[1, 2, 3]])})
    with pytest.raises(HTTPException, match="allowed: token 2 ends an output") as refused:
        run_async(constraints.using(bestfirst.Decoding(stop_strings=("<stop>",)), "items"))
    assert refused.value.status_code == 422
    assert run_async(constraints.using(bestfirst.Decoding(), "items")).allowed is not None
