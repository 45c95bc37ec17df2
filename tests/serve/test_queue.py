"""The request queue on a fake engine, whose events the tests emit step by step."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from bestfirst import Decoding, Result, Stats, Trie
from bestfirst.search import Answer
from bestfirst.serve.app import stream_lines
from bestfirst.serve.exchange import EventStream
from bestfirst.serve.metrics import Metrics
from bestfirst.serve.request_queue import RequestQueue
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Certified, Done, EngineStopped, Work
from serve.served import run_async

USUAL = Decoding(beam=4)
BY_LEVEL = Decoding(beam=4, strategy="beam")


class FakeEngine:
    """In place of the engine's thread: its events are emitted by `step`."""

    alive, in_flight, stats = True, 0, Stats()

    def __init__(self) -> None:
        self.cancelled: list[Work] = []

    def start(self) -> None:
        pass

    def submit(self, work: Work) -> None:
        pass

    def cancel(self, work: Work) -> None:
        self.cancelled.append(work)

    async def step(self, *events: tuple[Any, Any]) -> None:
        """Emit these events, and let the tasks that wait for them run."""
        for submission, event in events:
            submission.work.emit(event)
        self.flush()
        for _ in range(5):
            await asyncio.sleep(0)


def make_queue() -> tuple[RequestQueue, FakeEngine, list[list[int]]]:
    """A queue, its engine, and what `on_results` gets: for each time the calls of the results."""
    engine, counted = FakeEngine(), []
    queue = RequestQueue(engine, Limits())
    queue.on_results = lambda done: counted.append([result.calls for result, _ in done])
    queue.open()
    return queue, engine, counted


def done(index: int, calls: int = 0) -> Done:
    return Done(index, Result(status="complete", calls=calls))


def test_results_are_counted_once_per_step_and_returned_in_order_when_complete():
    async def scenario() -> None:
        queue, engine, counted = make_queue()
        one, two = (queue.submit([("a", USUAL)] * 3, client="one") for _ in range(2))
        waiting = [asyncio.ensure_future(each.results(asyncio.Event().wait())) for each in (one, two)]
        await engine.step((one, done(2, 1)), (two, done(1, 2)), (one, done(0, 3)))
        assert (queue.queued, queue.queued_by_large, counted) == (3, 3, [[1, 3, 2]])
        assert not waiting[0].done()
        await engine.step((one, done(1, 4)))
        assert [event.index for event in waiting[0].result()] == [0, 1, 2]
        assert not waiting[1].done()
        await engine.step((two, done(2, 5)), (two, done(0, 6)))
        assert [event.result.calls for event in waiting[1].result()] == [6, 2, 5]
        assert (queue.queued, queue.queued_by_large, counted[1:]) == (0, 0, [[4], [5, 6]])
        assert not engine.cancelled

    run_async(scenario())


def test_results_are_written_when_each_text_is_done_and_returned_in_order():
    async def scenario() -> None:
        queue, engine, _ = make_queue()
        made: list[int] = []
        submission = queue.submit([("a", USUAL)] * 3, client="one", write=lambda result: made.append(result.calls) or str(made))
        waiting = asyncio.ensure_future(submission.results(asyncio.Event().wait()))
        await engine.step((submission, done(2, 1)), (submission, done(0, 2)))
        assert made == [1, 2]
        assert not waiting.done()
        await engine.step((submission, done(1, 3)))
        assert waiting.result() == ["[1, 2]", "[1, 2, 3]", "[1]"]

    run_async(scenario())


def test_a_result_that_cannot_be_written_fails_its_own_request_alone():
    async def scenario() -> None:
        queue, engine, counted = make_queue()
        both = [queue.submit([("a", USUAL)], client="one", write=write) for write in (lambda result: 1 / 0, lambda result: b"b")]
        waiting = [asyncio.ensure_future(each.results(asyncio.Event().wait())) for each in both]
        await engine.step(*((each, done(0)) for each in both))
        with pytest.raises(ZeroDivisionError):
            waiting[0].result()
        assert (waiting[1].result(), queue.queued, counted) == ([b"b"], 0, [[0]])

    run_async(scenario())


def test_a_finished_request_leaves_no_reference_cycle():
    async def scenario() -> ref[Work]:
        queue, engine, _ = make_queue()
        submission = queue.submit([("a", USUAL)], client="one")
        waiting = asyncio.ensure_future(submission.results(asyncio.Event().wait()))
        await engine.step((submission, done(0)))
        assert len(waiting.result()) == 1
        return ref(submission.work)

    gc.collect()
    gc.disable()
    try:
        assert run_async(scenario())() is None
    finally:
        gc.enable()


def test_an_engine_that_stops_within_a_step_fails_the_unfinished_requests():
    async def scenario() -> None:
        queue, engine, counted = make_queue()
        whole, cut, stream = (queue.submit([("a", USUAL)] * 2, client="one", stream=i == 2) for i in range(3))
        waiting = [asyncio.ensure_future(each.results(asyncio.Event().wait())) for each in (whole, cut)]
        stopped, answer = EngineStopped("the server is stopping"), Answer((1,), -1.0, -1.0)
        ends = [(each, stopped) for each in (cut, stream)]
        await engine.step((whole, done(1, 1)), (whole, done(0, 2)), (cut, done(0, 3)), (stream, Certified(0, 1, answer)), *ends)
        assert [event.index for event in waiting[0].result()] == [0, 1]
        with pytest.raises(EngineStopped):
            waiting[1].result()
        received = stream.events()
        assert await anext(received) == (0, 1, answer)
        with pytest.raises(EngineStopped):
            await anext(received)
        assert (queue.queued, counted, engine.cancelled) == (0, [[1, 2, 3]], [cut.work, stream.work])

    run_async(scenario())


def test_events_of_a_closed_request_are_not_counted():
    async def scenario() -> None:
        queue, engine, counted = make_queue()
        closed, open_one = (queue.submit([("a", USUAL)] * 2, client="one") for _ in range(2))
        closed.close()
        await engine.step((closed, done(0, 1)), (open_one, done(0, 2)))
        await engine.step((closed, done(1, 3)))
        assert (queue.queued, counted) == (1, [[2]])

    run_async(scenario())


def test_a_stream_gets_the_events_of_each_step_as_they_are_emitted():
    async def scenario() -> None:
        queue, engine, _ = make_queue()
        stream = queue.submit([("a", USUAL)] * 2, client="one", stream=True)
        received = []

        async def listen() -> None:
            async for event in stream.events():
                received.append(event.index)

        listening = asyncio.ensure_future(listen())
        for index in (1, 0):
            await engine.step((stream, Certified(index, 1, Answer((1,), -1.0, -1.0))))
            await engine.step((stream, done(index)))
            assert received == [1, 1, 0, 0][: 2 if index else 4]
        assert listening.done()

    run_async(scenario())


@pytest.mark.parametrize("after", ["http.response.start", "http.response.body", None])
def test_a_stream_is_cancelled_whenever_its_client_disconnects(after):
    """Also while its head is being sent (None): then its first line has not been requested yet."""

    async def scenario() -> None:
        queue, engine, _ = make_queue()
        stream = queue.submit([("a", USUAL)] * 2, client="one", stream=True)
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == after or after is None:
                left.set()
            if after is None:
                await asyncio.sleep(60)

        response = EventStream(stream, stream_lines(stream), "application/x-ndjson")
        answering = asyncio.ensure_future(response({"type": "http"}, receive, send))
        await asyncio.sleep(0)
        await engine.step((stream, done(0)))
        await asyncio.wait_for(answering, 60)
        assert (queue.queued, engine.cancelled) == (0, [stream.work])

    run_async(scenario())


def test_metrics_of_a_step_are_the_sums_over_its_texts():
    metrics = Metrics(RequestQueue(FakeEngine(), Limits()), frozenset())
    found = [Answer((1, 2, 3), -1.0, -1.0)]  # beam search scores 1 + 4 * 2 hypotheses for it
    results = [Result(found, calls=calls, status="complete") for calls in (5, 20)]
    metrics.count_results([*((each, USUAL) for each in results), (results[0], BY_LEVEL), (Result(calls=1), USUAL)])
    totals = {name: metrics.registry.get_sample_value(f"bestfirst_{name}_total") for name in ("calls", "calls_saved")}
    ended = [metrics.registry.get_sample_value("bestfirst_texts_total", {"status": each}) for each in ("complete", "error")]
    assert (totals, ended) == ({"calls": 31, "calls_saved": 4}, [3, 1])
    metrics.count_results([(results[0], USUAL.using(allowed=Trie([[1, 2]])))])  # its beams may not be full
    assert metrics.registry.get_sample_value("bestfirst_calls_saved_total") == 4
