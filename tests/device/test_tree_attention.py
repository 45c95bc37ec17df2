"""Attention on the device's tree: kernels against plain torch, for grouped heads, any sizes, windows, caps, biases and sinks."""

from __future__ import annotations

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine.device.modules import tree_attention
from bestfirst.engine.device.modules.tree_attention import Kind, TreeRows
from device import plain

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, GROUPS, SIZE, VALUE_SIZE = 2, 3, 20, 12
KINDS = {
    "plain": {},
    "window": {"window": 3},
    "wide window": {"window": 9},
    "cap": {"cap": 2.0},
    "bias": {"bias": True},
    "sinks": {"sinks": True},
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def kind_of(name: str) -> Kind:
    asked = dict(KINDS[name])
    if asked.get("bias"):
        asked["bias"] = numbers(HEADS * GROUPS, 32, seed=7)
    if asked.get("sinks"):
        asked["sinks"] = numbers(HEADS * GROUPS, seed=8)
    return Kind(SIZE**-0.5, **asked)


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def tree_rows() -> TreeRows:
    """Three inputs of 11, 0 and 4 tokens, with room for 12 each; six rows, of which five are in use."""
    lengths = integers(4, 2, 0, 7, 7, 0)
    paths = torch.zeros(24, 10, dtype=torch.int32, device=DEVICE)
    for row, length in enumerate(lengths.tolist()):
        paths[row + 1, : length + 1] = torch.randperm(12, generator=torch.Generator().manual_seed(row))[: length + 1] + 8
        paths[row + 1, length] = row + 1
    return TreeRows(
        integers(5), integers(1, 2, 3, 4, 5, 0), integers(0, 0, 1, 2, 2, 0), lengths, paths, integers(0, 2, 3), integers(2, 1, 2),
        integers(0, 12, 24), integers(11, 0, 4), room=12, most=2,
    )  # fmt: skip


def memory(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(tokens, HEADS, SIZE, seed=seed), numbers(tokens, HEADS, VALUE_SIZE, seed=seed + 1)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("what", ["a prompt and a path", "a path", "a source"])
@pytest.mark.parametrize(("near", "small"), [(0, 1024), (0, 1), (128, 1024)])  # parts of an input four at a time, and one by one
def test_attend_tree_equals_plain_attention(name, what, near, small, monkeypatch):
    if what == "a source" and name in ("bias", "window", "wide window", "cap"):
        pytest.skip("no model asks for it")
    if what == "a prompt and a path" and name == "bias":
        pytest.skip("no model asks for it")
    monkeypatch.setattr(tree_attention, "PART", 2)  # six parts of the longest input: more than are combined at once
    monkeypatch.setattr(tree_attention, "NEAR", near)
    monkeypatch.setattr(tree_attention, "SMALL", small)
    monkeypatch.setattr(tree_attention, "BLOCK", 4 if near and DEVICE == "cpu" else 32)
    q, k, v = (numbers(6, heads, 1, size, seed=i) for i, (heads, size) in enumerate(
        [(HEADS * GROUPS, SIZE), (HEADS, SIZE), (HEADS, VALUE_SIZE)]
    ))  # fmt: skip
    found = []
    for attend in (tree_attention.attend_tree, plain.attend_tree):
        nodes = None if what == "a source" else memory(24, 3)
        source = None if what == "a path" else memory(37, 5)
        out = attend(q, k, v, nodes, source, tree_rows(), kind_of(name))
        read = [0, 1, 3, 4] if what == "a source" else range(5)  # the third row's input is empty
        found.append((out[list(read)], nodes and (nodes[0][1:6], nodes[1][1:6])))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-5)
    if what != "a source":
        for mine, its in zip(found[0][1], found[1][1], strict=True):
            assert torch.equal(mine, its)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # half: the greatest product first
def test_attend_packed_equals_plain_attention(name, dtype):
    tokens = 75  # of inputs of 70, 1 and 4 tokens
    number = integers(*[0] * 70, 1, *[2] * 4)
    q, k = numbers(tokens, HEADS * GROUPS, 1, SIZE), numbers(tokens, HEADS, 1, SIZE, seed=1)
    v = numbers(tokens, HEADS, 1, VALUE_SIZE, seed=2)
    asked = kind_of(name)
    if asked.bias is not None:
        asked.bias = numbers(HEADS * GROUPS, 80, seed=9)
    given = (integers(tokens), number, integers(0, 70, 71), asked)
    mine = tree_attention.attend_packed(*(x.to(dtype) for x in (q, k, v)), *given).float()
    cpu = [x.cpu() if isinstance(x, torch.Tensor) else x for x in (q, k, v, *given[:3])]
    if asked.bias is not None:
        asked.bias = asked.bias.cpu()
    if asked.sinks is not None:
        asked.sinks = asked.sinks.cpu()
    near = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(mine.cpu(), plain.attend_packed(*cpu, asked), atol=near, rtol=near)


def test_half_precision_rounds_where_torch_does(monkeypatch):
    """Weights are rounded relative to the greatest score of the whole context, input and path: nearly all bits are the same."""
    rows, half = tree_rows(), torch.float16
    q, k, v = (numbers(6, heads, 1, 16, seed=i).to(half) for i, heads in enumerate((HEADS * GROUPS, HEADS, HEADS)))
    nodes, source = (tuple(numbers(n, HEADS, 16, seed=n + i).to(half) for i in range(2)) for n in (24, 37))
    expected = []
    for row in range(5):
        path = rows.paths[row + 1, : int(rows.length[row])].long()
        s = int(rows.input[row])
        cells = torch.arange(int(rows.source_length[s]), device=DEVICE) + rows.source_start[s]
        keys, values = (torch.cat([b[cells], a[path], c[row, None, :, 0]]) for a, b, c in zip(nodes, source, (k, v), strict=True))
        keys, values = (x.float().repeat_interleave(GROUPS, 1).transpose(0, 1) for x in (keys, values))  # (heads, context, size)
        x = (q[row].float() @ keys.transpose(1, 2)) * 0.25
        x = (x - x.amax(-1, keepdim=True)).exp()
        expected.append((x.to(half).float() @ values / x.sum(-1, keepdim=True)).to(half)[:, 0])
    unequal = {}
    for near in (0, 128):
        monkeypatch.setattr(tree_attention, "NEAR", near)
        found = tree_attention.attend_tree(q, k, v, nodes, source, rows, Kind(0.25))[:5]
        unequal[near] = float((found != torch.stack(expected)).float().mean())
    assert unequal[128] < 0.01 < unequal[0], unequal
