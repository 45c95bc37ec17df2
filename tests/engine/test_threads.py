"""Threads share pieces of work; what is found does not depend on how many there are, to the last bit."""

from __future__ import annotations

import threading

import pytest

import bestfirst
from bestfirst.engine import threads

LINES = ["Guten Morgen!", "Wie melkt man eine Kuh?", "Ich habe keine Zeit, aber du hast ein Auto."] * 8


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(threads, "_asked", None)
    monkeypatch.setattr(threads, "_pool", None)


def test_every_piece_is_done_once_whoever_does_it():
    for n in (1, 2, 5):
        threads.use_threads(n)
        for pieces in (0, 1, 3, 40):
            done: list[int] = []
            lock = threading.Lock()

            def work(piece, done=done, lock=lock):
                with lock:
                    done.append(piece)

            threads.share(work, pieces)
            assert sorted(done) == list(range(pieces))


def test_what_fails_in_a_thread_is_raised():
    threads.use_threads(3)

    def work(piece):
        if piece == 7:
            raise KeyError(piece)

    with pytest.raises(KeyError):
        threads.share(work, 20)


def test_cuts_cover_everything_in_pieces_that_are_worth_it():
    threads.use_threads(2)
    assert threads.cuts(100, 6) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert threads.cuts(13, 6) == [(0, 6), (6, 13)]
    assert threads.cuts(5, 6) == [(0, 5)]
    threads.use_threads(1)
    assert threads.cuts(100, 6) == [(0, 100)]


def test_as_many_as_the_environment_says(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.threads() == 3
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        threads.use_threads(0)


@pytest.mark.parametrize("settings", [{"beam": 5, "nbest": 2}, {"beam": 4, "prefix": "I think that"}])
def test_results_are_the_same_to_the_last_bit(settings):
    found = []
    for n in (1, 2, 3):
        threads.use_threads(n)
        found.append(bestfirst.decode(bestfirst.load(), LINES, row_budget=64, **settings))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert [(y.tokens, y.score) for y in one.hypotheses] == [(y.tokens, y.score) for y in other.hypotheses]


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_the_encoders_numbers_are_the_same_to_the_last_bit(dtype):
    """Threads share the inputs, and none of them reads another's tokens."""
    model = bestfirst.load(dtype=dtype)
    inputs = [list(model.read(line).payload.source) for line in LINES]
    found = []
    for n in (1, 2, 3):
        threads.use_threads(n)
        found.append(model.decoder.native.encoder(inputs).tobytes())
    assert found == found[:1] * 3
