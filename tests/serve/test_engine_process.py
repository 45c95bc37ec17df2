"""The engine in a process of its own: its events equal those of the engine thread, and no request waits after its end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import dumps
from time import monotonic, sleep

import pytest
import torch

import bestfirst
from bestfirst.errors import Stopped, Unusable
from bestfirst.models.folder import embedded_folder
from bestfirst.serve.engine_process import MOST_KNOWN, EngineProcess
from bestfirst.serve.engine_thread import EngineThread
from bestfirst.serve.request_queue import RequestQueue
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Certified, EngineStopped, Work

from .served import ENVIRONMENT, PATIENCE, SENTENCE, Served, run_async

LIMITS = Limits(max_beam=50)
TEXTS = ["Guten Morgen!", "Wo ist der Bahnhof?", SENTENCE, " ", "Das habe ich nicht gesagt."]


def load():
    from bestfirst.models.transformers import load_transformers

    return load_transformers(embedded_folder()), bestfirst.Decoding()


def load_nothing():
    raise Unusable("there is no such model")


def load_gpt2():
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=64, n_embd=512, n_layer=4, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return bestfirst.wrap(transformers.GPT2LMHeadModel(config).eval()), bestfirst.Decoding()


def load_forever():
    sleep(PATIENCE)


def load_failing_engine():
    """An engine that fails itself, not in a step of its model."""
    EngineThread._feed = None
    return load()


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    """The engine process imports this module, to call `load`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        yield


@pytest.fixture(scope="module")
def engine(_importable) -> Iterator[EngineProcess]:
    made = EngineProcess(load, LIMITS)
    made.start()
    yield made
    made.stop()
    assert not made.alive
    assert made._process.exitcode == 0


def events_of(
    engine: EngineProcess | EngineThread, texts: list[tuple[object, bestfirst.Decoding]], **flags: bool
) -> list[object]:
    """All events of one request."""
    events: list[object] = []
    engine.submit(Work("somebody", texts=texts, emit=events.append, **flags))
    wait_for(lambda: sum(not isinstance(event, Certified) for event in events) >= len(texts) or not engine.alive)
    assert not any(isinstance(event, EngineStopped) for event in events)
    return events


def wait_for(condition) -> None:
    begun = monotonic()
    while not condition():
        assert monotonic() < begun + PATIENCE
        sleep(0.005)


def test_events_equal_those_of_the_engine_thread(engine):
    thread = EngineThread(load()[0], LIMITS)
    thread.start()
    ways = [bestfirst.Decoding(beam=5, nbest=3), bestfirst.Decoding(beam=4, length_penalty=1.0), bestfirst.Decoding(max_length=2)]
    for flags in ({}, {"stream": True}, {"recorded": True}, {"blanks": True}):
        for decoding in ways:
            pairs = [(text, decoding) for text in TEXTS]
            from_thread, from_process = (events_of(each, pairs, **flags) for each in (thread, engine))
            assert len(from_thread) == len(from_process)
            for event in from_thread:
                other = next(each for each in from_process if same_position(each, event))
                if isinstance(event, Certified):
                    assert other.answer.tokens == event.answer.tokens
                    continue
                assert (other.prompt_tokens, other.trace is None) == (event.prompt_tokens, event.trace is None)
                assert other.result.text == event.result.text
                assert other.result.status == event.result.status
                assert other.result.partial == event.result.partial or event.result.partial is not None
                assert [a.tokens for a in other.result.hypotheses] == [a.tokens for a in event.result.hypotheses]
                assert other.result.calls == event.result.calls
                if event.trace is not None:
                    assert len(other.trace.events) == len(event.trace.events)
    thread.stop()


def same_position(a, b) -> bool:
    return type(a) is type(b) and a.index == b.index and getattr(a, "rank", 0) == getattr(b, "rank", 0)


def test_the_model_without_weights_reads_and_writes_text_like_the_loaded_one(engine):
    model = load()[0]
    assert engine.model.read(SENTENCE) == model.read(SENTENCE)
    assert engine.model.text(None, model.target("Good morning!")) == "Good morning!"
    assert (engine.model.name, engine.model.eos, engine.model.vocabulary) == (model.name, model.eos, model.vocabulary)
    assert engine.model.chats is model.chats
    assert not hasattr(engine.model.model, "parameters")


def test_a_constraint_is_sent_to_the_process_once_and_reused(engine, monkeypatch):
    sent = []
    send = engine._send
    monkeypatch.setattr(engine, "_send", lambda *message: (sent.append(message[0]), send(*message)))
    trie = bestfirst.Trie.of_texts(engine.model, ["Good morning!", "Good evening!"])
    for _ in range(2):
        decoding = bestfirst.Decoding(allowed=trie).read(engine.model)
        (done,) = events_of(engine, [("Guten Morgen!", decoding)])
        assert (done.result.text, done.result.hypotheses[0].item) == ("Good morning!", 0)
    assert sent == ["know", "know", "submit", "know", "submit"]  # the trie once, and settings for each request
    others = [bestfirst.Decoding(beam=1, max_length=1 + i % 20) for i in range(MOST_KNOWN[bestfirst.Decoding] + 20)]
    events_of(engine, [("Guten Morgen!", each) for each in others])
    sent.clear()
    events_of(engine, [("Guten Morgen!", bestfirst.Decoding(allowed=trie).read(engine.model))])
    assert sent[:2] == ["know", "submit"]  # the settings alone


def test_the_number_of_remembered_settings_is_bounded(engine):
    several = [bestfirst.Decoding(beam=1, max_length=1 + i % 20) for i in range(MOST_KNOWN[bestfirst.Decoding] + 20)]
    first = events_of(engine, [("Guten Morgen!", several[0])])
    events = events_of(engine, [("Guten Morgen!", each) for each in several])
    assert len(engine._known[bestfirst.Decoding]) == MOST_KNOWN[bestfirst.Decoding]
    assert next(each for each in events if each.index == 0).result.partial == first[0].result.partial


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_request_gets_no_more_events(engine, begun):
    events: list[object] = []
    work = Work("somebody", texts=[(SENTENCE, bestfirst.Decoding(beam=50))] * 50, emit=events.append)
    engine.submit(work)
    if begun:
        wait_for(lambda: engine.in_flight)
    engine.cancel(work)
    engine.cancel(work)
    before = len(events)
    assert len(events_of(engine, [("Guten Morgen!", bestfirst.Decoding())])) == 1
    assert len(events) == before
    assert not engine._works
    assert not engine._numbers
    wait_for(lambda: engine.in_flight == 0)
    assert engine.stats.rows > 0


def test_a_tokenizer_that_fails_here_leaves_texts_to_the_engine_process(engine, monkeypatch):
    (expected,) = events_of(engine, [(SENTENCE, bestfirst.Decoding())])

    def fails(_texts):
        raise RuntimeError("a tokenizer failed")

    monkeypatch.setattr(engine._read, "tokenised", fails)
    assert events_of(engine, [(SENTENCE, bestfirst.Decoding())]) == [expected]


def test_settings_that_cannot_be_pickled_are_refused(engine):
    events: list[object] = []
    decoding = bestfirst.Decoding().using(max_length=lambda length: 5)
    engine.submit(Work("somebody", texts=[("Guten Morgen!", decoding)], emit=events.append))
    wait_for(lambda: events)
    assert isinstance(events[0], EngineStopped)
    assert len(events_of(engine, [("Guten Morgen!", bestfirst.Decoding())])) == 1


def test_pending_and_new_requests_fail_when_the_engine_process_is_killed():
    engine = EngineProcess(load, LIMITS)

    async def ask() -> None:
        queue = RequestQueue(engine, LIMITS)
        queue.open()
        submission = queue.submit([(SENTENCE, bestfirst.Decoding(beam=50))] * 20, client="somebody")
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineStopped):
            await asyncio.wait_for(submission.results(asyncio.sleep(PATIENCE)), PATIENCE)
        with pytest.raises(EngineStopped, match="start the server again"):
            queue.submit([("Guten Morgen!", bestfirst.Decoding())], client="somebody")

    run_async(ask())
    engine.stop()


def test_an_error_of_loading_is_raised_in_this_process():
    with pytest.raises(Unusable, match="there is no such model"):
        EngineProcess(load_nothing, LIMITS)


def test_a_process_killed_while_loading_is_an_error(monkeypatch):
    others, received = {*multiprocessing.active_children()}, Connection.recv_bytes

    def killed(connection):
        (loading,) = {*multiprocessing.active_children()} - others
        os.kill(loading.pid, signal.SIGKILL)
        return received(connection)

    monkeypatch.setattr(Connection, "recv_bytes", killed)
    with pytest.raises(Stopped, match="enough memory"):
        EngineProcess(load_forever, LIMITS)


def test_a_failing_engine_ends_pending_and_later_requests():
    engine = EngineProcess(load_failing_engine, LIMITS)
    engine.start()
    events: list[object] = []
    engine.submit(Work("somebody", texts=[("Guten Morgen!", bestfirst.Decoding())], emit=events.append))
    wait_for(lambda: not engine.alive)
    wait_for(lambda: events)
    assert isinstance(events[0], EngineStopped)
    engine.submit(Work("somebody", texts=[("Guten Morgen!", bestfirst.Decoding())], emit=events.append))
    wait_for(lambda: len(events) > 1)
    engine.stop()


def test_stopping_ends_every_request_once_and_later_ones_at_once():
    engine = EngineProcess(load, LIMITS)
    engine.start()
    events: list[list[object]] = [[] for _ in range(20)]
    for each in events:
        engine.submit(Work("somebody", texts=[(SENTENCE, bestfirst.Decoding(beam=50))] * 5, emit=each.append))
    engine.stop()
    assert [sum(isinstance(event, EngineStopped) for event in each) for each in events] == [1] * 20
    late: list[object] = []
    engine.submit(Work("somebody", texts=[(SENTENCE, bestfirst.Decoding())], emit=late.append))
    assert [type(event) for event in late] == [EngineStopped]


def test_killing_the_process_ends_every_request_once():
    engine = EngineProcess(load, LIMITS)
    engine.start()
    events: list[list[object]] = [[] for _ in range(40)]
    for i, each in enumerate(events):
        engine.submit(Work("somebody", texts=[(SENTENCE, bestfirst.Decoding(beam=50))] * 5, emit=each.append))
        if i == 20:
            os.kill(engine._process.pid, signal.SIGKILL)
    wait_for(lambda: all(any(isinstance(event, EngineStopped) for event in each) for each in events))
    engine.stop()
    assert [sum(isinstance(event, EngineStopped) for event in each) for each in events] == [1] * 40


def test_pickled_models_and_traces_contain_no_weights():
    engine = EngineProcess(load_gpt2, LIMITS)
    model = load_gpt2()[0]
    bestfirst.decode(model, [[5, 6]], max_length=3)  # after this it may have a step that refers to the whole model
    assert len(dumps(model.without_weights())) < 100_000 > len(dumps(engine.model))
    engine.start()
    (done,) = events_of(engine, [([5, 6], bestfirst.Decoding(max_length=5))], recorded=True)
    assert len(dumps(done)) < 100_000
    (refused,) = events_of(engine, [((5, 60), bestfirst.Decoding())])
    assert "tokens include 60" in refused.result.message
    engine.stop()


# -- the command: on a device the engine has a process of its own, and every machine has a device cpu:0


def engine_pid(server: Served) -> int:
    """The id of the engine process."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    (found,) = (pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(found)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "Z (zombie)" not in status.read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
def test_the_command_stops_its_engine_process_and_notices_its_end():
    server = Served("--device", "cpu:0")
    texts = ["Guten Morgen!", "  ", "Wo ist der Bahnhof?"]
    expected = [result.text or "" for result in bestfirst.decode(load()[0], texts, beam=5, nbest=2)]
    found = server.translate(texts, nbest=2).json["results"]
    assert [each["text"] for each in found] == [expected[0], "", expected[2]]
    assert server.post("/v1/completions", {"prompt": "Guten Morgen!"}).json["usage"]["prompt_tokens"] == 5
    assert len(server.post("/search", {"text": "Guten Morgen!"}).json["searches"]) == 2
    engine = engine_pid(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    assert not is_running(engine)

    for killed_process, stays in (("engine", True), ("server", False)):
        server = Served("--device", "cpu:0")
        engine = engine_pid(server)
        os.kill(engine if killed_process == "engine" else server.process.pid, signal.SIGKILL)
        if stays:
            wait_for(lambda server=server: server.get("/health").status == 503)
            answer = server.translate("Guten Morgen!")
            assert (answer.status, "start the server again" in answer.json["detail"]) == (503, True)
        else:
            wait_for(lambda engine=engine: not is_running(engine))
        server.stop()


def test_a_missing_model_is_reported_in_one_line(tmp_path):
    line = [sys.executable, "-m", "bestfirst", "serve", "--port", "0", "--device", "cpu:0", "--model", str(tmp_path / "none")]
    ended = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE, check=False)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr
    assert "none" in ended.stderr


def test_an_unreadable_file_of_allowed_outputs_ends_the_command(tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\n")
    allowed = f"x={tmp_path / 'odd.txt'}"
    line = [sys.executable, "-m", "bestfirst", "serve", "--port", "0", "--device", "cpu:0", "--allowed", allowed]
    ended = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE, check=False)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr


def test_a_grammar_is_served_on_a_device():
    server = Served("--device", "cpu:0", "--allowed", "number=regex:[0-9]+")
    assert server.translate("Ich habe drei Kinder.", allowed="number").json["results"][0]["text"].isdigit()
    server.stop()
