"""The drop-in's own arguments: score, strategy, dtype, row_budget, trace, stats."""

from __future__ import annotations

import pytest
import torch

import bestfirst
from bestfirst import Stats, Trace
from bestfirst.engine.steps.native.registers import HERE
from bestfirst.scoring import BoundedLengthReward, Diverse, LengthNormalized, LengthReward
from bestfirst.search import best_first_beam
from engine.builders import ARCHITECTURES, EOS
from generate.differences import padded

ARCHITECTURE = ARCHITECTURES["marian"]
INPUTS = ARCHITECTURE.inputs(4, seed=3)


@pytest.fixture
def run(small):
    def run(**asked):
        settings = {"num_beams": 4, "max_new_tokens": 10, "bad_words_ids": None, **asked}
        return small("marian").generate(**padded(ARCHITECTURE, INPUTS), **settings, custom_generate=bestfirst.generate)

    return run


@pytest.mark.parametrize("score", [LengthReward(0.7), BoundedLengthReward(0.5, 1.2), LengthNormalized(0.3), "logprob"])
def test_score_replaces_length_penalty(score, run, small):
    """The same as `decode` with this score."""
    ours = run(score=score, num_return_sequences=2, return_dict_in_generate=True, length_penalty=2.0)
    model = bestfirst.wrap(small("marian"))
    model.banned = ()
    expected = bestfirst.decode(model, INPUTS, beam=4, nbest=2, score=score, max_length=10, accept_truncated=True)
    scores = [answer.score for result in expected for answer in result.hypotheses]
    assert ours.sequences_scores.tolist() == pytest.approx(scores, abs=1e-4)


def test_a_score_may_be_a_name_with_its_parameters(run):
    asked = {"num_return_sequences": 2, "return_dict_in_generate": True}
    named = run(score="length-reward", score_options={"beta": 0.7}, **asked)
    assert torch.equal(named.sequences_scores, run(score=LengthReward(0.7), **asked).sequences_scores)


@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_best_first_and_beam_return_the_same(early_stopping, run):
    stats = {"best-first": Stats(), "beam": Stats()}
    found = [run(strategy=name, early_stopping=early_stopping, stats=stats[name]) for name in stats]
    assert torch.equal(*found)
    assert torch.equal(found[0], run(early_stopping=early_stopping))
    assert stats["best-first"].calls < stats["beam"].calls
    assert (stats["best-first"].search, stats["beam"].search) == ("best-first", "level by level")


def test_a_strategy_may_be_an_object(run):
    assert torch.equal(run(strategy=best_first_beam(4), early_stopping="never"), run(early_stopping="never"))


def test_a_strategy_object_has_its_own_beam_size(run):
    """`num_beams` may be what the model's config says, or transformers' default: the strategy's counts."""
    expected = run(early_stopping="never", num_beams=3)
    assert all(torch.equal(run(strategy=best_first_beam(3), num_beams=k), expected) for k in (1, 3, 4, 5))


def test_under_early_stopping_best_first_equals_beam_with_fewer_calls(run):
    stats = {"best-first": Stats(), "beam": Stats()}
    found = [run(strategy=name, early_stopping=True, stats=stats[name]) for name in stats]
    assert torch.equal(*found)
    assert torch.equal(found[0], run(early_stopping=True))
    assert stats["best-first"].calls < stats["beam"].calls


def test_diverse_groups_replace_group_beam_search(run):
    """With a high penalty each group's best starts with another token."""
    diverse = Diverse(groups=4, penalty=100.0, score=LengthNormalized(1.0))
    ours = run(score=diverse, strategy="beam", num_return_sequences=4).view(4, 4, -1)
    assert all(len({row[1] for row in each}) == 4 for each in ours.tolist())
    with pytest.raises(ValueError, match="diverse groups go level by level"):
        run(score=diverse)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_results_and_calls_do_not_depend_on_the_row_budget(rows, run):
    stats, usual = Stats(), Stats()
    assert torch.equal(run(row_budget=rows, stats=stats), run(stats=usual))
    assert stats.calls == usual.calls
    assert stats.rows >= stats.calls
    assert stats.steps >= stats.rows / rows


def test_stats_report_calls_rows_steps_and_seconds(run):
    stats, total = Stats(), Stats()
    run(stats=stats, num_return_sequences=2)
    run(stats=total, num_return_sequences=2)
    assert len(stats.results) == len(INPUTS)
    assert stats.calls == sum(result.calls for result in stats.results)
    assert all(len(result.hypotheses) == 2 for result in stats.results)
    assert 0 < stats.model_seconds <= stats.seconds
    assert (total.rows, total.steps) == (stats.rows, stats.steps)


def test_stats_add_up_over_calls(run):
    """`search` and `results` are the last call's; the cost of `generate`'s own loop is unknown."""
    stats = Stats()
    run(stats=stats)
    once = stats.calls
    run(stats=stats, strategy="beam")
    last = sum(result.calls for result in stats.results)
    assert (stats.calls, len(stats.results), stats.search) == (once + last, len(INPUTS), "level by level")
    run(stats=stats, do_sample=True)
    assert (stats.calls, stats.results, stats.engine) == (once + last, [], "host+generate")
    assert stats.search == "by generate itself: do_sample=True: it samples"


def test_trace_records_each_inputs_search(run):
    traces = {}
    run(trace=lambda i: traces.setdefault(i, Trace()), num_beams=3)
    assert sorted(traces) == [0, 1, 2, 3]
    assert {event["event"] for event in traces[0].events} >= {"push", "pop", "finish"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"score": "best"}, "unknown score 'best'; choose from logprob"),
        ({"score_options": {"alpha": 0.6}}, "alpha goes with a score; name one with score"),
        ({"score": "gnmt"}, "score 'gnmt' needs alpha"),
        ({"strategy": "worst-first"}, "unknown strategy 'worst-first'; choose from greedy"),
        ({"row_budget": 0}, "row_budget must be at least 1, got 0"),
    ],
)
def test_invalid_values_are_rejected(asked, message, run):
    with pytest.raises(ValueError, match=message):
        run(**asked)


def test_outputs_end_with_eos_or_have_full_length(run):
    for row in run().tolist():
        assert EOS in row or len(row) == 11


@pytest.mark.skipif(HERE.eight is None, reason="this CPU has neither VNNI nor AVX2")
def test_int8_best_first_search_equals_int8_beam_search(run):
    """Its scores are near the float model's, and not equal."""
    asked = {"num_return_sequences": 3, "return_dict_in_generate": True, "early_stopping": "never"}
    ours, beam, own = run(dtype="int8", **asked), run(dtype="int8", strategy="beam", **asked), run(**asked)
    assert torch.equal(ours.sequences, beam.sequences)
    assert torch.equal(ours.sequences_scores, beam.sequences_scores)
    assert 0 < (ours.sequences_scores - own.sequences_scores).abs().max() < 0.1


def test_unsupported_dtypes_are_errors(run, small):
    with pytest.raises(ValueError, match="dtype must be 'int8' or None, got 'fp16': otherwise it is what the model"):
        run(dtype="fp16")
    given = padded(ARCHITECTURES["t5"], ARCHITECTURES["t5"].inputs(2, seed=1))
    with pytest.raises(ValueError, match=r"dtype 'int8' is for models that run compiled .* not for T5ForConditionalGeneration"):
        small("t5").generate(**given, num_beams=2, max_new_tokens=4, custom_generate=bestfirst.generate, dtype="int8")
