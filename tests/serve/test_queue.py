"""The request queue without an engine: what is told in steps, by hand, and who hears of it when."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from bestfirst import Decoding, Result, Stats
from bestfirst.search import Answer
from bestfirst.serve.app import stream_lines
from bestfirst.serve.exchange import EventStream
from bestfirst.serve.metrics import Metrics
from bestfirst.serve.request_queue import RequestQueue
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Certified, Done, EngineStopped, Work
from serve.served import in_a_loop

USUAL = Decoding(beam=4)
BY_LEVEL = Decoding(beam=4, strategy="beam")


class ByHand:
    """In place of the engine's thread."""

    alive, in_flight, stats = True, 0, Stats()

    def __init__(self) -> None:
        self.cancelled: list[Work] = []

    def start(self) -> None:
        pass

    def submit(self, work: Work) -> None:
        pass

    def cancel(self, work: Work) -> None:
        self.cancelled.append(work)

    async def step(self, *told: tuple[Any, Any]) -> None:
        """Tell these events, and let whoever waits for them go on."""
        for submission, event in told:
            submission.work.emit(event)
        self.flush()
        for _ in range(5):
            await asyncio.sleep(0)


def queue_by_hand() -> tuple[RequestQueue, ByHand, list[list[int]]]:
    """And what `on_results` was told: the calls of each result, a list for each time."""
    engine, counted = ByHand(), []
    queue = RequestQueue(engine, Limits())
    queue.on_results = lambda done: counted.append([result.calls for result, _ in done])
    queue.open()
    return queue, engine, counted


def done(index: int, calls: int = 0) -> Done:
    return Done(index, Result(status="complete", calls=calls))


def test_a_step_is_counted_once_and_results_come_in_order_when_all_are_there():
    async def scenario() -> None:
        queue, engine, counted = queue_by_hand()
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

    in_a_loop(scenario())


def test_what_is_made_of_a_text_is_made_when_it_is_done_and_comes_in_order():
    async def scenario() -> None:
        queue, engine, _ = queue_by_hand()
        made: list[int] = []
        submission = queue.submit([("a", USUAL)] * 3, client="one", write=lambda result: made.append(result.calls) or str(made))
        waiting = asyncio.ensure_future(submission.results(asyncio.Event().wait()))
        await engine.step((submission, done(2, 1)), (submission, done(0, 2)))
        assert made == [1, 2]
        assert not waiting.done()
        await engine.step((submission, done(1, 3)))
        assert waiting.result() == ["[1, 2]", "[1, 2, 3]", "[1]"]

    in_a_loop(scenario())


def test_what_cannot_be_written_ends_its_own_request_alone():
    async def scenario() -> None:
        queue, engine, counted = queue_by_hand()
        both = [queue.submit([("a", USUAL)], client="one", write=write) for write in (lambda result: 1 / 0, lambda result: b"b")]
        waiting = [asyncio.ensure_future(each.results(asyncio.Event().wait())) for each in both]
        await engine.step(*((each, done(0)) for each in both))
        with pytest.raises(ZeroDivisionError):
            waiting[0].result()
        assert (waiting[1].result(), queue.queued, counted) == ([b"b"], 0, [[0]])

    in_a_loop(scenario())


def test_a_request_that_is_over_leaves_nothing_to_the_garbage_collector():
    async def scenario() -> ref[Work]:
        queue, engine, _ = queue_by_hand()
        submission = queue.submit([("a", USUAL)], client="one")
        waiting = asyncio.ensure_future(submission.results(asyncio.Event().wait()))
        await engine.step((submission, done(0)))
        assert len(waiting.result()) == 1
        return ref(submission.work)

    gc.collect()
    gc.disable()
    try:
        assert in_a_loop(scenario())() is None
    finally:
        gc.enable()


def test_an_engine_that_stops_in_the_middle_of_a_step_ends_what_is_not_done():
    async def scenario() -> None:
        queue, engine, counted = queue_by_hand()
        over, cut, stream = (queue.submit([("a", USUAL)] * 2, client="one", stream=i == 2) for i in range(3))
        waiting = [asyncio.ensure_future(each.results(asyncio.Event().wait())) for each in (over, cut)]
        stopped, answer = EngineStopped("the server is stopping"), Answer((1,), -1.0, -1.0)
        ends = [(each, stopped) for each in (cut, stream)]
        await engine.step((over, done(1, 1)), (over, done(0, 2)), (cut, done(0, 3)), (stream, Certified(0, 1, answer)), *ends)
        assert [event.index for event in waiting[0].result()] == [0, 1]
        with pytest.raises(EngineStopped):
            waiting[1].result()
        heard = stream.events()
        assert await anext(heard) == (0, 1, answer)
        with pytest.raises(EngineStopped):
            await anext(heard)
        assert (queue.queued, counted, engine.cancelled) == (0, [[1, 2, 3]], [cut.work, stream.work])

    in_a_loop(scenario())


def test_what_is_told_of_a_request_that_was_given_up_is_not_counted():
    async def scenario() -> None:
        queue, engine, counted = queue_by_hand()
        gone, here = (queue.submit([("a", USUAL)] * 2, client="one") for _ in range(2))
        gone.close()
        await engine.step((gone, done(0, 1)), (here, done(0, 2)))
        await engine.step((gone, done(1, 3)))
        assert (queue.queued, counted) == (1, [[2]])

    in_a_loop(scenario())


def test_a_stream_hears_every_step_as_it_comes():
    async def scenario() -> None:
        queue, engine, _ = queue_by_hand()
        stream = queue.submit([("a", USUAL)] * 2, client="one", stream=True)
        heard = []

        async def listen() -> None:
            async for event in stream.events():
                heard.append(event.index)

        listening = asyncio.ensure_future(listen())
        for index in (1, 0):
            await engine.step((stream, Certified(index, 1, Answer((1,), -1.0, -1.0))))
            await engine.step((stream, done(index)))
            assert heard == [1, 1, 0, 0][: 2 if index else 4]
        assert listening.done()

    in_a_loop(scenario())


@pytest.mark.parametrize("after", ["http.response.start", "http.response.body", None])
def test_a_stream_whose_client_leaves_at_any_time_is_given_up(after):
    """Also while its head is being sent (None): then nobody has asked for its first line."""

    async def scenario() -> None:
        queue, engine, _ = queue_by_hand()
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

    in_a_loop(scenario())


def test_metrics_of_a_step_are_those_of_its_texts():
    metrics = Metrics(RequestQueue(ByHand(), Limits()), frozenset())
    found = [Answer((1, 2, 3), -1.0, -1.0)]  # beam search scores 1 + 4 * 2 hypotheses for it
    results = [Result(found, calls=calls, status="complete") for calls in (5, 20)]
    metrics.count_results([*((each, USUAL) for each in results), (results[0], BY_LEVEL), (Result(calls=1), USUAL)])
    told = {name: metrics.registry.get_sample_value(f"bestfirst_{name}_total") for name in ("calls", "calls_saved")}
    ended = [metrics.registry.get_sample_value("bestfirst_texts_total", {"status": each}) for each in ("complete", "error")]
    assert (told, ended) == ({"calls": 31, "calls_saved": 4}, [3, 1])
