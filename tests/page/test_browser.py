"""The page in a real Chromium: what it shows, how it reacts, and that it does nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bestfirst
from bestfirst.page import RecordedTree, component, embed, view
from bestfirst.search import HEADER
from page.browser import needs_browser, opened

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]


@pytest.mark.parametrize("k", [5, 100])
def test_the_counts_shown_are_those_of_the_results(chromium, page_of, searched, k):
    with opened(chromium, page_of(k)) as one:
        for panel, strategy in enumerate(("best-first", "beam")):
            result = searched(k, strategy)
            recording = RecordedTree(result.trace.events)
            assert one.counts(panel) == {"calls": result.calls, **recording.counts()}
            assert one.texts(".bf-lane-number")[panel] == f"{result.calls} calls ✓"
            assert len(recording.nodes) == sum(recording.counts().values())
        assert one.text(".bf-answer-text") == searched(k).text
        assert one.text(".bf-verdict").startswith("The same answer for")
        agenda = one.page.locator(".bf-panel").first.locator(".bf-agenda-title").inner_text()
        assert agenda == f"agenda · {one.counts(0)['pending']}"


def first_paint(chromium, path) -> float:
    """Milliseconds."""
    with opened(chromium, path) as one:
        one.wait_until("performance.getEntriesByName('first-contentful-paint').length > 0")
        return one.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")


def test_first_paint_of_a_beam_of_100_takes_less_than_a_second(chromium, page_of):
    """On an idle machine it takes less than half of that. On a busy one the best of a few tries counts; where a nearly empty page
    takes long too, a few times its time is allowed."""
    large, small = [], []
    while not large or (min(large) >= 1000 and min(large) >= 5 * min(small) and len(large) < 30):
        large.append(first_paint(chromium, page_of(100)))
        small.append(first_paint(chromium, page_of(1)))
    assert min(large) < max(1000, 5 * min(small)), (large, small)


def test_only_visible_hypotheses_are_in_the_document(chromium, page_of, searched):
    recording = RecordedTree(searched(100, "beam").trace.events)
    assert len(recording.nodes) > 2000
    with opened(chromium, page_of(100)) as one:
        tree = one.page.locator(".bf-tree").nth(1)
        assert 20 < tree.locator(".bf-node").count() < 200
        tree.evaluate("e => { e.scrollTop = 10000; e.scrollLeft = 1500; }")
        last = max(y.length for y in recording.nodes.values())
        tree.locator(".bf-length", has_text=str(last)).wait_for()
        assert tree.locator(".bf-node").count() < 200
        elements = one.page.evaluate("document.querySelectorAll('*').length")
        assert elements < 2500
        worst = one.page.evaluate(
            """() => { let worst = 0;
                 for (let step = 0; step <= 1201; step += 40) {
                   let best = Infinity;  // of a few: a test must not depend on who else runs
                   for (let turn = 0; turn < 5 && best >= 1000; turn++) {
                     shown.step(0);
                     const begun = performance.now(); shown.step(step); best = Math.min(best, performance.now() - begun); }
                   worst = Math.max(worst, best); }
                 return worst; }"""
        )
        assert worst < 1000  # usually a few milliseconds


def test_steps_replay_the_search_pop_by_pop(chromium, page_of, searched):
    events = searched(5).trace.events
    popped = [event["id"] for event in events if event["event"] == "pop"]
    with opened(chromium, page_of(5)) as one:
        page = one.page
        page.keyboard.press("Home")
        assert one.text(".bf-step") == "pop 0 of 41"
        assert one.counts(0)["calls"] == one.counts(1)["calls"] == 0
        for step in range(1, 6):
            page.keyboard.press("ArrowRight")
            assert one.text(".bf-step") == f"pop {step} of 41"
            assert one.counts(0)["calls"] == one.counts(0)["expanded"] == one.counts(1)["calls"] == step
            current = page.locator(".bf-panel").first.locator(".bf-node.bf-current")
            assert int(current.get_attribute("data-id")) == popped[step - 1]
            assert current.locator(".bf-order").inner_text() == str(step)
            nearest = page.locator(".bf-panel").first.locator(".bf-next .bf-number").inner_text()
            pending = [e for e in events if e["event"] == "push" and e["id"] == popped[step]]
            assert nearest == f"{pending[0]['score']:.2f}".replace("-", "−")  # the first of the agenda is popped next
        page.locator(".bf-back").click()
        assert one.counts(0)["calls"] == 4
        page.locator(".bf-slider").fill("14")
        assert one.texts(".bf-lane-number") == ["14 calls ✓", "14 calls"]
        page.locator(".bf-last").click()
        assert one.counts(1)["calls"] == searched(5, "beam").calls


def test_play_runs_to_the_end_and_can_be_paused(chromium, page_of):
    with opened(chromium, page_of(5)) as one:
        page = one.page
        page.clock.install(time=0)
        page.clock.pause_at(10**9)  # from here on, only `run_for` advances the page's clock
        page.locator(".bf-play").click()
        page.clock.run_for(12_000 / 41 * 5.5)  # a replay takes 12 seconds
        assert one.text(".bf-step") == "pop 5 of 41"
        page.keyboard.press("Escape")
        page.locator(".bf-play").click()
        page.clock.run_for(5000)
        assert one.text(".bf-step") == "pop 5 of 41"
        page.evaluate("shown.step(38); shown.play()")
        page.clock.run_for(5000)
        assert one.text(".bf-step") == "pop 41 of 41"
        assert page.locator(".bf-play").get_attribute("aria-pressed") == "false"


def test_hovering_shows_score_log_probability_and_pop_order(chromium, page_of, searched):
    recording = RecordedTree(searched(5).trace.events)
    seventh = next(y for y in recording.nodes.values() if y.popped == 7)
    with opened(chromium, page_of(5)) as one:
        one.page.locator(f".bf-panel >> nth=0 >> .bf-node[data-id='{seventh.id}']").hover()
        tooltip = one.text(".bf-tooltip")
        assert "How do you" in tooltip
        assert "expanded, popped as number 7" in tooltip
        for value in (seventh.score, seventh.logprob):
            assert f"{value:.4f}".replace("-", "−") in tooltip


def test_a_click_shows_why_a_hypothesis_has_its_fate(chromium, page_of, searched):
    recording = RecordedTree(searched(5, "beam").trace.events)
    fallen = max((y for y in recording.nodes.values() if y.why.get("why") == "full"), key=lambda y: y.length)
    with opened(chromium, page_of(5)) as one:
        page = one.page
        page.evaluate(f"shown.select(1, {fallen.id})")
        assert f"length {fallen.length} was full: 5 better" in one.text(".bf-why")
        assert one.text(".bf-details-text") == fallen.text
        assert one.text(".bf-badge") == "pruned"
        page.keyboard.press("Escape")
        assert page.locator(".bf-details").is_hidden()
        page.locator(".bf-panel >> nth=0 >> .bf-node.bf-is-returned").click()
        assert one.text(".bf-why").startswith(
            "The answer: nothing that still waited could become better (beam search returns the same"
        )
        assert one.texts(".bf-tokens .bf-chip")[:3] == ["How", "do", "you"]
        page.locator(".bf-panel >> nth=0 >> .bf-waiting button >> nth=3").click()
        assert "It was still waiting when the search ended: it can become" in one.text(".bf-why")
        page.locator(".bf-panel >> nth=1 >> .bf-fold-pruned >> nth=1").click()
        page.locator(".bf-panel >> nth=1 >> .bf-node.bf-is-pruned >> nth=0").click()
        assert "was full: 5 better" in one.text(".bf-why")


def test_the_search_field_finds_tokens(chromium, page_of, searched):
    nodes = [y for s in ("best-first", "beam") for y in RecordedTree(searched(5, s).trace.events).nodes.values()]
    milk = [y for y in nodes if "milk" in y.piece]
    with opened(chromium, page_of(5)) as one:
        page = one.page
        page.keyboard.press("/")
        page.keyboard.type("MILK")
        assert one.text(".bf-hits") == f"{len(milk)} hypotheses"
        assert set(one.texts(".bf-found .bf-token")) == {"milk"}
        page.keyboard.press("Enter")
        assert one.text(".bf-details-text").endswith("milk")
        page.locator(".bf-query").fill("zebra")
        assert one.text(".bf-hits") == "not found"
        page.keyboard.press("Escape")
        assert page.locator(".bf-found").count() == 0


def test_the_page_can_be_used_with_the_keyboard_alone(chromium, page_of):
    with opened(chromium, page_of(5)) as one:
        page = one.page
        page.locator(".bf-node >> nth=0").focus()
        for key, said in (("ArrowDown", "What"), ("ArrowRight", "How"), ("ArrowDown", "How do"), ("ArrowUp", "How")):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(f"{said}: expanded")
        page.keyboard.press("Enter")
        assert one.text(".bf-details-text") == "How"
        page.keyboard.press(" ")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_both_themes(chromium, page_of, width, scheme):
    with opened(chromium, page_of(5), viewport={"width": 1280, "height": 800}, color_scheme=scheme) as one:
        page = one.page
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        first, second = (page.locator(".bf-panel").nth(i).bounding_box() for i in (0, 1))
        assert (second["y"] > first["y"] + first["height"] - 1) is (width == 390)  # below one another, or side by side
        for selector in (".bf-play", ".bf-query", ".bf-lane-number"):
            box = page.locator(selector).first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        page.locator(".bf-panel >> nth=0 >> .bf-node >> nth=1").click()
        assert page.locator(".bf-why").is_visible()
        dark = page.evaluate("getComputedStyle(document.querySelector('.bf')).backgroundColor") == "rgb(15, 18, 24)"
        assert dark is (scheme == "dark")
        page.locator(".bf-theme").click()
        assert (page.evaluate("getComputedStyle(document.querySelector('.bf')).backgroundColor") == "rgb(15, 18, 24)") is not dark


def test_every_fate_has_a_shape_of_its_own(chromium, page_of):
    """So that the page can be read without its colours."""
    with opened(chromium, page_of(5)) as one:
        shapes = one.page.evaluate(
            "[...document.querySelectorAll('.bf-panel:first-child .bf-legend .bf-mark')].map(m => m.innerHTML)"
        )
        assert len(shapes) == len(set(shapes)) == 6


# -- hostile input, embedding, other input ------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "\"'`${alert(4)}&lt;&amp;",
    "<!--",
    "\u202egnp.exe\u2066",
    "שלום مرحبا",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "x" * 10000,
    "\u2028\u2029\x00\x1b[31m",
]


def hostile_model() -> bestfirst.FunctionModel:
    """A model whose tokens are the hostile strings."""
    model = bestfirst.FunctionModel(
        lambda prefix: [-3.0 if len(prefix) < 2 else -0.1, *[-float(i + 1) for i in range(len(HOSTILE))]], eos=0
    )
    model.piece = lambda token: "</s>" if token == 0 else HOSTILE[token - 1]
    return model


def test_hostile_text_is_shown_as_text(chromium, tmp_path):
    source = " ".join(HOSTILE)
    result = bestfirst.decode(hostile_model(), [source], beam=len(HOSTILE) + 1, max_length=4, trace=True, row_budget=1)[0]
    path = view(result, title=source).save(tmp_path / "hostile.html")
    with opened(chromium, path) as one:
        page = one.page
        assert page.evaluate("document.scripts.length") == 3
        assert page.evaluate("document.images.length") == 0
        page.locator(".bf-source").click()  # it is long: shown in full on request
        assert page.locator(".bf-source-whole").text_content() == source.replace("\x00", "\x00")
        tokens = page.locator(".bf-node .bf-token").all_text_contents()
        assert "<script>alert(1)</script>" in tokens
        assert "<img src=x onerror=alert(3)>" in tokens
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        for node in page.locator(".bf-node").all()[:8]:
            node.click()
            node.hover()
        assert page.locator(".bf-details-text").text_content()


def test_another_page_can_embed_a_trace(chromium, searched, tmp_path):
    """The contract of `bestfirst.page`: a style, a script, and events as a server sends them."""
    events = json.loads(json.dumps(searched(5).trace.events))
    path = tmp_path / "own.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>{component()}<body data-theme=dark><h1>mine</h1>"
        "<div id=here></div><script>const shown = bestfirst.show(document.getElementById('here'), "
        f"[{embed(events)}], {{title: 'mine'}});</script>",
        encoding="utf-8",
    )
    with opened(chromium, path, color_scheme="light") as one:
        assert one.counts(0)["calls"] == searched(5).calls
        one.page.evaluate("shown.step(3)")
        assert one.counts(0)["calls"] == 3
        assert one.page.evaluate("getComputedStyle(document.querySelector('.bf')).backgroundColor") == "rgb(15, 18, 24)"
        assert (
            one.page.evaluate("getComputedStyle(document.querySelector('h1')).fontSize") == "32px"
        )  # nothing outside is restyled
        one.page.evaluate("shown.remove()")
        assert one.page.locator(".bf").count() == 0


def test_problems_of_a_trace_file_are_shown_on_the_page(chromium, searched, tmp_path):
    lines = [json.dumps(event) for event in searched(5).trace.events]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join([json.dumps(HEADER), *lines[:39]])[:-9], encoding="utf-8")
    with pytest.warns(UserWarning, match="ends in the middle of line 40"):
        path = view(Path(trace)).save(tmp_path / "cut.html")
    with opened(chromium, path) as one:
        assert any("ends in the middle of line 40" in said for said in one.texts(".bf-problems"))
        assert one.counts(0)["calls"] == sum('"pop"' in line for line in lines[:38])


def test_speculation_shows_rows_beside_calls(chromium, searched, tmp_path):
    result = searched(5, row_budget=8)
    assert result.rows > result.calls
    with opened(chromium, view(result).save(tmp_path / "ahead.html")) as one:
        assert one.text(".bf-calls") == f"{result.calls} calls ({result.rows} rows)"
        assert one.counts(0)["calls"] == result.calls


def test_a_notebook_shows_the_page_in_a_frame(chromium, searched, tmp_path):
    path = tmp_path / "notebook.html"
    frame = view(searched(5))._repr_html_()
    path.write_text(f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>{frame}", encoding="utf-8")
    with opened(chromium, path) as one:
        inner = one.page.frame_locator("iframe")
        assert inner.locator(".bf-calls").inner_text() == f"{searched(5).calls} calls"
        one.requests[:] = [url for url in one.requests if url != "about:srcdoc"]
