"""Every compiled kernel against torch, on random shapes."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bestfirst
from bestfirst.engine.steps.bart import as_numpy, read_bart
from bestfirst.engine.steps.bart_weights import Affine
from bestfirst.engine.steps.native import calls, parts, registers
from bestfirst.engine.steps.native.decoder import NativeEncoder, batches, wide_top
from bestfirst.engine.steps.native.parts import Product
from bestfirst.engine.steps.step_rows import NativeSources, NativeTree, Pages
from engine.builders import ARCHITECTURES

SHAPES = [(1, 1, 4), (3, 2, 8), (5, 2, 12), (17, 4, 16), (9, 2, 32), (50, 3, 64), (2, 2, 128)]  # rows, heads, head size
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: int) -> torch.Tensor:
    """Torch's attention of one query (d,) over keys and values (length, d)."""
    q, keys, values = (x.view(-1, heads, x.shape[-1] // heads).transpose(0, 1) for x in (q, keys, values))
    return F.scaled_dot_product_attention(q, keys, values).transpose(0, 1).reshape(-1)


@pytest.mark.parametrize(("rows", "heads", "size"), SHAPES)
def test_own_attention_stores_its_keys_and_values_and_reads_its_ancestors(rows, heads, size):
    d, slots, context = heads * size, 2 * rows + 5, 9
    qkv, bias, pool = normal(rows, 3 * d), normal(3 * d), normal(slots, 2 * d)
    positions = torch.randint(0, context, (rows,), dtype=torch.int32)
    own = torch.arange(1, rows + 1, dtype=torch.int32)
    paths = torch.randint(0, slots, (slots, context), dtype=torch.int32)
    paths[own.long(), positions.long()] = own
    expected_pool = pool.clone()
    expected_pool[own.long()] = (qkv + bias)[:, d:]
    expected = []
    for r in range(rows):
        seen = expected_pool[paths[own[r], : positions[r] + 1].long()]
        expected.append(attend((qkv + bias)[r, :d], seen[:, :d], seen[:, d:], heads))
    out = torch.empty(rows, d)
    arguments = [x.numpy() for x in (qkv, bias, pool, paths, own, positions)]
    calls.own_attention(*arguments, heads, np.float32(size**-0.5), out.numpy())
    torch.testing.assert_close(pool, expected_pool)
    torch.testing.assert_close(out, torch.stack(expected), **CLOSE)


@pytest.mark.parametrize(("rows", "heads", "size"), SHAPES)
def test_cross_attention_reads_only_the_source_of_its_row(rows, heads, size):
    sources, longest, d = 5, 7, heads * size
    q, bias, keys_values = normal(rows, d), normal(d), normal(2, sources, heads, longest, size)
    lengths, places = torch.randint(1, longest + 1, (sources,)), torch.randint(0, sources, (rows,), dtype=torch.int32)
    expected = []
    for r in range(rows):
        keys, values = keys_values[:, places[r], :, : lengths[places[r]]].transpose(1, 2).reshape(2, -1, d)
        expected.append(attend((q + bias)[r], keys, values, heads))
    out = torch.empty(rows, d)
    arguments = [x.numpy() for x in (q, bias, keys_values, lengths, places)]
    calls.cross_attention(*arguments, np.float32(size**-0.5), out.numpy())
    torch.testing.assert_close(out, torch.stack(expected), **CLOSE)


def test_self_attention_stays_within_an_input():
    heads, size, lengths = 2, 8, [3, 1, 6]
    d, starts = heads * size, torch.tensor([0, 3, 4, 10])
    qkv, bias, out = normal(10, 3 * d), normal(3 * d), torch.empty(10, d)
    whole = (qkv + bias).split(lengths)
    expected = [attend(x[i, :d], x[:, d : 2 * d], x[:, 2 * d :], heads) for x in whole for i in range(len(x))]
    calls.self_attention(qkv.numpy(), bias.numpy(), starts.numpy(), heads, np.float32(size**-0.5), out.numpy())
    torch.testing.assert_close(out, torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("in_place", [False, True])
def test_norms_equal_torch(in_place):
    x, y, bias, weight, shift = normal(9, 24), normal(9, 24, seed=1), normal(24), normal(24, seed=2), normal(24, seed=3)
    total = x + y + bias
    expected = F.layer_norm(total, (24,), weight, shift, 1e-5)
    out = x if in_place else torch.empty(9, 24)
    settings = weight.numpy(), shift.numpy(), np.float32(1e-5)
    calls.add_norm(x.numpy(), y.numpy(), bias.numpy(), *settings, out.numpy())
    torch.testing.assert_close(out, expected, **CLOSE)
    if not in_place:
        torch.testing.assert_close(x, total)
        calls.norm(total.numpy(), *settings, out.numpy())
        torch.testing.assert_close(out, expected, **CLOSE)


ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_torch(name):
    x, bias = 4 * normal(9, 240), normal(240)
    x[0, :4] = torch.tensor([200.0, -200.0, 0.0, nan])
    expected = ACTIVATIONS[name]((x + bias).double()).float()
    calls.activate(x.numpy(), bias.numpy(), parts.ACTIVATIONS[name])
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=2e-6, equal_nan=True)


def test_embeddings_and_positions():
    tokens, positions = (torch.randint(0, 5, (7,), dtype=torch.int32) for _ in range(2))
    embedding, table, out = normal(5, 12), normal(6, 12), torch.empty(7, 12)
    calls.embed(*(x.numpy() for x in (tokens, positions, embedding)), np.float32(3), table.numpy(), out.numpy())
    torch.testing.assert_close(out, embedding[tokens.long()] * 3 + table[positions.long()])


def test_put_stores_keys_and_values_by_input_and_head():
    heads, size, lengths = 2, 3, [4, 2]
    d, out = heads * size, torch.zeros(2, 5, heads, 6, size)
    keys_values, bias = normal(6, 2 * d), normal(2 * d)
    calls.put(keys_values.numpy(), bias.numpy(), torch.tensor([0, 4, 6]).numpy(), 2, out.numpy())
    for place, part in enumerate((keys_values + bias).split(lengths), start=2):
        laid = part.view(-1, 2, heads, size).permute(1, 2, 0, 3)  # (2, heads, length, size)
        torch.testing.assert_close(out[:, place, :, : part.shape[0]], laid)
    assert not out[:, :2].any()


def test_nan_spreads_only_to_the_rows_that_read_it():
    """A row that reads a NaN becomes NaN; all others are as they were."""
    heads, size = 2, 8
    d, starts, scale = heads * size, torch.tensor([0, 3, 7]).numpy(), np.float32(0.3)
    hidden = normal(7, d)
    hidden[1, 3] = nan
    calls.activate(hidden.numpy(), torch.zeros(d).numpy(), parts.ACTIVATIONS["relu"])
    assert hidden.isnan().nonzero().tolist() == [[1, 3]]
    for part in range(3):  # of a query, a key, a value
        qkv, zeros, out = normal(7, 3 * d), torch.zeros(3 * d), torch.empty(7, d)
        qkv[1, part * d + 3] = nan
        calls.self_attention(qkv.numpy(), zeros.numpy(), starts, heads, scale, out.numpy())
        assert out.isnan().any(1).tolist() == [part > 0, True, part > 0, *[False] * 4]
        pool, paths = normal(9, 2 * d), torch.zeros(9, 3, dtype=torch.int32)
        slots, positions = torch.tensor([4, 5], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.int32)
        paths[4, :2], paths[5, :2] = torch.tensor([1, 4]), torch.tensor([2, 5])
        rows = normal(2, 3 * d, seed=1)
        if part == 0:
            rows[0, 3] = nan
        else:
            pool[1, (part - 1) * d + 3] = nan
        arguments = [x.numpy() for x in (rows, zeros, pool, paths, slots, positions)]
        out = torch.empty(2, d)
        calls.own_attention(*arguments, heads, scale, out.numpy())
        assert out.isnan().any(1).tolist() == [True, False]


def test_indices_out_of_range_are_reported():
    tree, sources = NativeTree(), NativeSources()
    sources.reserve([3], layers=1, heads=1, size=4)
    usual = (5, 1, 7, 0, 0)  # token, position, slot, parent's slot, input

    def check(**changes: int) -> None:
        rows = tree.rows([usual, usual], [2])
        for name, value in changes.items():
            getattr(rows, name)[1] = value
        rows.check(10, 64, tree.capacity, len(sources))

    check()
    for name, what, values in [
        ("tokens", "a token's id must be from 0 to 9, got", (-1, 10)),
        ("positions", "a token's position must be from 0 to 1, got", (-1, 2)),
        ("slots", "a token's slot must be from 0 to 1023, got", (-1, 1024)),
        ("paths", "an ancestor's slot must be from 0 to 1023, got", (-5, 1024)),
        ("sentences", "an input's place must be from 0 to 0, got", (-1, 1)),
    ]:
        for value in values:
            with pytest.raises(ValueError, match=f"^{what} {value}$"):
                check(**{name: value})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[5, 1], [48, 1]], "an input token's id must be from 0 to 47, got 48"),
        ([[5, -3, 1]], "an input token's id must be from 0 to 47, got -3"),
        ([[5, 1], [5] * 41], "the number of an input's tokens must be from 1 to 40, got 41"),
        ([[5, 1], []], "the number of an input's tokens must be from 1 to 40, got 0"),
    ],
)
def test_inputs_that_the_encoder_cannot_take_are_reported(inputs, message):
    side = read_bart(ARCHITECTURES["marian"].build()).encoder
    assert side is not None
    with pytest.raises(ValueError, match=message):
        NativeEncoder(as_numpy(side), Pages(), eight_bits=False).check(inputs)


ROWS = [
    *range(1, 2 * registers.TALL + 2),
    registers.ROWS - 1,
    2 * registers.ROWS + 5,
]  # every height of a tile, and more than one pass


@pytest.mark.parametrize("outputs", [16, 32, 48, 64, 144 + 32])
@pytest.mark.parametrize("inputs", [2, 30, 64])
def test_tiles_equal_the_matmul(inputs, outputs):
    weight = normal(outputs, inputs)
    for block in (registers.BLOCK, 24):  # all inputs at once, and in blocks
        packed = torch.empty(outputs * inputs)
        calls.pack(weight.numpy(), block, packed.numpy())
        for rows in ROWS:
            x, out = normal(rows, inputs), torch.full((rows + 1, outputs), nan)
            calls.by_panels(x.numpy(), packed.numpy(), block, registers.ZEROS, out[:rows].numpy())
            torch.testing.assert_close(out[:rows], x @ weight.t(), **CLOSE)
            assert out[rows].isnan().all()  # nothing is written past the end


@pytest.mark.parametrize("outputs", [*range(1, registers.TALL + 2), 101])
def test_transposed_tiles_equal_the_matmul(outputs):
    weight = normal(outputs, 34)
    for rows in (1, 15, 16, 17, 48, 50, 100):
        x, columns = normal(rows, 34), -(-rows // registers.LANES) * registers.LANES
        packed, out = torch.full((columns * 34,), nan), torch.full((outputs + 1, columns), nan)
        calls.pack(x.numpy(), 34, packed.numpy())
        calls.by_rows(weight.numpy(), packed.numpy(), registers.ZEROS, out[:outputs].numpy())
        torch.testing.assert_close(out[:outputs, :rows], weight @ x.t(), **CLOSE)
        assert not out[:outputs, rows:].any()  # the padding
        assert out[outputs].isnan().all()


def test_a_rows_matmul_does_not_depend_on_other_rows():
    """Bit for bit: libraries choose another order of sums for another number of rows."""
    weight, x = normal(96, 64), normal(40, 64)
    packed, together, alone = torch.empty(96 * 64), torch.empty(40, 96), torch.empty(40, 96)
    calls.pack(weight.numpy(), registers.BLOCK, packed.numpy())
    calls.by_panels(x.numpy(), packed.numpy(), registers.BLOCK, registers.ZEROS, together.numpy())
    for row in range(40):
        calls.by_panels(x[row : row + 1].numpy(), packed.numpy(), registers.BLOCK, registers.ZEROS, alone[row : row + 1].numpy())
    assert torch.equal(together, alone)


@pytest.mark.parametrize("outputs", [48, 50])  # by tiles, and by numpy
def test_a_projection_joined_of_several_parts(outputs):
    parts = [Affine(normal(outputs, 20, seed=i).numpy(), normal(outputs, seed=i).numpy() if i != 1 else None) for i in range(3)]
    product, x, out = Product(Pages(), *parts), normal(9, 20), torch.empty(9, 3 * outputs)
    product(x.numpy(), out.numpy())
    expected = [x @ torch.from_numpy(p.weight).t() + (0 if p.bias is None else torch.from_numpy(p.bias)) for p in parts]
    torch.testing.assert_close(out + torch.from_numpy(product.bias), torch.cat(expected, 1), **CLOSE)


def test_results_are_the_same_without_tiles(monkeypatch):
    lines = ["Wie melkt man eine Kuh?", "Guten Morgen!", "Ich habe keine Zeit, aber du hast ein Auto."]
    tiled = bestfirst.decode(bestfirst.load(), lines, beam=5, nbest=2)
    monkeypatch.setattr(calls, "suit", lambda *_: False)
    plain = bestfirst.decode(bestfirst.load(), lines, beam=5, nbest=2)
    for one, other in zip(tiled, plain, strict=True):
        assert [answer.tokens for answer in one.hypotheses] == [answer.tokens for answer in other.hypotheses]
        assert [answer.score for answer in one.hypotheses] == pytest.approx(
            [answer.score for answer in other.hypotheses], abs=1e-4
        )
        assert one.calls == other.calls


def top(logits: torch.Tensor, k: int, banned: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    values, tokens = torch.empty(len(logits), k), torch.empty(len(logits), k, dtype=torch.long)
    laid = logits.t().contiguous()
    calls.top(laid.numpy(), torch.tensor(banned, dtype=torch.long).numpy(), values.numpy(), tokens.numpy())
    return values, tokens


@pytest.mark.parametrize("banned", [(), (0,), (3, 64, 99)])
@pytest.mark.parametrize(("vocabulary", "k"), [(100, 1), (100, 2), (100, 100), (1000, 7), (1000, 15), (1000, 16), (1000, 300)])
def test_top_equals_log_softmax_and_topk(vocabulary, k, banned):
    logits = 5 * normal(13, vocabulary)
    logprobs = logits.log_softmax(-1)
    logprobs[:, list(banned)] = -inf
    values, tokens = top(logits, k, banned)
    expected = logprobs.topk(k)
    torch.testing.assert_close(values, expected.values, **CLOSE)
    finite = expected.values > -inf
    assert torch.equal(tokens[finite], expected.indices[finite])


def test_banned_ids_outside_the_vocabulary_are_ignored():
    """Nothing may be written for them: the memory beyond the logits belongs to other arrays."""
    memory = normal(3 * 70, 4)
    before, logits = memory.clone(), memory[70:140]
    values, tokens = torch.empty(4, 3), torch.empty(4, 3, dtype=torch.long)
    calls.top(logits.numpy(), torch.tensor([-1, 5, 70, 99]).numpy(), values.numpy(), tokens.numpy())
    assert torch.equal(memory[:70], before[:70])
    assert torch.equal(memory[140:], before[140:])
    assert (logits == -inf).nonzero()[:, 0].unique().tolist() == [5]


@pytest.mark.parametrize("k", [3, 5, 200])
def test_top_breaks_ties_by_the_smaller_token(k):
    logits = torch.randint(0, 3, (20, 300), generator=torch.Generator().manual_seed(k)).float()
    values, tokens = top(logits, k)
    expected = [sorted(range(300), key=lambda token, row=row: (-row[token], token))[:k] for row in logits.tolist()]
    assert tokens.tolist() == expected
    torch.testing.assert_close(values, logits.log_softmax(-1).gather(1, tokens), **CLOSE)


@pytest.mark.parametrize("banned", [[], [3, 40]])
def test_wide_top_equals_top(banned):
    """With ties, impossible tokens, 0 and -0, and NaN in a row; columns beyond the rows are not read."""
    logits = normal(90, 8).numpy()
    logits[:, 1] = np.round(logits[:, 1])
    logits[:60, 2] = -inf
    logits[:, 3] = np.where(np.arange(90) % 2, 0.0, -0.0)
    logits[7, 4], logits[:, 5] = nan, -inf
    never = np.array(banned, np.int64)
    for width in (1, 20, 70, 90):
        values, tokens = np.empty((6, width), np.float32), np.empty((6, width), np.int64)
        calls.top(logits.copy(), never, values, tokens)
        mine, which = wide_top(logits.copy(), 6, width, never)
        assert np.array_equal(mine, values, equal_nan=True)
        numbers = values > -inf
        assert (which[numbers] == tokens[numbers]).all()


def test_top_with_impossible_tokens_and_nan():
    logits = normal(4, 70)
    logits[0, 5:] = -inf
    logits[1] = nan
    logits[2, 40] = nan
    logits[3] = -inf
    values, tokens = top(logits, 6)
    assert sorted(tokens[0, :5].tolist()) == [0, 1, 2, 3, 4]
    torch.testing.assert_close(values[0, :5].exp().sum(), torch.tensor(1.0))
    assert values[0, 5] == -inf
    assert values[1:3].isnan().all()
    assert (values[3] == -inf).all()


def test_batches_limit_their_tokens_and_hold_every_input_once():
    assert list(batches([], 10)) == []
    assert list(batches([30], 10)) == [(0, 1)]
    assert list(batches([4, 4, 4, 30, 1, 9], 10)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
