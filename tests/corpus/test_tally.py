"""Reported savings are real: beam search makes at least `beam_calls` calls, however well it is stopped."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import bestfirst
from bestfirst import Decoding
from bestfirst.corpus import Checkpoint, Input, Tally, Target, Worker
from bestfirst.corpus.worker import beam_calls, compared_beam
from cli.process import GERMAN
from corpus.models import Upper


@pytest.mark.parametrize(
    ("k", "settings"), [(3, {}), (8, {"nbest": 4}), (5, {"score": "length-normalized", "score_options": {"alpha": 1.0}})]
)
def test_beam_calls_is_a_lower_bound_on_beam_searchs_calls(k: int, settings: dict):
    model = bestfirst.load()
    lines = GERMAN.read_text(encoding="utf-8").splitlines()[:12]
    best_first = bestfirst.decode(model, lines, beam=k, **settings)
    beam = bestfirst.decode(model, lines, beam=k, strategy="beam", **({} if settings else {"stop": "huang"}), **settings)
    for ours, theirs in zip(best_first, beam, strict=True):
        assert beam_calls(ours, k) <= theirs.calls
        assert ours.calls <= theirs.calls


def test_memory_does_not_grow_with_the_input(tmp_path):
    """`docs/corpus.md` has the figures of the real command."""
    import tracemalloc

    peaks = []
    for lines in (600, 6000):
        (tmp_path / f"{lines}").write_bytes(b"a\n" * lines)
        source = Input(str(tmp_path / f"{lines}"))
        worker = Worker(Upper(), Decoding(beam=1))
        with Checkpoint(str(tmp_path / f"{lines}.out"), {}, Target()) as checkpoint:
            tracemalloc.start()
            checkpoint.state()
            checkpoint.begin(None)
            checkpoint.run(source, source.survey(), lambda shards, worker=worker: map(worker.decode_shard, shards), 100)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] <= 1.2 * peaks[0]


def test_lines_without_finished_outputs_count_the_same_for_both_searches():
    """Nothing is reported as saved or wasted on them."""
    model = bestfirst.load()
    results = bestfirst.decode(model, ["Guten Morgen!", "Ich habe heute leider keine Zeit."], beam=4, max_length=3)
    assert {result.status for result in results} == {"incomplete"}
    theirs = bestfirst.decode(
        model, ["Guten Morgen!", "Ich habe heute leider keine Zeit."], beam=4, max_length=3, strategy="beam"
    )
    tally = Tally()
    for result, other in zip(results, theirs, strict=True):
        tally.add([result], 4)
        assert 0 < beam_calls(result, 4) <= other.calls
    assert tally.saved == 0
    assert tally.calls == tally.beam_calls > 0


def test_counts_above_the_maximum_are_rejected():
    numbers = {**asdict(Tally()), "calls": 10**400}
    with pytest.raises(ValueError, match="a count is not a number from 0 up"):
        Tally.load(numbers)


def test_no_savings_are_computed_under_constraints_that_may_leave_beams_unfilled():
    """A trie may allow fewer hypotheses than fill a beam."""
    model = bestfirst.load()
    decoding = bestfirst.Decoding(allowed=bestfirst.Trie.of_texts(model, ["Good morning!"]))
    assert [*map(compared_beam, (bestfirst.Decoding(), decoding))] == [5, 0]
