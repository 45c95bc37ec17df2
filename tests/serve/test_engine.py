"""The engine's thread on small models: failures, cancellation, and the events that each request gets."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from math import inf, log
from queue import SimpleQueue

import pytest

import bestfirst
from bestfirst import Decoding
from bestfirst.serve.engine_thread import GC_THRESHOLD, JOBS_PER_TURN, EngineThread
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Certified, Done, EngineStopped, Event, Work
from serve.served import PATIENCE, wait_until


class Letters(bestfirst.Model):
    """Mostly repeats its input. It cannot read "unreadable", fails in the middle of "poison", and blocks on "slow" until `go`."""

    eos = frozenset({0})
    name = "letters"

    def __init__(self):
        self.begun, self.go, self.over = threading.Event(), threading.Event(), threading.Event()

    def start(self, source):
        return source

    def source_length(self, source):
        if source == "unreadable":
            raise ValueError("the input cannot be read; write it otherwise")
        return len(source)

    def score(self, batch):
        return [bestfirst.Scored(self._next(text, prefix), text) for text, prefix in batch]

    def _next(self, text, prefix):
        if text == "poison" and len(prefix) == 3:
            raise RuntimeError("a kernel failed")
        if text == "slow":
            self.begun.set()
            self.go.wait(PATIENCE)
            self.over.set()
        wanted = ord(text[len(prefix)]) - 96 if len(prefix) < len(text) else 0
        return [log(0.7) if token == wanted else log(0.3 / 26) if 0 < token < 27 or wanted else -inf for token in range(27)]

    def text(self, source, tokens):
        return "".join(chr(96 + token) for token in tokens if token)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    made = EngineThread(Letters(), Limits(max_beam=8))
    made.start()
    yield made
    made.model.go.set()
    made.stop()


USUAL = Decoding(beam=4)


def submit(
    engine: EngineThread, *texts: str, decoding: Decoding = USUAL, client: str = "someone", **settings: bool
) -> tuple[Work, SimpleQueue[Event]]:
    events: SimpleQueue[Event] = SimpleQueue()
    work = Work(client, texts=[(text, decoding) for text in texts], emit=events.put, **settings)
    engine.submit(work)
    return work, events


def results(events: SimpleQueue[Event], count: int) -> dict[int, bestfirst.Result]:
    found: dict[int, bestfirst.Result] = {}
    while len(found) < count:
        event = events.get(timeout=PATIENCE)
        assert isinstance(event, Done)
        found[event.index] = event.result
    return found


def test_a_text_that_breaks_a_forward_pass_fails_alone(engine):
    _, first = submit(engine, "hello", "poison", "world")
    _, second = submit(engine, "abc", "poison", " ")
    one, two = results(first, 3), results(second, 3)
    assert [one[0].text, one[2].text, two[0].text] == ["hello", "world", "abc"]
    assert [result.status for result in (one[1], two[1], two[2])] == ["error", "error", "complete"]
    assert one[1].message == "the model failed: RuntimeError"
    _, after = submit(engine, "still", "here")  # forward passes are shared again
    assert [result.text for _, result in sorted(results(after, 2).items())] == ["still", "here"]
    assert engine.in_flight == 0


def test_a_text_that_cannot_be_read_gets_an_error_result(engine):
    _, events = submit(engine, "unreadable", "fine")
    found = results(events, 2)
    assert (found[0].status, found[0].message) == ("error", "the input cannot be read; write it otherwise")
    assert found[1].text == "fine"


def test_a_stream_emits_every_answer_once_even_if_another_request_breaks_the_step(engine):
    _, events = submit(engine, "abcdef", decoding=Decoding(beam=8, nbest=6), stream=True)
    submit(engine, "poison")
    ranks = []
    while isinstance(event := events.get(timeout=PATIENCE), Certified):
        ranks.append((event.rank, event.answer.text))
    assert isinstance(event, Done)
    assert ranks == [(rank, answer.text) for rank, answer in enumerate(event.result.hypotheses, 1)]
    assert ranks[0] == (1, "abcdef")


def test_a_cancelled_request_is_dropped_and_emits_nothing(engine):
    given_up, events = submit(engine, "slow", "more")
    assert engine.model.begun.wait(PATIENCE)
    engine.cancel(given_up)  # in the middle of a forward pass
    engine.cancel(given_up)
    _, after = submit(engine, "next")
    engine.model.go.set()
    assert results(after, 1)[0].text == "next"
    assert events.empty()
    assert engine.in_flight == 0


def test_stopping_the_engine_ends_pending_requests_with_an_event(engine):
    _, events = submit(engine, "slow")
    assert engine.model.begun.wait(PATIENCE)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    wait_until(lambda: not engine._inbox.empty())
    engine.model.go.set()
    assert isinstance(events.get(timeout=PATIENCE), EngineStopped)
    stopping.join()
    assert not engine.alive


def test_a_failing_engine_ends_every_request_also_those_still_in_its_inbox(monkeypatch):
    """A failure of the engine itself, not of a step of its model."""
    engine, events = EngineThread(Letters(), Limits(max_beam=8)), []
    submit = lambda: engine.submit(Work("someone", texts=[("hello", USUAL)] * 2, emit=events.append))  # noqa: E731
    flushed = []
    engine.flush = lambda: flushed.append(len(events))

    def fails() -> None:
        submit()  # it arrives during a step
        engine.cancel(dropped)
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(engine, "_feed", fails)
    submit()
    dropped = Work("someone", texts=[("hello", USUAL)], emit=events.append)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        engine._run()
    assert [type(event) for event in events] == [EngineStopped] * 2
    submit()  # after its end, by a client that does not know yet
    assert [type(event) for event in events] == [EngineStopped] * 3
    assert flushed[-1] == 3


def test_a_recorded_trace_is_that_of_strict_order(engine):
    """Whichever rows were scored ahead of their turn, and in whichever batch."""
    usual, fewer_calls_untraced = {"beam": 4, "nbest": 3}, {"beam": 4, "length_penalty": 1.0, "stop": "hf-true"}
    for settings in (usual, usual | {"strategy": "beam"}, fewer_calls_untraced):
        _, events = submit(engine, "abcd", "hello", decoding=Decoding(**settings), recorded=True)
        for _ in range(2):
            done = events.get(timeout=PATIENCE)
            text = ("abcd", "hello")[done.index]
            (alone,) = bestfirst.decode(Letters(), [text], **settings, row_budget=1, trace=True)
            assert key_fields(done.trace) == key_fields(alone.trace)
            assert (done.result.text, done.result.calls) == (alone.text, alone.calls)


def test_a_failure_to_record_a_trace_is_an_error_of_the_recorded_texts_alone(engine, monkeypatch):
    def piece(token: int) -> str:
        raise RuntimeError("no such piece")

    monkeypatch.setattr(engine.model, "piece", piece, raising=False)
    _, events = submit(engine, "abcd", "hello", recorded=True)
    assert {result.status for result in results(events, 2).values()} == {"error"}
    monkeypatch.undo()
    _, events = submit(engine, "abcd")
    assert results(events, 1)[0].status == "complete"


def key_fields(trace) -> list[tuple[object, ...]]:
    names = ("event", "parent", "token", "score", "why")
    return [tuple(event.get(name) for name in names) for event in trace.events if event["event"] not in ("result", "text")]


class BatchReader:
    """A reader that tokenises a batch of texts at once, and fails as a whole if "odd" is among them."""

    def __init__(self, one):
        self.one, self.read = one, []

    def batch(self, raws):
        self.read.append([*raws])
        if "odd" in raws:
            raise RuntimeError("a tokenizer failed")
        return [self._attempt(raw) for raw in raws]

    def _attempt(self, raw):
        try:
            return self.one(raw)
        except ValueError as error:
            return error


@pytest.mark.parametrize("second", ["unreadable", "odd"])
def test_texts_of_a_request_are_tokenised_in_one_batch(engine, second):
    reader = BatchReader(engine._read.read)
    engine._read.read_batch = reader.batch
    texts = ["ab", second, "", "ba"]
    done = results(submit(engine, *texts)[1], len(texts))
    assert reader.read == [texts]
    expected = "the input cannot be read; write it otherwise" if second == "unreadable" else None
    assert [done[i].message for i in range(4)] == [None, expected, None, None]
    assert [done[i].text for i in (0, 3)] == ["ab", "ba"]


class FakeDeviceEngine:
    """In place of the engine of a device, whose searches run without pauses: it accepts every job, and wants 16 at a time."""

    pauses, slots, in_flight, wants = False, 2048, (), 16

    def __init__(self):
        self.jobs, self.submits = [], 0

    def submit(self, *jobs):
        self.jobs += jobs
        self.submits += 1


def test_a_device_engine_gets_as_many_jobs_as_it_wants_and_as_fit(model):
    """Wide searches that do not fit do not block the small ones of another client."""
    thread = EngineThread(model, Limits())
    given = thread._engine = FakeDeviceEngine()
    thread._share.rows, thread._share.pauses = 100, False
    wide, narrow = (Decoding(beam=60, strategy=name) for name in ("beam", "best-first"))
    for n in range(3):
        thread._enter(Work(str(n), texts=[("ab", wide)] * 20, emit=print))
    thread._enter(Work("small", texts=[("ba", narrow)] * 30, emit=print))
    thread._feed()
    assert sum(job.decoding is wide for job in given.jobs) == 1  # a second one would need more rows than are left
    assert 0 < sum(job.decoding is narrow for job in given.jobs) <= given.wants
    before = len(given.jobs)
    thread._feed()
    assert before < len(given.jobs) <= before + given.wants


def test_a_device_engine_gets_the_jobs_of_a_turn_in_one_call(model):
    """Blank and unreadable texts get their results immediately, and do not end the turn."""
    thread, events = EngineThread(model, Limits()), []
    given = thread._engine = FakeDeviceEngine()
    thread._share.rows, thread._share.pauses = 100, False
    texts = ["ab", " ", "ba\ud800", *(f"a {n}" for n in range(30))]
    for client in ("one", "two"):
        thread._enter(Work(client, texts=[(text, USUAL) for text in texts], emit=events.append))
    given.wants = 2 * JOBS_PER_TURN
    thread._feed()
    assert given.submits == 2
    assert [job.index for job in given.jobs] == [0, *range(3, JOBS_PER_TURN)] * 2
    assert [(event.index, event.result.status) for event in events] == [(1, "complete"), (2, "error")] * 2
    assert all(thread._work[job].running[job].rows == 1 for job in given.jobs)


def test_garbage_collection_is_rarer_with_a_device_engine_and_unchanged_otherwise(model):
    before = gc.get_threshold()
    try:
        for engine, threshold in ((None, before[0]), (FakeDeviceEngine(), GC_THRESHOLD)):
            thread = EngineThread(model, Limits())
            thread._engine = engine or thread._engine
            thread.start()
            thread.stop()
            assert gc.get_threshold() == (threshold, *before[1:])
            assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
