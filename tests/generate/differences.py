"""`generate` with and without `custom_generate=bestfirst.generate`, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationMixin

import bestfirst
from engine.builders import PAD, Architecture

NEAR = 1e-4  # scores that differ by less may come in another order
IMPOSSIBLE = -1e8  # Hugging Face fills its beams with hypotheses that score below this


@dataclass
class Comparison:
    """How much was compared, and the differences found."""

    hypotheses: int = 0
    near_ties: int = 0
    differences: list[str] = field(default_factory=list)


def padded(architecture: Architecture, inputs: list[Any]) -> dict[str, torch.Tensor]:
    """A batch as a tokenizer makes it: padded on the right for an encoder, on the left for a decoder-only model."""
    if architecture.speech:
        return {"inputs": torch.stack(inputs)}
    longest = max(map(len, inputs))
    gaps = [[PAD] * (longest - len(ids)) for ids in inputs]
    if architecture.decoder_only:
        rows, mask = [gap + ids for gap, ids in zip(gaps, inputs, strict=True)], [[0] * len(gap) for gap in gaps]
        mask = [zeros + [1] * (longest - len(zeros)) for zeros in mask]
    else:
        rows = [ids + gap for gap, ids in zip(gaps, inputs, strict=True)]
        mask = [[1] * len(ids) + [0] * len(gap) for gap, ids in zip(gaps, inputs, strict=True)]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def both(model: Any, batch: dict[str, torch.Tensor], make: Any, **own: Any) -> tuple[Any, Any]:
    """Hugging Face's output and ours. `make()` returns new settings for each call: some processors keep state.

    Whisper's own `generate` is tested elsewhere; here it is called like any other model.
    """
    theirs = GenerationMixin.generate(model, **batch, **make())
    ours = GenerationMixin.generate(model, **batch, **make(), custom_generate=bestfirst.generate, **own)
    return theirs, ours


def compare(model: Any, theirs: Any, ours: Any, n: int) -> Comparison:
    """Outputs of `return_dict_in_generate=True, output_scores=True`, beam search or greedy."""
    found = Comparison(hypotheses=len(theirs.sequences))
    if not hasattr(theirs, "sequences_scores"):
        if theirs.sequences.tolist() != ours.sequences.tolist():
            found.differences.append(f"greedy: {theirs.sequences.tolist()} is not {ours.sequences.tolist()}")
        else:
            inside = torch.stack([step.any(1) for step in ours.scores], 1)  # beyond an output's end our scores are 0
            _compare_steps(
                found, *(model.compute_transition_scores(each.sequences, each.scores)[inside] for each in (theirs, ours))
            )
        return found
    prompt = theirs.sequences.shape[1] - theirs.beam_indices.shape[1]
    for row in range(len(theirs.sequences)):
        _compare_row(found, theirs, ours, row, prompt, n)
    if not found.near_ties and not found.differences:
        if theirs.sequences.tolist() != ours.sequences.tolist():
            found.differences.append("padding differs")
        outputs = ((each.sequences, each.scores, each.beam_indices) for each in (theirs, ours))
        _compare_steps(found, *(model.compute_transition_scores(*output) for output in outputs))
    return found


def _compare_steps(found: Comparison, theirs: torch.Tensor, ours: torch.Tensor) -> None:
    if not torch.allclose(theirs, ours, atol=NEAR, rtol=NEAR):
        found.differences.append(f"transition scores differ by {(theirs - ours).abs().max():.2g}")


def _compare_row(found: Comparison, theirs: Any, ours: Any, row: int, prompt: int, n: int) -> None:
    want, got = (float(output.sequences_scores[row]) for output in (theirs, ours))
    if want < IMPOSSIBLE:
        return  # not a hypothesis; test_outputs.py tests what we return instead
    tokens = [_generated(output, row, prompt) for output in (theirs, ours)]
    if abs(want - got) > NEAR:
        found.differences.append(f"input {row // n}, {row % n + 1}-best: {tokens[0]} {want:.6f} is not {tokens[1]} {got:.6f}")
    elif tokens[0] != tokens[1]:
        found.near_ties += 1


def _generated(output: Any, row: int, prompt: int) -> list[int]:
    """The tokens that were generated, without padding: as many as have a beam index."""
    length = int((output.beam_indices[row] >= 0).sum())
    return output.sequences[row, prompt : prompt + length].tolist()
