"""`decode_iter`: results in the order in which they finish, in bounded memory, none lost when an input fails."""

from __future__ import annotations

import subprocess
import sys
from itertools import count, islice

import pytest

import bestfirst
from bestfirst import Decoding, Stats
from scale import FULL
from toys import random_toy

TOY = bestfirst.FunctionModel(random_toy("peaked", 6, "iter"), eos=0)
MEMORY = """
import resource, sys, bestfirst
model = bestfirst.FunctionModel(lambda prefix: [-1.0, -0.5, -2.0] if len(prefix) < 3 else [-0.1, -3.0, -4.0], eos=0)
inputs = (None for _ in range(int(sys.argv[1])))
assert sum(1 for _ in bestfirst.decode_iter(model, inputs, beam=2)) == int(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def consume(results, done):
    for index, result in results:
        assert result.status == "complete"
        done.append(index)


def failing_inputs():
    yield from [None] * 7
    raise OSError("the disk is gone")


def test_decode_equals_the_list_of_decode_iter():
    stats, total = Stats(), Stats()
    found = dict(bestfirst.decode_iter(TOY, [None] * 9, beam=3, nbest=2, stats=stats))
    assert [found[i] for i in range(9)] == bestfirst.decode(TOY, [None] * 9, Decoding(beam=3, nbest=2), stats=total)
    assert (stats.calls, stats.rows) == (total.calls, total.rows)


def test_stats_are_filled_when_iteration_ends_early():
    stats = Stats()
    for _ in bestfirst.decode_iter(TOY, [None] * 50, beam=2, stats=stats):
        break
    assert stats.calls > 0
    left = stats.calls
    with pytest.raises(OSError, match="the disk is gone"):
        consume(bestfirst.decode_iter(TOY, failing_inputs(), beam=2, stats=stats), [])
    assert stats.calls > left


def test_inputs_are_read_lazily():
    read = count()
    results = bestfirst.decode_iter(TOY, (next(read) and None for _ in iter(int, 1)), beam=2, row_budget=16)
    assert len(list(islice(results, 5))) == 5
    assert next(read) < 2000


def test_inputs_already_read_are_decoded_before_an_exception_of_the_input_iterator_propagates():
    done = []
    with pytest.raises(OSError, match="the disk is gone"):
        consume(bestfirst.decode_iter(TOY, failing_inputs(), beam=2), done)
    assert sorted(done) == list(range(7))


def test_finished_results_are_yielded_before_an_exception_of_the_model_propagates():
    asked = count()

    def scores(prefix):
        if next(asked) == 400:
            raise RuntimeError("lost")
        return random_toy("peaked", 6, "iter")(prefix)

    done, settings = [], {"beam": 1, "errors": "raise", "row_budget": 16}
    with pytest.raises(RuntimeError, match="lost"):
        consume(bestfirst.decode_iter(bestfirst.FunctionModel(scores, eos=0), [None] * 200, **settings), done)
    assert done


def test_unreadable_inputs_yield_error_results():
    model = bestfirst.wrap(bestfirst.load().model)  # no tokenizer: it reads token ids
    inputs = ["text", [5, 6, 0], {"a": 1}, [7, 0]]
    found = dict(bestfirst.decode_iter(model, inputs, beam=2, max_length=5))
    assert [found[i].status == "error" for i in range(4)] == [True, False, True, False]


@pytest.mark.parametrize("wrong", ["text", {"input_ids": [[1]]}])
def test_a_single_input_instead_of_a_list_is_refused(wrong):
    with pytest.raises(ValueError, match="inputs must be a list of inputs"):
        bestfirst.decode_iter(TOY, wrong)


def test_settings_given_twice_and_stats_of_a_wrong_type_are_refused():
    with pytest.raises(TypeError, match="settings are given twice"):
        bestfirst.decode_iter(TOY, [None], Decoding(), beam=3)
    with pytest.raises(TypeError, match=r"stats must be a bestfirst\.Stats, got dict"):
        bestfirst.decode(TOY, [None], stats={})


@pytest.mark.skipif(sys.platform == "win32", reason="resource is not there")
def test_memory_does_not_grow_with_the_number_of_inputs():
    """Within 50 MB: 10,000 against a million inputs at full scale; 2,000 against 100,000 in a normal run."""
    few, many = (10_000, 1_000_000) if FULL else (2_000, 100_000)
    peaks = [
        int(subprocess.run([sys.executable, "-c", MEMORY, str(n)], check=True, capture_output=True, text=True).stdout)
        for n in (few, many)
    ]
    assert peaks[1] - peaks[0] < (50 << 10 if sys.platform != "darwin" else 50 << 20)
