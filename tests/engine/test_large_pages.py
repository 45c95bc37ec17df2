"""Memory from the system: arrays do not overlap, begin at a cache line, and keep their contents when they grow."""

from __future__ import annotations

import pytest
import torch

from bestfirst.engine.steps.operations import zeros
from bestfirst.engine.steps.step_rows import CHUNK, Pages
from bestfirst.engine.steps.tree import Tree

CPU = torch.device("cpu")


def test_arrays_do_not_overlap_and_begin_at_a_cache_line():
    pages, lengths = Pages(), (1, 17, 1000, CHUNK // 4 - 16, CHUNK, 5)
    taken = [pages.allocate(n) for n in lengths]
    for i, array in enumerate(taken):
        array[:] = i
    for i, (array, length) in enumerate(zip(taken, lengths, strict=True)):
        assert array.ctypes.data % 64 == 0
        assert len(array) == length
        assert (array == i).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4)])
def test_zeros_equal_torchs(shape, dtype):
    found = zeros(*shape, dtype=dtype, device=CPU)
    assert torch.equal(found, torch.zeros(*shape, dtype=dtype))
    found += 1  # it is writable
    assert found.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])  # `recompute` keeps tokens in place of keys and values
def test_a_growing_tree_keeps_its_contents(dtype):
    tree = Tree(CPU, torch.float32, capacity=4)
    layer = tree.layer(0, 3) if dtype is torch.float32 else torch.zeros(4, dtype=dtype)
    tree.layers = [layer]
    layer[:] = 7
    assert sorted(tree.allocate(3) + tree.allocate(10)) == list(range(1, 14))
    (grown,) = tree.layers
    assert (grown.dtype, grown.shape) == (dtype, (16, *layer.shape[1:]))
    assert (grown[:4] == 7).all()
    assert not grown[4:].any()
