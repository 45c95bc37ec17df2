"""The playground in a real browser: translations, search trees, errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from page.browser import needs_browser
from serve.served import Served

pytestmark = needs_browser
SLOW = 200_000  # milliseconds: a busy machine


@contextmanager
def playground(chromium: Any, server: Served, complains: bool = False) -> Iterator[Any]:
    """The page. It may request nothing but the server, and log nothing to the console unless `complains`."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SLOW)
    page = context.new_page()
    complaints: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(server.url)
    yield page
    context.close()
    assert [url for url in requested if not url.startswith((server.url, "data:"))] == []
    if not complains:
        assert complaints == []


def translate(page: Any, text: str) -> str:
    page.fill("#text", text)
    page.click("#go")
    page.wait_for_selector("#go:not(:disabled)")
    return page.inner_text("#status")


def test_translations_calls_and_trees_are_those_of_the_search(chromium, server):
    with playground(chromium, server) as page:
        page.select_option("#beam", "10")
        status = translate(page, "Wie melkt man eine Kuh?")
        both = server.post("/search", {"text": "Wie melkt man eine Kuh?", "beam": 10, "nbest": 3}).json
        assert status.startswith(f"{both['best_first']['calls']} calls beside beam search's {both['beam']['calls']}: ")
        assert "proven to be beam search's answer" in status
        answers = page.locator(".bf-answer-text").all_inner_texts()
        assert answers == [each["text"] for each in both["best_first"]["hypotheses"]]
        assert f"{both['best_first']['hypotheses'][0]['score']:.2f}"[1:] in page.inner_text(".bf-answers")
        assert page.locator(".bf-panel").count() == 2
        assert page.inner_text(".bf-panel:first-child .bf-calls") == f"{both['best_first']['calls']} calls"
        assert page.locator("#model").inner_text().startswith("tatoeba-de-en")


def test_an_error_is_shown_as_an_error_and_the_next_search_works(chromium, server):
    with playground(chromium, server) as page:
        status = translate(page, "wort " * 700)
        assert "more than the model's 512 positions; split it" in status
        assert page.get_attribute("#status", "role") == "alert"
        assert page.locator(".bf-panel").count() == 0
        assert "calls beside" in translate(page, "Ja.")
        assert page.get_attribute("#status", "role") == "status"


def test_only_one_search_runs_at_a_time(chromium, server):
    with playground(chromium, server) as page:
        searches: list[str] = []
        page.on("request", lambda request: searches.append(request.url))
        page.fill("#text", "Wie melkt man eine Kuh?")
        page.focus("#text")
        page.evaluate("for (let i = 0; i < 3; i++) document.getElementById('form').requestSubmit()")
        page.wait_for_selector(".bf-panel")
        assert searches == [f"{server.url}/search"]


def test_a_server_whose_engine_has_stopped_says_so(chromium, server):
    with playground(chromium, server, complains=True) as page:
        stopped = '{"detail": "the engine has stopped; start the server again"}'
        page.route("**/health", lambda route: route.fulfill(status=503, content_type="application/json", body=stopped))
        page.reload()
        page.wait_for_selector("#status.error")
        assert "start the server again" in page.inner_text("#status")
        assert page.inner_text("#model") == ""


def test_refusals_are_shown_and_hostile_text_stays_text(chromium, server):
    with playground(chromium, server, complains=True) as page:  # browsers log every 4xx
        assert "string should have at most 4000 characters" in translate(page, "a" * 4001)
        page.on("dialog", lambda dialog: pytest.fail("a script ran"))
        translate(page, "<img src=x onerror=alert(1)><script>alert(2)</script>")
        assert page.locator(".bf img, .bf script").count() == 0


def test_a_token_is_asked_for_and_sent(chromium, narrow):
    with playground(chromium, narrow, complains=True) as page:
        assert "this server asks for a token" in translate(page, "Ja.")
        page.fill("#token", "open sesame")
        assert "calls beside" in translate(page, "Ja.")
