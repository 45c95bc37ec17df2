"""Limits: a full queue, clients that disconnect, the deadline, the token."""

from __future__ import annotations

import json

import pytest

from serve.served import SENTENCE, SLOW, Response, Served, wait_until

TOKEN = {"Authorization": "Bearer open sesame"}


def translate(server: Served, text: object, **settings: object) -> Response:
    return server.post("/translate", {"text": text, **settings}, **TOKEN)


@pytest.fixture
def full(narrow):
    """All places of the queue are taken, by a client that waits."""
    wait_until(lambda: narrow.health["queue"] == 0)
    taken = narrow.send(SLOW, **TOKEN)
    wait_until(lambda: narrow.health["queue"] == 6)
    yield taken
    taken.close()
    wait_until(lambda: narrow.health["queue"] == 0)


def test_a_full_queue_answers_429_at_once(narrow, full):
    """Every time, while the engine works for minutes on the texts that fill it."""
    for _ in range(20):
        answer = translate(narrow, "Ja.")
        assert answer.status == 429
        assert "the queue is full: 6 of 6 places are taken, 1 needed; try again later" in answer.json["detail"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert narrow.health["queue"] == 6


def test_a_disconnected_client_frees_its_places(narrow, full):
    wait_until(lambda: narrow.health["in_flight"] >= 1)
    full.close()
    wait_until(lambda: narrow.health["queue"] == narrow.health["in_flight"] == 0)
    assert translate(narrow, "Ja.").json["results"][0]["text"] == "Yes."


def test_a_client_that_disconnects_from_its_stream_frees_its_places(narrow):
    wait_until(lambda: narrow.health["queue"] == 0)
    reading = narrow.send({"text": [SENTENCE] * 6, "beam": 20, "nbest": 20, "stream": True}, **TOKEN)
    reading.getresponse().readline()
    reading.close()
    wait_until(lambda: narrow.health["queue"] == narrow.health["in_flight"] == 0)
    assert translate(narrow, "Ja.").status == 200


def test_a_request_beyond_the_deadline_ends_with_an_error_and_frees_its_places(frail):
    answer = frail.post("/translate", SLOW)
    assert answer.status == 504
    assert "of 6 texts were done within 3 seconds; send fewer at a time" in answer.json["detail"]
    wait_until(lambda: frail.health["queue"] == frail.health["in_flight"] == 0)
    streamed = frail.post("/translate", {**SLOW, "stream": True})
    assert streamed.status == 200
    assert "were done within 3 seconds" in streamed.lines[-1]["detail"]
    wait_until(lambda: frail.health["queue"] == 0)


def test_more_texts_than_the_queue_can_hold_are_refused_with_the_limit(narrow):
    assert "at most 6 items" in translate(narrow, ["Ja."] * 7).json["detail"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}])
@pytest.mark.parametrize("path", ["/translate", "/search", "/metrics"])
def test_requests_without_the_token_get_401(narrow, path, headers):
    answer = narrow.ask("GET" if path == "/metrics" else "POST", path, b"not even JSON", **headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in answer.json["detail"]


def test_the_name_of_the_scheme_before_the_token_may_have_any_case(narrow):
    assert [narrow.get("/metrics", Authorization=f"{name} open sesame").status for name in ("Bearer", "bearer")] == [200, 200]


def test_public_paths_need_no_token_and_do_not_reveal_it(narrow):
    assert [narrow.get(path).status for path in ("/health", "/", "/docs", "/openapi.json")] == [200] * 4
    schema = json.dumps(narrow.get("/openapi.json").json)
    assert "HTTPBearer" in schema
    assert "sesame" not in schema
