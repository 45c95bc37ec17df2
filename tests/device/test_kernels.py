"""Each kernel of a step's decoder does what plain torch does."""

from __future__ import annotations

import pytest
import torch

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine.device.attention import add_norm, attend
from bestfirst.engine.device.beams import ENDS
from bestfirst.engine.device.plain import attend_own, attend_source, best
from bestfirst.engine.device.successors import keep_best, survey

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, SIZE, LAYERS, ROWS = 2, 6, 2, 3
WIDTH = HEADS * SIZE


@pytest.fixture
def random():
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def test_attention_to_ancestors(random):
    """Rows of 0, 2 and 20 ancestors: the last needs a second block."""
    memory = random(64, LAYERS * 2 * WIDTH)
    nodes, lengths = numbers(40, 41, 42), numbers(0, 2, 20)
    paths = torch.zeros(64, 32, dtype=torch.int32, device=DEVICE)
    paths[41, :3], paths[42, :21] = numbers(5, 7, 41), numbers(*range(1, 21), 42)
    paths[40, 0] = 40
    qkv, out, layer, unused = random(ROWS, 3 * WIDTH), torch.full((ROWS, WIDTH), torch.nan, device=DEVICE), 1, numbers(0)
    wanted = memory.clone()
    view = wanted.view(64, LAYERS, 2, WIDTH)[:, layer]
    expected = attend_own(qkv, view, nodes, lengths, paths, HEADS, 0.3)
    attend[(ROWS, HEADS)](
        qkv, 3 * WIDTH, memory, memory.shape[1], layer, nodes, unused, lengths, paths, unused, out,
        0.3, 32, 1, HEADS, SIZE, OWN=True, DP=8, BLOCK=16,
    )  # fmt: skip
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(memory, wanted)  # its own keys and values are where its children look for them


def test_attention_to_the_source(random):
    source = random(4, 24, LAYERS * 2 * WIDTH)
    inputs, lengths = numbers(2, 0, 2), numbers(3, 1, 20, 1)
    q, out, unused = random(ROWS, WIDTH), torch.full((ROWS, WIDTH), torch.nan, device=DEVICE), numbers(0)
    expected = attend_source(q, source.view(4, 24, LAYERS, 2, WIDTH)[:, :, 0], inputs, lengths, HEADS, 0.5)
    attend[(ROWS, HEADS)](
        q, WIDTH, source, source.shape[2], 0, unused, inputs, unused, unused, lengths, out,
        0.5, 1, 24, HEADS, SIZE, OWN=False, DP=8, BLOCK=16,
    )  # fmt: skip
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("first", [False, True])
def test_sum_and_norm(random, first):
    x, y, norm = random(ROWS, WIDTH), random(ROWS, WIDTH), torch.nn.LayerNorm(WIDTH, device=DEVICE)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    out, total = torch.empty_like(x), torch.empty_like(x)
    add_norm[(ROWS,)](x, y, norm.weight.detach(), norm.bias.detach(), total, out, norm.eps, WIDTH, FIRST=first, DP=16)
    torch.testing.assert_close(out, norm(x + y).detach())
    if first:
        torch.testing.assert_close(total, x + y)


@pytest.mark.parametrize("banned", [(), (3, 64)])
def test_best_successors(random, banned):
    """Ties, also across groups, go to the smaller token; the last group is not full; what ends an output is marked."""
    vocabulary, width = 150, 6
    logits = random(ROWS, vocabulary)
    logits[0, [70, 7, 140, 9]] = 5.0
    forbidden = torch.zeros(vocabulary, dtype=torch.int8, device=DEVICE)
    forbidden[list(banned)] = 1
    ends = torch.zeros(vocabulary, dtype=torch.int8, device=DEVICE)
    ends[7] = 1
    order = logits.masked_fill(forbidden.bool(), -torch.inf).cpu().sort(dim=-1, descending=True, stable=True).indices[:, :width]
    values, _, expected = best(logits, width, forbidden)
    logprob, token, child = torch.full((20,), torch.nan, device=DEVICE), numbers(*[-7] * 20), numbers(*[-7] * 20)
    nodes, lengths, counters = numbers(2, 1, 0), numbers(5, 5, 0), numbers(*[0] * 8)
    total, maxima = torch.empty(ROWS, device=DEVICE), torch.empty(ROWS, 4, device=DEVICE)
    survey[(ROWS,)](logits, total, maxima, forbidden, counters, vocabulary, ANY_BANNED=bool(banned), G=4, C=64)
    torch.testing.assert_close(total, expected)
    keep_best[(ROWS,)](
        logits, total, maxima, nodes, lengths, logprob, token, child, ends, numbers(8, 11), vocabulary, width, 2, G=4, C=64, WP=8
    )
    for row, node in ((0, 2), (1, 1)):
        found = slice(node * width, (node + 1) * width)
        torch.testing.assert_close(logprob[found], values[row] - expected[row])
        assert (token[found] & (ENDS.value - 1)).tolist() == order[row].tolist()
        assert (token[found] >= ENDS.value).tolist() == [t == 7 for t in order[row].tolist()]
    # within the prompt there is one successor, its next token
    assert (int(token[0]), float(logprob[0]), logprob[1:width].tolist()) == (11, 0.0, [-torch.inf] * (width - 1))
    assert child.tolist() == [-1] * 18 + [-7] * 2
    assert int(counters[6]) == 0
