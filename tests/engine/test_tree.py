"""The tree of keys and values: paths of prompts, and steps that need no mask because all rows have equally many ancestors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bestfirst
from bestfirst.engine.steps.hooked import HookedStep
from bestfirst.engine.steps.step_choice import step_for
from bestfirst.engine.steps.tree import Tree
from engine.searches import decode
from generate.tiny import tiny

GROUPED = ["Phi3ForCausalLM", "Gemma3ForCausalLM", "Qwen3MoeForCausalLM"]


@pytest.mark.parametrize("counts", [[5], [3, 7, 1], [1, 130]])
def test_prompts_added_at_once_equal_prompts_added_token_by_token(counts):
    at_once, by_token = (Tree(torch.device("cpu"), torch.float32, capacity=16) for _ in range(2))
    for turn in range(2):  # the second turn reuses released slots
        slots = at_once.allocate(sum(counts))
        assert slots == by_token.allocate(sum(counts))
        given, table = iter(slots), []
        for place, n in enumerate(counts):
            parent = 0
            for position in range(n):
                table.append((turn + position, position, slot := next(given), parent, place))
                parent = slot
        rows = at_once.rows(table, counts)
        alone = [by_token.rows([row], [1]) for row in table]
        for i, row in enumerate(alone):
            n = row.paths.shape[1]
            assert torch.equal(rows.paths[i, :n], row.paths[0])
            assert not rows.paths[i, n:].any()
        assert torch.equal(rows.slots, torch.cat([row.slots for row in alone]))
        for tree in (at_once, by_token):
            tree.release(slots)


def masks_seen(step: HookedStep, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each later step, whether some layer got a mask."""
    seen: list[bool] = []
    made = type(step)._mask

    def mask(self: Any, rows: Any) -> Any:
        out = made(self, rows)
        seen.append(any(each is not None for each in (out.values() if isinstance(out, dict) else [out])))
        return out

    monkeypatch.setattr(type(step), "_mask", mask)
    return seen


@pytest.mark.parametrize("name", GROUPED)
def test_one_input_needs_no_masks_within_its_window(name, monkeypatch):
    """With a mask, transformers copies keys and values once for each head that shares them."""
    model = bestfirst.wrap(tiny(name, sliding_window=8))
    step = step_for(model)
    assert isinstance(step, HookedStep)
    assert step.omit_masks
    seen = masks_seen(step, monkeypatch)
    windowed = model.model.config.sliding_window if name != "Qwen3MoeForCausalLM" else None
    [result] = decode(model, [[5, 6, 7]], 4, max_length=12)
    assert seen[:3] == [False] * 3
    assert any(seen) == (windowed is not None)
    step.omit_masks = False
    [masked] = decode(model, [[5, 6, 7]], 4, max_length=12)
    assert [each.tokens for each in result.hypotheses] == [each.tokens for each in masked.hypotheses]
    assert [each.score for each in result.hypotheses] == pytest.approx([each.score for each in masked.hypotheses], abs=1e-5)


def test_a_model_that_needs_its_masks_gets_them(monkeypatch):
    """Its code computes something else without a mask."""
    model = bestfirst.wrap(tiny("Phi3ForCausalLM"))
    inner = model.model.model
    forward = type(inner).forward

    def negated_without_mask(self, *args, attention_mask=None, **kwargs):
        output = forward(self, *args, attention_mask=attention_mask, **kwargs)
        if attention_mask is None and kwargs.get("past_key_values") is not None:
            output.last_hidden_state = -output.last_hidden_state
        return output

    monkeypatch.setattr(type(inner), "forward", negated_without_mask)
    step = step_for(model)
    assert step.name == "hooked"
    assert not step.omit_masks
