"""Limits: a full queue, clients that leave, the deadline, the token."""

from __future__ import annotations

import json

import pytest

from serve.served import SENTENCE, SLOW, Answer, Served, until

TOKEN = {"Authorization": "Bearer open sesame"}


def translate(server: Served, text: object, **settings: object) -> Answer:
    return server.post("/translate", {"text": text, **settings}, **TOKEN)


@pytest.fixture
def full(narrow):
    """All places are taken, by clients that wait."""
    until(lambda: narrow.health["queue"] == 0)
    taken = narrow.send(SLOW, **TOKEN)
    until(lambda: narrow.health["queue"] == 6)
    yield taken
    taken.close()
    until(lambda: narrow.health["queue"] == 0)


def test_a_full_queue_is_told_at_once(narrow, full):
    """429, time and again, while the engine is at work for minutes on what fills it."""
    for _ in range(20):
        answer = translate(narrow, "Ja.")
        assert answer.status == 429
        assert "the queue is full: 6 of 6 places are taken, 1 needed; try again later" in answer.json["detail"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert narrow.health["queue"] == 6


def test_a_client_that_leaves_frees_its_places(narrow, full):
    until(lambda: narrow.health["in_flight"] >= 1)
    full.close()
    until(lambda: narrow.health["queue"] == narrow.health["in_flight"] == 0)
    assert translate(narrow, "Ja.").json["results"][0]["text"] == "Yes."


def test_a_client_that_leaves_its_stream_frees_its_places(narrow):
    until(lambda: narrow.health["queue"] == 0)
    reading = narrow.send({"text": [SENTENCE] * 6, "beam": 20, "nbest": 20, "stream": True}, **TOKEN)
    reading.getresponse().readline()
    reading.close()
    until(lambda: narrow.health["queue"] == narrow.health["in_flight"] == 0)
    assert translate(narrow, "Ja.").status == 200


def test_the_deadline_is_told_and_frees_its_places(frail):
    answer = frail.post("/translate", SLOW)
    assert answer.status == 504
    assert "of 6 texts were done within 3 seconds; send fewer at a time" in answer.json["detail"]
    until(lambda: frail.health["queue"] == frail.health["in_flight"] == 0)
    streamed = frail.post("/translate", {**SLOW, "stream": True})
    assert streamed.status == 200
    assert "were done within 3 seconds" in streamed.lines[-1]["detail"]
    until(lambda: frail.health["queue"] == 0)


def test_more_than_the_queue_can_ever_hold_is_refused_by_its_number(narrow):
    assert "at most 6 items" in translate(narrow, ["Ja."] * 7).json["detail"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}])
@pytest.mark.parametrize("path", ["/translate", "/search", "/metrics"])
def test_without_the_token_nothing_is_done(narrow, path, headers):
    answer = narrow.ask("GET" if path == "/metrics" else "POST", path, b"not even JSON", **headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in answer.json["detail"]


def test_the_token_is_not_asked_for_where_nothing_is_to_be_had(narrow):
    assert [narrow.get(path).status for path in ("/health", "/", "/docs", "/openapi.json")] == [200] * 4
    schema = json.dumps(narrow.get("/openapi.json").json)
    assert "HTTPBearer" in schema
    assert "sesame" not in schema
