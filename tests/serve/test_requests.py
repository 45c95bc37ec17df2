"""Requests get the answers of `decode`, as one response or as a stream; errors say what to do."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from pydantic_core import to_json

import bestfirst
from bestfirst.corpus.worker import beam_calls
from bestfirst.search import OptimalStop
from bestfirst.serve.schemas import StreamLine
from serve.served import wait_until

NEAR_TIE = 1e-4

REQUESTS = [
    ({"beam": 5}, {"beam": 5}),
    ({"beam": 10, "nbest": 4}, {"beam": 10, "nbest": 4}),
    ({"strategy": "beam", "beam": 3, "nbest": 2}, {"strategy": "beam", "beam": 3, "nbest": 2}),
    (
        {"score": {"name": "length-normalized", "alpha": 1.0}, "nbest": 2, "max_length": 40},
        {"score": "length-normalized", "score_options": {"alpha": 1.0}, "nbest": 2, "max_length": 40},
    ),
    ({"length_penalty": 0.6, "nbest": 3}, {"length_penalty": 0.6, "nbest": 3}),
    (
        {"score": {"name": "bounded-length-reward", "beta": 0.5, "ratio": 1.5}, "max_length": 40},
        {"score": "bounded-length-reward", "score_options": {"beta": 0.5, "ratio": 1.5}, "max_length": 40},
    ),
]


def equal_result(result, expected) -> bool:
    """Whether texts, scores, calls and exactness are equal, but for near-ties."""
    pairs = list(zip(result["hypotheses"], expected.hypotheses, strict=True))
    texts = all(ours["text"] == answer.text for ours, answer in pairs)
    scores = all(abs(ours["score"] - answer.score) < NEAR_TIE for ours, answer in pairs)
    close = [abs(a.score - b.score) < NEAR_TIE for a, b in zip(expected.hypotheses, expected.hypotheses[1:], strict=False)]
    return (
        scores
        and (texts or any(close))
        and (result["calls"] == expected.calls or any(close))
        and result["exact"] == expected.exact
    )


def test_answers_equal_those_of_decode(server, model, lines):
    """Requests of different beams, scores and n-best at the same time."""
    texts = lines[:6]
    waiting = [(server.send({"text": texts, **asked}), settings) for asked, settings in REQUESTS]
    for connection, settings in waiting:
        results = json.loads(connection.getresponse().read())["results"]
        expected = bestfirst.decode(model, texts, **settings)
        assert all(equal_result(ours, theirs) for ours, theirs in zip(results, expected, strict=True)), settings


def test_the_body_has_the_bytes_of_the_whole_answer_serialised_at_once(server):
    """Though each text is serialised by itself; and for plain JSON as for other bodies, which FastAPI parses."""
    body = json.dumps({"text": ["Ja.", " ", "Wie geht es dir, sagte \u201eer\u201c?"], "nbest": 2}).encode()
    answer = server.ask("POST", "/translate", body)
    assert [each["text"] for each in answer.json["results"]][:2] == ["Yes.", ""]
    assert answer.body == to_json(answer.json)
    for kind, same in (("application/json; charset=utf-8", body), ("application/json", body.decode().encode("utf-16"))):
        assert server.ask("POST", "/translate", same, **{"Content-Type": kind}).json["results"][0]["text"] == "Yes."


def test_a_refusal_is_the_same_whether_or_not_fastapi_parses_the_body(server):
    refused = {
        ("/translate", '{"text": "a", "allowed": "nothing"}'): 404,
        ("/translate", '{"text": ["a", "a\\u0000b"]}'): 422,
        ("/search", '{"text": "a\\u0000b"}'): 422,
        ("/v1/completions", '{"prompt": ["a", "\\u0000"]}'): 422,
        ("/v1/completions", '{"prompt": "a", "allowed": "nothing"}'): 404,
    }
    for (path, body), status in refused.items():
        kinds = ("application/json", "application/json; charset=utf-8")
        one, other = (server.ask("POST", path, body.encode(), **{"Content-Type": kind}) for kind in kinds)
        assert one.status == other.status == status
        assert one.body == other.body
    assert (
        server.ask("POST", "/translate", b'{"text": "Ja \\\\u0000"}').json["results"][0]["status"] == "complete"
    )  # a backslash, no NUL


def test_a_single_text_gets_a_list_of_one_result(server):
    answer = server.translate("Guten Morgen!")
    assert answer.status == 200
    (result,) = answer.json["results"]
    assert (result["text"], result["status"], result["exact"]) == ("Good morning.", "complete", True)
    assert result["hypotheses"][0]["text"] == result["text"]


def test_a_blank_text_stays_blank_and_a_too_long_one_is_an_error(server):
    blank, long, fine = server.translate([" \t", "wort " * 700, "Ja."]).json["results"]
    assert (blank["text"], blank["hypotheses"], blank["calls"], blank["status"]) == ("", [], 0, "complete")
    assert (long["status"], long["hypotheses"]) == ("error", [])
    assert "more than the model's 512 positions; split it" in long["message"]
    assert fine["text"] == "Yes."


def test_a_stream_has_each_answer_of_the_plain_response_once_and_in_order(server, lines):
    texts = [*lines[:3], " "]
    plain = server.translate(texts, nbest=5, beam=5).json["results"]
    answer = server.translate(texts, nbest=5, beam=5, stream=True)
    assert answer.headers["content-type"] == "application/x-ndjson"
    for index, result in enumerate(plain):
        mine = [line for line in answer.lines if line["index"] == index]
        *found, last = mine
        assert [line["rank"] for line in found] == list(range(1, len(found) + 1))
        assert [line["text"] for line in found] == [each["text"] for each in result["hypotheses"]]
        assert [last[name] for name in ("status", "exact", "calls")] == [result[name] for name in ("status", "exact", "calls")]
        assert [line.keys() - {"index", "rank"} for line in found] == [each.keys() for each in result["hypotheses"]]
        assert all(line.keys() <= StreamLine.model_fields.keys() for line in mine)  # as in the OpenAPI document


def test_a_stream_sends_its_first_answer_before_the_search_is_over(server):
    """The first of 50 arrives during the search for the others; in one of a few tries, since that takes a moment only."""

    def before() -> bool:
        with closing(server.send({"text": "Wie melkt man eine Kuh?", "beam": 50, "nbest": 50, "stream": True})) as connection:
            first = json.loads(connection.getresponse().readline())
            assert (first["rank"], first["text"]) == (1, "How do you milk a cow?")
            return server.health["queue"] == 1

    wait_until(before)


def test_search_returns_both_searches_with_their_events(server):
    found = server.post("/search", {"text": "Guten Morgen!", "beam": 5, "nbest": 2}).json
    assert found["best_first"]["text"] == found["beam"]["text"] == "Good morning."
    assert found["best_first"]["calls"] < found["beam"]["calls"]
    for events, result in zip(found["searches"], (found["best_first"], found["beam"]), strict=True):
        assert (events[0]["event"], events[-1]["event"]) == ("begin", "text")
        assert sum(event["event"] == "pop" for event in events) == result["calls"]  # in strict order, nothing scored ahead


# -- invalid requests --------------------------------------------------------------------------------------------------------

INVALID = {
    '{"text": "Ja.", "beam"': (422, "the body is not JSON"),
    "": (422, "the body must be a JSON object"),
    "[]": (422, "the body must be a JSON object"),
    "{}": (422, "text: is missing"),
    '{"text": 3}': (422, "text: input should be a valid string"),
    '{"text": null}': (422, "text"),
    '{"text": []}': (422, "text: list should have at least 1 item"),
    '{"text": ["Ja.", 3]}': (422, "text.1: input should be a valid string, got 3"),
    '{"text": "a\\u0000b"}': (422, "must not contain NUL"),
    '{"text": "\\ud800"}': (422, "unicode"),
    '{"text": "Ja.", "beam": 0}': (422, "beam: input should be greater than or equal to 1, got 0"),
    '{"text": "Ja.", "beam": 51}': (422, "beam: input should be less than or equal to 50, got 51"),
    '{"text": "Ja.", "beam": "5"}': (422, "beam: input should be a valid integer, got '5'"),
    '{"text": "Ja.", "beam": true}': (422, "beam"),
    '{"text": "Ja.", "beam": 1e400}': (422, "beam"),
    '{"text": "Ja.", "nbest": NaN}': (422, "nbest"),
    '{"text": "Ja.", "score": "gnmt"}': (422, 'score: must be "logprob", or an object'),
    '{"text": "Ja.", "score": {"name": "gnmt"}}': (422, "alpha: is missing"),
    '{"text": "Ja.", "score": {"name": "gnmt", "alpha": 1}, "length_penalty": 1}': (422, "length_penalty is a score of its own"),
    '{"text": "Ja.", "score": {"name": "mutual-information", "language_model": "/etc"}}': (422, "score: must be"),
    '{"text": "Ja.", "model": "/etc/passwd"}': (422, "model: there is no such field"),
    '{"text": "Ja.", "language_model": "../lm"}': (422, "language_model: there is no such field"),
    "[" * 100_000: (400, "the body cannot be read as JSON: it is nested too deeply"),
    '{"text": "Ja.", "beam": ' + "9" * 5000 + "}": (400, "a number in it has too many digits"),
    json.dumps({"text": ["Ja."] * 10_000}): (422, "list should have at most 64 items"),
    json.dumps({"text": "a" * 4001}): (422, "text: string should have at most 4000 characters"),
    json.dumps({"text": "a" * (10 << 20)}): (413, "a body may have 524,288 bytes"),
}


@pytest.mark.parametrize("body", INVALID, ids=lambda body: body[:40])
def test_an_invalid_body_gets_a_clear_line_and_the_server_goes_on(server, body):
    status, said = INVALID[body]
    answer = server.ask("POST", "/translate", body.encode("utf-8", "surrogatepass"))
    assert answer.status == status
    detail = answer.json["detail"]
    assert said in detail
    assert "\n" not in detail
    assert len(detail) < 250
    assert server.translate("Ja.").json["results"][0]["text"] == "Yes."


@pytest.mark.parametrize("body", [b"\x00\x00", b"\xff\xfe{}", b'{"text": "\xe4"}'])
def test_binary_bodies_are_refused(server, body):
    assert server.ask("POST", "/translate", body).status in (400, 422)


def test_another_content_type_is_refused(server):
    answer = server.ask("POST", "/translate", b'{"text": "Ja."}', **{"Content-Type": "text/plain"})
    assert answer.status == 422


def test_unknown_paths_get_404_and_wrong_methods_405(server):
    assert server.get("/nothing").status == 404
    assert server.get("/translate").status == 405
    assert server.get("/../../etc/passwd").status == 404


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/docs", "/"])
def test_head_gets_the_head_of_what_get_gets(server, path):
    asked, got = server.ask("HEAD", path), server.get(path)
    assert (asked.status, asked.body) == (200, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]
    assert server.ask("HEAD", "/translate").status == 405


# -- metrics, health, OpenAPI ------------------------------------------------------------------------------------------------


def test_metrics_count_calls_rows_steps_and_requests(server):
    def read() -> dict[str, float]:
        samples = (line.rsplit(" ", 1) for line in server.get("/metrics").body.decode().splitlines() if line[0] != "#")
        return {name: float(value) for name, value in samples}

    wait_until(lambda: server.health["queue"] == server.health["in_flight"] == 0)  # requests cancelled before have ended
    before = read()
    result = server.translate("Wie melkt man eine Kuh?", beam=10).json["results"][0]
    server.translate("Ja.", beam=0)
    after = read()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["bestfirst_calls_total"] == result["calls"]
    assert grown["bestfirst_rows_total"] == result["rows"]
    assert grown["bestfirst_steps_total"] == result["steps"]
    assert grown["bestfirst_calls_saved_total"] == 1 + 10 * (len(result["hypotheses"][0]["tokens"]) - 1) - result["calls"]
    assert grown['bestfirst_requests_total{code="200",path="/translate"}'] == 1
    assert grown['bestfirst_requests_total{code="422",path="/translate"}'] == 1
    assert (after["bestfirst_queue"], after["bestfirst_in_flight"]) == (0, 0)


def test_the_baseline_of_saved_calls_is_at_most_beam_search_with_optimal_stop(model, lines):
    for beam in (2, 5):
        stop = {"strategy": "beam", "stop": OptimalStop()}
        for nbest in (1, beam):
            optimal = bestfirst.decode(model, lines[:15], beam=beam, nbest=nbest, **stop)
            assert all(beam_calls(result, beam) <= result.calls for result in optimal)


def test_health_openapi_and_docs_are_served(server):
    assert server.health["status"] == "ok"
    assert server.health["model"] == "tatoeba-de-en"
    schema = server.get("/openapi.json").json
    assert set(schema["paths"]) == {"/translate", "/search", "/health", "/metrics", "/v1/models", "/v1/completions"}
    assert "swagger-ui" in server.get("/docs").body.decode()
