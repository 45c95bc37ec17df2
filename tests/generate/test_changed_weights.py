"""Weights that change between two calls, also where torch does not count it: the next call is the new model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bestfirst
from bestfirst.engine.model_record import record_of
from bestfirst.engine.steps import checksum
from bestfirst.engine.steps.checksum import Checksum, WrittenPages, whole_pages
from engine.builders import ARCHITECTURES
from generate.differences import padded

ASKED = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}


def flip(model):
    model.get_decoder().layers[1].fc1.weight.data.mul_(-1)


def one_row(model):
    model.get_output_embeddings().weight.data[20] *= 3


def swap_rows(model):
    weight = model.get_output_embeddings().weight.data
    weight[[20, 21]] = weight[[21, 20]]


def one_number_by_numpy(model):
    model.get_output_embeddings().weight.detach().numpy()[33, 5] += 4.0


def the_encoder(model):
    model.get_encoder().layers[0].fc1.weight.data.mul_(-1)


def counted(model):
    with torch.no_grad():
        model.get_output_embeddings().weight[20] *= 3


@pytest.mark.parametrize("change", [flip, one_row, swap_rows, one_number_by_numpy, the_encoder, counted])
@pytest.mark.parametrize("name", ["marian", "llama", "t5"])
def test_the_next_call_is_the_new_models(name, change):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    batch = padded(architecture, architecture.inputs(3, seed=1))

    def ours(**own):
        return model.generate(**batch, **ASKED, custom_generate=bestfirst.generate, **own)

    before = ours()
    try:
        change(model)
    except AttributeError:
        pytest.skip("no such part")
    for own in ({}, {"trace": lambda i: bestfirst.Trace()}, {}):
        after, theirs = ours(**own), model.generate(**batch, **ASKED)
        assert torch.equal(after.sequences, theirs.sequences)
        assert torch.allclose(after.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert not torch.equal(before.scores[0], after.scores[0])


def test_nothing_is_made_anew_while_nothing_changes(small):
    architecture, model = ARCHITECTURES["marian"], small("marian")
    batch, steps = padded(architecture, architecture.inputs(2, seed=1)), []
    for _ in range(3):
        model.generate(**batch, **ASKED, custom_generate=bestfirst.generate)
        steps.append(record_of(bestfirst.wrap(model)).step[1])
    assert steps[0] is steps[1] is steps[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_every_number_counts_and_its_place(dtype):
    weights = [torch.randn(7, 5).mul(20).to(dtype), torch.randn(3).mul(20).to(dtype), torch.empty(0, dtype=dtype)]
    summed = Checksum(weights)
    assert summed.still_holds()
    for each in weights[:2]:
        for numbers in (each.view(-1)[:1], each.view(-1)[-1:], each[:2], each.view(-1)[1:]):
            was = numbers.clone()
            numbers.copy_(was + 1)
            assert not summed.still_holds()
            numbers.copy_(was)
            assert summed.still_holds()
    weights[0][[1, 2]] = weights[0][[2, 1]]
    assert not summed.still_holds()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_of_a_large_parameter(dtype, watched, monkeypatch):
    """As the kernel counts what is written, where it can; and by reading all of it."""
    if not watched:
        monkeypatch.setattr(checksum, "WrittenPages", _refused)
    weights = [torch.randn(300, 500).to(dtype), torch.randn(64, 2000).to(dtype).t(), torch.randn(7).to(dtype)]
    summed = Checksum(weights)

    def unchanged():
        summed.begin()
        return summed.holds()

    assert unchanged()
    assert unchanged()
    for each in weights:
        for place in ((0,) * each.dim(), tuple(n - 1 for n in each.shape), tuple(n // 2 for n in each.shape)):
            was = each[place].clone()
            each.data[place] += 1
            assert not unchanged()
            each.data[place] = was
            assert unchanged()


def _refused(arrays):
    raise OSError


def paged(numbers):
    array = np.zeros(numbers, np.int32) if isinstance(numbers, int) else numbers
    return array[whole_pages(array)]


def test_only_what_was_written_is_read():
    arrays = [paged(300_000) for _ in range(3)]
    try:
        pages = WrittenPages(arrays)
    except OSError as error:
        pytest.skip(f"this kernel does not count what is written: {error}")
    assert not pages.written()
    arrays[1][50_000] = 1
    assert pages.written() == {1}
    assert not pages.written()
    for i in range(0, 290_000, 2048):  # every other page: more regions than a scan lists
        arrays[2][i] = 1
    arrays[0][70_000] = 1
    assert pages.written() == {0, 2}
    assert not pages.written()


def test_a_child_of_the_process_reads_everything():
    arrays = [paged(100_000)]
    try:
        pages = WrittenPages(arrays)
    except OSError as error:
        pytest.skip(f"this kernel does not count what is written: {error}")
    pages._process += 1
    assert pages.written() == {0}


def test_shared_memory_is_not_watched():
    """Another process may write to it, which no page of this one shows."""
    with pytest.raises(OSError, match="shared memory"):
        WrittenPages([paged(torch.zeros(100_000, dtype=torch.int32).share_memory_().numpy())])
