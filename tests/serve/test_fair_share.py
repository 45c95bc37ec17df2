"""Fair share: what one request costs the others, counted in forward passes and tokens, independent of the machine's speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import bestfirst
from bestfirst import Decoding
from bestfirst.serve.engine_thread import EngineThread
from bestfirst.serve.fair_share import FairShare, Flow, Use
from bestfirst.serve.schemas import Limits
from bestfirst.serve.work import Done, Work
from serve.test_engine import Letters

USUAL = Decoding(beam=4)
LONG = Decoding(beam=8, nbest=8, score="length-reward", score_options={"beta": 5.0}, max_length=60)


def make_engine(**limits: int) -> EngineThread:
    """With 16 rows in a step, as by default, but fixed: the default grows where timings show that rows cost little."""
    return EngineThread(Letters(), Limits(**limits), Decoding(row_budget=16))


def drive(engine: EngineThread, until: Callable[[], bool]) -> None:
    """Run the loop of the engine's thread in this one."""
    while not until():
        engine._receive()
        engine._step()


def submit(engine: EngineThread, texts: list[str], decoding: Decoding, client: str = "one") -> list[int]:
    """Returns a list that grows with each finished text, by the number of forward passes until then."""
    begun, done = engine.stats.steps, []
    emit = lambda event: done.append(engine.stats.steps - begun) if isinstance(event, Done) else None  # noqa: E731
    engine.submit(Work(client, texts=[(text, decoding) for text in texts], emit=emit))
    return done


def test_a_small_request_is_not_delayed_by_earlier_large_ones():
    alone = make_engine(max_beam=8)
    small = submit(alone, ["hello"], USUAL)
    drive(alone, lambda: bool(small))

    crowded = make_engine(max_beam=8)
    large = [submit(crowded, ["abcdefgh" + "abcdefgh"[i:] for i in range(8)] * 8, LONG) for _ in range(4)]
    drive(crowded, lambda: crowded.stats.steps >= 40)
    taken = []
    for _ in range(10):
        done = submit(crowded, ["hello"], USUAL)
        drive(crowded, lambda done=done: bool(done))
        taken += done
    assert not any(large)  # they take long, and are still running
    assert max(taken) <= 3 * small[0] + 2, (small, taken)


def test_large_requests_finish_while_small_ones_keep_arriving():
    engine = make_engine(max_beam=8)
    large = submit(engine, ["abcdefgh"] * 4, Decoding(beam=8, score="length-reward", score_options={"beta": 5.0}, max_length=12))
    small: list[list[int]] = []
    while len(large) < 4:
        small.append(submit(engine, ["hello"], USUAL))
        drive(engine, lambda: bool(small[-1]))
        assert len(small) < 500


def test_a_lone_request_gets_every_slot():
    engine = make_engine(max_beam=8)
    done = submit(engine, ["hello", "world", "alone", "there"] * 4, USUAL)
    drive(engine, lambda: engine.stats.steps >= 2)
    assert engine.in_flight == 16 == engine._engine.slots
    drive(engine, lambda: len(done) == 16)
    assert engine._share.flows == []


def test_cached_tokens_stay_within_their_limit_and_every_text_finishes():
    """Texts of large requests are evicted for others, start again when there is room, and get the same answers."""
    engine = make_engine(max_beam=8, max_cache_tokens=600)
    decoding = Decoding(beam=8, nbest=3, score="length-reward", score_options={"beta": 5.0}, max_length=12)
    found: dict[tuple[int, int], bestfirst.Result] = {}
    for number in range(3):
        emit = lambda event, number=number: found.update({(number, event.index): event.result})  # noqa: E731
        engine.submit(Work("one", texts=[("abcdefgh", decoding)] * 8, emit=emit))
    most = 0
    evicted: list[object] = []
    evict = engine._evict
    engine._evict = lambda *given: (evicted.append(given), evict(*given))  # type: ignore[method-assign]

    def all_done() -> bool:
        nonlocal most
        most = max(most, sum(flow.tokens for flow in engine._share.flows))
        return len(found) == 24

    drive(engine, all_done)
    (expected,) = bestfirst.decode(Letters(), ["abcdefgh"], decoding)
    assert {result.text for result in found.values()} == {expected.text}
    assert evicted
    assert most <= 600 + engine._engine.slots  # what a pass adds is counted after it


@pytest.mark.parametrize("later", [0, 5, 10, 15, 20, 25, 30])
def test_two_texts_that_need_more_than_half_of_the_cache_each_both_finish(later):
    """However many passes later the second one begins: they do not evict each other for ever."""
    decoding = Decoding(strategy="beam", beam=4, score="length-reward", score_options={"beta": 5.0}, max_length=40)
    (alone,) = bestfirst.decode(Letters(), ["abcdefgh"], decoding)
    engine = make_engine(max_beam=8, max_cache_tokens=alone.rows * 3 // 2)
    first = submit(engine, ["abcdefgh"], decoding)
    drive(engine, lambda: engine.stats.steps >= later)
    second = submit(engine, ["abcdefgh"], decoding, "two")
    drive(engine, lambda: bool(first and second) or engine.stats.steps > 4 * alone.steps)
    assert [len(first), len(second)] == [1, 1]


def test_a_text_beyond_the_limit_on_cached_tokens_gets_an_error():
    engine = make_engine(max_beam=8, max_cache_tokens=100)
    found: list[bestfirst.Result] = []
    engine.submit(Work("one", texts=[("abcdefgh", LONG), ("hello", USUAL)], emit=lambda event: found.append(event.result)))
    drive(engine, lambda: len(found) == 2)
    failed, fine = sorted(found, key=lambda result: result.status == "complete")
    assert fine.text == "hello"
    assert failed.message.startswith("this text needs more than the 100 tokens of memory that the server has; ask for a smaller")


def test_a_text_that_may_need_more_than_the_cache_is_tried():
    """Three times its length for every hypothesis of the beam would be 216 tokens, and it would wait for them for ever."""
    engine = make_engine(max_beam=8, max_cache_tokens=200)
    done = submit(engine, ["abcdefgh"], Decoding(strategy="beam", beam=8, max_length=6))
    turns = iter(range(50))
    drive(engine, lambda: bool(done) or next(turns, None) is None)
    assert len(done) == 1


def test_clients_get_equal_shares_however_many_requests_they_have():
    share: FairShare[Flow] = FairShare(rows=4, tokens=10_000)
    many = [Flow("many") for _ in range(9)]
    one = Flow("one")
    for flow in (*many, one):
        share.enter(flow)
        for _ in range(4):
            job = bestfirst.engine.Job(0, bestfirst.models.Source(None, 1, 1), USUAL)
            share.start(flow, job, Use(1, 10))
    had = dict.fromkeys((*many, one), 0)
    jobs = {job for flow in had for job in flow.running}
    for _ in range(1000):
        assert list(share.allocate(jobs)) == []
        for flow in had:
            had[flow] += sum(not job.paused for job in flow.running)
        share.charge(jobs)
    assert sum(had.values()) == 4000
    assert abs(had[one] - 2000) <= 50
    assert all(abs(had[flow] - 2000 / 9) <= 25 for flow in many)


def test_without_pauses_only_the_order_of_starts_is_decided():
    """No job is paused, no memory is counted; the flow that has had fewer rows starts first, while rows are free."""
    share: FairShare[Flow] = FairShare(rows=6, tokens=10)
    share.pauses = False
    first, second = Flow("first"), Flow("second")

    def start() -> list[Flow]:
        begun = []
        for flow in share.allocate(()):
            assert share.has_room(Use(1, 100))
            job = bestfirst.engine.Job(flow.waiting.popleft(), bestfirst.models.Source(None, 1, 1), USUAL)
            share.start(flow, job, Use(1, 100))
            begun.append(flow)
        return begun

    share.enter(first)
    share.enter(second)
    first.waiting.extend(range(5))
    assert start() == [first] * 5
    share.charge(())
    for flow in (first, second):
        flow.waiting.extend(range(5))
    assert start() == [second]
    share.charge(())
    for job in [*first.running][:4]:
        share.end(first, job)
    assert start() == [second, first, second, second]  # each gets one
    assert (first.rows, second.rows, share.excess()) == (2, 4, None)
    assert not any(job.paused for flow in (first, second) for job in flow.running)


def test_a_wide_search_starts_while_small_ones_keep_arriving():
    """It needs the rows of a level at once, which never become free together unless later requests wait for it."""
    engine = make_engine(max_beam=16)
    small = [submit(engine, ["hello"], USUAL) for _ in range(20)]
    drive(engine, lambda: engine.stats.steps >= 5)
    wide = submit(engine, ["abc"], Decoding(strategy="beam", beam=16))
    while not wide:
        small.append(submit(engine, ["hello"], USUAL))
        drive(engine, lambda done=engine.stats.steps: engine.stats.steps > done)
        assert len(small) < 2000
