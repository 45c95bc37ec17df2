"""Each kernel of a step's decoder equals plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from device import interpreter  # noqa: F401  isort: skip  before any kernel

from bestfirst.engine.device.device_bart import DeviceBart
from bestfirst.engine.device.device_step import best
from bestfirst.engine.device.kernels.answers import ENDS
from bestfirst.engine.device.kernels.attention_kernels import attend
from bestfirst.engine.device.kernels.matmul import add_norm, empty_aligned, linear_tf32x3
from bestfirst.engine.device.kernels.rows import reclaim
from bestfirst.engine.device.kernels.successors import keep_best, lse_and_maxima, token_bitmap
from device.plain import attend_own, attend_source
from engine.builders import ARCHITECTURES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, SIZE, LAYERS, ROWS = 2, 6, 2, 3
WIDTH = HEADS * SIZE


@pytest.fixture
def random():
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("first", [False, True])
def test_attention_to_ancestors(random, first):
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
        numbers(ROWS), qkv, 3 * WIDTH, memory, memory.shape[1], layer, nodes, unused, lengths, paths, unused, unused, out,
        0.3, 32, HEADS, SIZE, OWN=True, FIRST=first, DP=8, BLOCK=16,
    )  # fmt: skip
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(memory, wanted)  # its own keys and values are where its children read them


@pytest.mark.parametrize("first", [False, True])
def test_attention_to_the_source(random, first):
    source = random(4, 24, LAYERS * 2 * WIDTH)
    inputs, lengths = numbers(2, 0, 2), numbers(3, 1, 20, 1)
    q, out, unused = random(ROWS, WIDTH), torch.full((ROWS, WIDTH), torch.nan, device=DEVICE), numbers(0)
    starts, layers = numbers(0, 24, 48, 72), source.view(4 * 24, LAYERS, 2, WIDTH)
    expected = attend_source(q, layers[:, 0], inputs, starts, lengths, HEADS, 0.5)
    attend[(ROWS, HEADS)](
        numbers(ROWS), q, WIDTH, source, source.shape[2], 0, unused, inputs, unused, unused, starts, lengths, out,
        0.5, 1, HEADS, SIZE, OWN=False, FIRST=first, DP=8, BLOCK=16,
    )  # fmt: skip
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("first", [False, True])
def test_sum_and_norm(random, first, parts):
    x, y, norm = random(ROWS, WIDTH), random(parts, ROWS, WIDTH), torch.nn.LayerNorm(WIDTH, device=DEVICE)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    out, total = torch.empty_like(x), torch.empty_like(x)
    weight, bias = norm.weight.detach(), norm.bias.detach()
    add_norm[(ROWS,)](x, y, weight, bias, total, out, norm.eps, WIDTH, ROWS * WIDTH, FIRST=first, PARTS=parts, DP=16)
    torch.testing.assert_close(out, norm(x + y.sum(0)).detach())
    if first:
        torch.testing.assert_close(total, x + y.sum(0))


@pytest.mark.parametrize("width", [40, 1001, 5001])
def test_top_k_breaks_ties_by_the_smaller_token(random, width):
    """As a GPU's top-k does, though nothing promises it: wide beams rely on it."""
    logits = (random(3, 12_000) * 4).round()
    values, tokens, _ = best(logits, width, None)
    expected = logits.cpu().sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens.cpu(), expected.indices[:, :width])
    assert torch.equal(values.cpu(), expected.values[:, :width])


@pytest.mark.parametrize("banned", [(), (3, 64)])
def test_best_successors(random, banned):
    """Ties, also across groups, go to the smaller token; the last group is not full; EOS tokens are marked."""
    vocabulary, width = 150, 6
    logits = empty_aligned(ROWS, vocabulary, random(1)).copy_(random(ROWS, vocabulary))
    logits[0, [70, 7, 140, 9]] = 5.0
    forbidden = torch.zeros(vocabulary, dtype=torch.int8, device=DEVICE)
    forbidden[list(banned)] = 1
    ends = torch.zeros(vocabulary, dtype=torch.int8, device=DEVICE)
    ends[7] = 1
    order = logits.masked_fill(forbidden.bool(), -torch.inf).cpu().sort(dim=-1, descending=True, stable=True).indices[:, :width]
    values, _, expected = best(logits, width, forbidden)
    logprob, token, child = torch.full((20,), torch.nan, device=DEVICE), numbers(*[-7] * 20), numbers(*[-7] * 20)
    nodes, lengths, counters = numbers(2, 1, 0), numbers(5, 5, 0), numbers(ROWS, *[0] * 7)
    total, maxima = torch.empty(ROWS, device=DEVICE), torch.empty(ROWS, 4, device=DEVICE)
    bits = token_bitmap(banned, vocabulary).to(DEVICE)
    sizes = {"ANY_BANNED": bool(banned), "EDITED": False, "G": 4, "C": 64}
    lse_and_maxima[(ROWS,)](logits, logits.stride(0), total, maxima, bits, counters, vocabulary, **sizes)
    torch.testing.assert_close(total, expected)
    keep_best[(ROWS,)](
        logits,
        logits.stride(0),
        total,
        maxima,
        counters,
        numbers(0, 0, 0),
        numbers(0, width, *[0] * 14),
        nodes,
        lengths,
        logprob,
        token,
        child,
        ends,
        numbers(8, 11),
        vocabulary,
        width,
        2,
        G=4,
        C=64,
        WP=8,
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


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(3, 6, 5), (70, 64, 130), (130, 33, 40)])
def test_linear_tf32x3(random, rows, inputs, outputs, relu):
    """Sizes that no tile divides; some rows are unused."""
    x, weight, bias = random(rows, inputs), random(outputs, inputs), random(outputs)
    used = rows - 1
    expected = F.linear(x.double(), weight.double(), bias.double())[:used].float()
    found = linear_tf32x3(x, weight, bias, numbers(used), relu)[:used]
    torch.testing.assert_close(found, expected.relu() if relu else expected)


@pytest.mark.parametrize(
    ("inputs", "outputs", "parts"), [(2048, 64, 4), (4096, 40, 8), (1024, 64, 2), (1000, 64, 1), (512, 64, 1)]
)
def test_split_k_leaves_a_long_matmul_of_few_rows_in_parts(random, inputs, outputs, parts):
    """Each part covers some of the inputs; their sum is the matmul. Some rows are unused."""
    x, weight, bias = random(5, inputs), random(outputs, inputs), random(outputs)
    found = linear_tf32x3(x, weight, bias, numbers(4), relu=False, may_split=True)
    assert found.shape == ((5, outputs) if parts == 1 else (parts, 5, outputs))
    expected = F.linear(x.double(), weight.double(), bias.double())[:4].float()
    torch.testing.assert_close(found.view(parts, 5, outputs)[:, :4].sum(0), expected, rtol=1e-5, atol=1e-4)
    assert linear_tf32x3(random(2000, inputs), weight, bias, numbers(1), relu=False, may_split=True).dim() == 2


def test_nodes_of_finished_inputs_are_reclaimed():
    """Inputs 0 (in flight), 1 (finishing) and 2 (already free); two blocks of nodes."""
    node_input = numbers(-1, 0, 1, -1, 1, 0, 1, -1)
    stack, counters = numbers(3, 7, *[-7] * 6), numbers(0, 0, 0, 0, 2, 0, 0, 0)
    reclaim[(2,)](node_input, numbers(1, 3, 0), stack, counters, 8, BLOCK=4)
    assert int(counters[4]) == 5
    assert sorted(stack[:5].tolist()) == [2, 3, 4, 6, 7]
    assert node_input.tolist() == [-1, 0, -1, -1, -1, 0, -1, -1]


def test_relu_keeps_nan(random):
    x, weight, bias = random(3, 6), random(5, 6), random(5)
    x[1, 2] = torch.nan
    assert linear_tf32x3(x, weight, bias, numbers(3), True).isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_a_modified_encoder_is_refused(name):
    model = ARCHITECTURES[name].build().to(DEVICE)
    DeviceBart(model, 16, 16)
    handle = model.get_encoder().layers[0].register_forward_hook(lambda *given: given[-1] + 0.001 * given[-1].roll(1, -1))
    with pytest.raises(RuntimeError, match="does not give here what it gives by itself"):
        DeviceBart(model, 16, 16)
    handle.remove()
    model.get_encoder().layers[0].fc1 = torch.nn.Sequential(model.get_encoder().layers[0].fc1)
    with pytest.raises(TypeError, match="is not built as this architecture's are"):
        DeviceBart(model, 16, 16)
