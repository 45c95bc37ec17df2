"""The output of `generate`: tensors and fields as Hugging Face has them, and what best-first search puts into beam fields."""

from __future__ import annotations

import random
from math import inf

import pytest
import torch
from transformers import LogitsProcessorList

import bestfirst
from engine.builders import ARCHITECTURES, EOS, PAD, START
from generate.differences import IMPOSSIBLE, NEAR, both, padded


def batch_of(name, n=3, seed=11):
    architecture = ARCHITECTURES[name]
    return padded(architecture, architecture.inputs(n, seed=seed))


@pytest.mark.parametrize("name", ["marian", "t5", "llama"])
@pytest.mark.parametrize("k", [1, 4])
def test_without_return_dict_the_output_is_a_tensor_like_hugging_faces(name, k, small):
    theirs, ours = both(small(name), batch_of(name), lambda: {"num_beams": k, "max_new_tokens": 9})
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["marian", "llama"])
@pytest.mark.parametrize("k", [1, 3])
def test_with_return_dict_the_output_is_of_hugging_faces_class(name, k, small):
    settings = {"num_beams": k, "max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True}
    theirs, ours = both(small(name), batch_of(name), lambda: settings)
    assert type(ours) is type(theirs)
    assert torch.equal(ours.sequences, theirs.sequences)
    if k > 1:
        assert ours.beam_indices.dtype == theirs.beam_indices.dtype
        assert ours.beam_indices.shape == theirs.beam_indices.shape
        assert [step.shape for step in ours.scores] == [step.shape for step in theirs.scores[: len(ours.scores)]]


def test_transition_scores_sum_up_to_the_sequences_scores(small):
    model = small("bart")
    asked = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 9, "length_penalty": 0.6, "output_scores": True}
    ours = model.generate(**batch_of("bart"), **asked, return_dict_in_generate=True, custom_generate=bestfirst.generate)
    steps = model.compute_transition_scores(ours.sequences, ours.scores, ours.beam_indices)
    lengths = (ours.beam_indices >= 0).sum(1)
    assert torch.allclose(steps.sum(1) / lengths**0.6, ours.sequences_scores, atol=1e-5)
    normalized = model.compute_transition_scores(ours.sequences, ours.scores, ours.beam_indices, normalize_logits=True)
    assert torch.isfinite(normalized).all()


def test_scores_hold_the_whole_row_of_every_prefix_of_a_returned_sequence(small):
    """The rest of a beam is -inf: best-first search never scored it, or discarded it."""
    model = small("marian")
    batch = batch_of("marian", 2)
    asked = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 9, "output_scores": True, "bad_words_ids": None}
    ours = model.generate(**batch, **asked, return_dict_in_generate=True, custom_generate=bestfirst.generate)
    for row, indices in enumerate(ours.beam_indices.tolist()):
        for t, index in enumerate(indices):
            if index < 0:
                continue
            assert index // 4 == row // 2
            prefix = ours.sequences[row : row + 1, : 1 + t]
            source = {name: tensor[row // 2 : row // 2 + 1] for name, tensor in batch.items()}
            logits = model(**source, decoder_input_ids=prefix).logits[0, -1]
            assert torch.allclose(ours.scores[t][index], logits.log_softmax(-1), atol=1e-4)
        used = {ours.beam_indices[r, 0].item() for r in range(len(ours.sequences))}
    unused = sorted(set(range(8)) - used)
    assert torch.isneginf(ours.scores[0][unused]).all()


def test_after_an_output_has_ended_its_scores_are_finite_where_whisper_reads_them(small):
    """For `logprob_threshold` Whisper takes the row at beam index -1, normalizes it, and multiplies by 0: NaN stays NaN."""
    asked = {"num_beams": 4, "max_new_tokens": 9, "bad_words_ids": None, "return_dict_in_generate": True, "output_scores": True}
    ours = small("marian").generate(**batch_of("marian", 5), **asked, custom_generate=bestfirst.generate)
    ended = (ours.beam_indices < 0).any(0)
    assert ended.any()
    for step in (step for step, over in zip(ours.scores, ended, strict=True) if over):
        assert torch.isfinite(step[-1].log_softmax(-1)).all()


@pytest.mark.parametrize(
    "processor", [{"bad_words_ids": None}, {"forced_bos_token_id": 9, "bad_words_ids": None}, {"repetition_penalty": 1.3}]
)
@pytest.mark.parametrize("name", ["marian", "mbart", "t5"])
def test_greedy_scores_equal_hugging_faces_and_are_zero_beyond_the_end(name, processor, small):
    asked = {"num_beams": 1, "max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True, **processor}
    theirs, ours = both(small(name), batch_of(name, 5), lambda: asked)
    assert len(theirs.scores) == len(ours.scores)
    ends = [(row[1:] == EOS).nonzero()[0].item() if EOS in row[1:] else len(ours.scores) for row in ours.sequences]
    assert len(set(ends)) > 1 or "forced_bos_token_id" in processor
    for t, (want, got) in enumerate(zip(theirs.scores, ours.scores, strict=True)):
        for row, end in enumerate(ends):
            if t <= end:
                assert torch.allclose(want[row], got[row], atol=1e-4)
            else:
                assert not got[row].any()


def test_sequences_scores_do_not_need_output_scores(small):
    ours = small("marian").generate(
        **batch_of("marian"), num_beams=3, max_new_tokens=8, return_dict_in_generate=True, custom_generate=bestfirst.generate
    )
    assert ours.scores is None
    assert (ours.sequences_scores < 0).all()


# -- fewer answers than asked for ------------------------------------------------------------------------------------------


def allow_only(*outputs):
    """A constraint to these outputs: after each prefix, the tokens that lead to one."""

    def allowed(i, ids):
        prefix = tuple(ids.tolist()[1:])
        return sorted(
            {output[len(prefix)] for output in outputs if output[: len(prefix)] == prefix and len(output) > len(prefix)}
        ) or [EOS]

    return allowed


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_constraints_with_fewer_continuations_than_beams_give_each_output_once(early_stopping, small):
    """Hugging Face fills its beams with copies that score -1e9; here missing outputs are padding that scores -inf."""
    outputs = {(5, 6, EOS), (5, 9, 12, EOS), (8, EOS)}
    asked = {
        "num_beams": 5,
        "num_return_sequences": 5,
        "max_new_tokens": 8,
        "early_stopping": early_stopping,
        "output_scores": True,
    }
    ours = small("marian").generate(
        **batch_of("marian", 2),
        **asked,
        prefix_allowed_tokens_fn=allow_only(*outputs),
        return_dict_in_generate=True,
        custom_generate=bestfirst.generate,
    )
    for i in range(2):
        rows, scores = ours.sequences[5 * i : 5 * i + 5, 1:].tolist(), ours.sequences_scores[5 * i : 5 * i + 5].tolist()
        found = [tuple(row[: row.index(EOS) + 1]) for row, score in zip(rows, scores, strict=True) if score > -inf]
        assert sorted(found) == sorted(outputs)
        assert scores[3:] == [-inf, -inf]
        assert min(scores[:3]) > -100
        assert (ours.beam_indices[5 * i + 3 : 5 * i + 5] == -1).all()
        assert all(token == EOS for row in rows[3:] for token in row)  # Hugging Face's padding where the padding token is 0


@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_under_a_tight_constraint_hugging_faces_real_outputs_are_returned(early_stopping, small, cases, tally):
    """Random lists of allowed outputs, often fewer than beams: Hugging Face's real outputs are the same, in order."""
    model, hypotheses, differences = small("marian"), 0, []
    for case in cases(15, full=150):
        rng = random.Random(case)
        outputs = {(*(rng.choice((5, 6, 9, 12)) for _ in range(rng.randint(1, 5))), EOS) for _ in range(rng.randint(1, 9))}
        asked = {
            "num_beams": 4,
            "num_return_sequences": 4,
            "max_new_tokens": 8,
            "length_penalty": rng.choice((0.0, 1.0)),
            "early_stopping": early_stopping,
            "prefix_allowed_tokens_fn": allow_only(*outputs),
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        theirs, ours = both(model, batch_of("marian", 2, seed=case), lambda asked=asked: asked)
        rows = range(len(theirs.sequences))
        real = [row for row in rows if theirs.sequences_scores[row] > IMPOSSIBLE]
        hypotheses += len(real)
        for row in real:
            if abs(theirs.sequences_scores[row] - ours.sequences_scores[row]) > NEAR:
                differences.append((case, row, theirs.sequences[row].tolist(), ours.sequences[row].tolist()))
        found = [(row // 4, tuple(ours.sequences[row].tolist())) for row in rows if ours.sequences_scores[row] > -inf]
        assert len(set(found)) == len(found)
        assert not ((ours.sequences_scores < IMPOSSIBLE) & (ours.sequences_scores > -inf)).any()
    tally("generate = Hugging Face under tight constraints, hypotheses", hypotheses, len(differences))
    assert differences == []


@pytest.mark.parametrize("k", [1, 3])
def test_prefix_allowed_tokens_fn_is_called_once_for_each_hypothesis(small, k):
    asked = []

    def allowed(i, ids):
        asked.append(tuple(ids.tolist()))
        return [*range(1, 40)]

    small("marian").generate(
        **batch_of("marian", 1),
        num_beams=k,
        max_new_tokens=6,
        prefix_allowed_tokens_fn=allowed,
        custom_generate=bestfirst.generate,
    )
    assert len(set(asked)) == len(asked) > 0


def test_a_constraint_that_allows_nothing_is_an_error(small):
    with pytest.raises(ValueError, match=r"prefix_allowed_tokens_fn allows nothing after \[2, \d+\] of input 0"):
        small("marian").generate(
            **batch_of("marian", 1),
            num_beams=2,
            max_new_tokens=5,
            prefix_allowed_tokens_fn=lambda i, ids: [4, 5] if len(ids) == 1 else [],
            custom_generate=bestfirst.generate,
        )


def test_a_constraint_gets_the_index_of_its_input(small):
    """Batched, in any order of scoring, the function gets the index of the input that the prefix belongs to."""
    asked_with = set()

    def allowed(i, ids):
        asked_with.add((i, tuple(ids.tolist())))
        return [4 + i, EOS]

    ours = small("marian").generate(
        **batch_of("marian", 4),
        num_beams=2,
        max_new_tokens=6,
        prefix_allowed_tokens_fn=allowed,
        custom_generate=bestfirst.generate,
    )
    for i, row in enumerate(ours.tolist()):
        assert set(row) <= {START, 4 + i, EOS, PAD}
    assert all(set(ids) <= {START, 4 + i} for i, ids in asked_with)


# -- other settings --------------------------------------------------------------------------------------------------------


def test_a_custom_processor_runs_level_by_level_unless_best_first_is_requested(small):
    model, batch, stats = small("marian"), batch_of("marian"), bestfirst.Stats()
    asked = {"num_beams": 3, "max_new_tokens": 9, "custom_generate": bestfirst.generate, "stats": stats}
    model.generate(**batch, **asked, logits_processor=LogitsProcessorList([lambda ids, scores: scores - 0.1]))
    assert stats.search == "level by level"
    model.generate(
        **batch, **asked, logits_processor=LogitsProcessorList([lambda ids, scores: scores - 0.1]), strategy="best-first"
    )
    assert stats.search == "best-first"
    with pytest.raises(ValueError, match=r"'best-first' relies on bounds, which a processor .* use strategy='beam'"):
        model.generate(
            **batch, **asked, logits_processor=LogitsProcessorList([lambda ids, scores: scores + 5.0]), strategy="best-first"
        )


def test_max_length_is_limited_by_the_models_positions(small):
    model = small("bart")
    ours = model.generate(
        **batch_of("bart"), num_beams=2, max_length=500, suppress_tokens=[EOS], custom_generate=bestfirst.generate
    )
    assert ours.shape[1] == model.config.max_position_embeddings + 1  # the last token needs no position
