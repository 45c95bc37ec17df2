"""Matmuls in eight bits: exact in integers, row by row, on every kind of CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestfirst.engine.steps.native import registers
from bestfirst.engine.steps.native.parts import PackedBytes

needs_int8 = pytest.mark.skipif(registers.HERE.eight is None, reason="this CPU has neither VNNI nor AVX2")


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows quantised to eight bits, and their scales, by numpy."""
    largest = np.abs(x).max(1).astype(np.float32)
    factors = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(x * factors[:, None]).astype(np.int64), largest / np.float32(127)


def product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    weights = PackedBytes.of(matrix)
    out = np.full((len(x), len(weights.scales)), np.nan, np.float32)
    weights.multiply(x, out)
    return out[:, : len(matrix)]


def by_numpy(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    (rows, row_scales), (weights, scales) = quantised(x), quantised(matrix)
    return (rows @ weights.T).astype(np.float32) * scales * row_scales[:, None]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@needs_int8
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 30), st.integers(1, 150), st.integers(1, 120), st.integers(0, 99))
def test_matmuls_equal_numpys_bit_for_bit(rows, inputs, outputs, seed):
    x, matrix = normal(rows, inputs, seed=seed), normal(outputs, inputs, seed=seed + 1)
    np.testing.assert_array_equal(product(x, matrix), by_numpy(x, matrix))


@needs_int8
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_the_largest_sums_do_not_overflow(signs):
    x, matrix = signs[0] * np.ones((3, 4096), np.float32), signs[1] * np.ones((16, 4096), np.float32)
    np.testing.assert_array_equal(product(x, matrix), by_numpy(x, matrix))


@needs_int8
def test_a_rows_result_depends_on_that_row_alone():
    x, matrix = normal(200, 64), normal(80, 64, seed=1)
    whole = product(x, matrix)
    for first, last in [(0, 1), (3, 10), (190, 200), (0, 97)]:
        np.testing.assert_array_equal(product(x[first:last], matrix), whole[first:last])
    order = np.random.default_rng(2).permutation(200)
    np.testing.assert_array_equal(product(x[order], matrix), whole[order])


@needs_int8
def test_rows_of_zeros_and_non_finite_rows():
    x, matrix = normal(5, 24), normal(16, 24, seed=1)
    x[1], x[2, 7], x[3, 2] = 0, np.nan, np.inf
    found = product(x, matrix)
    assert not found[1].any()
    assert np.isnan(found[2:4]).all()
    np.testing.assert_array_equal(found[[0, 4]], by_numpy(x[[0, 4]], matrix))


@pytest.mark.parametrize("level", ["v4-vnni", "v3-vnni"])
def test_vnni_gives_the_same_numbers(level):
    """The whole path with the instruction emulated; and code compiled for such a CPU contains the instruction itself."""
    pytest.importorskip("numba")
    settings = {**os.environ, "BESTFIRST_CPU_LEVEL": level}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=settings, check=False)
    assert done.returncode == 0, done.stderr
    _, wide, tall = registers.LEVELS[level].eight
    assert done.stdout.count("vpdpbusd") == wide * tall


def emulated_dot(builder: Any, x: Any, _: Any, weights: Any, total: Any) -> Any:
    """vpdpbusd by its definition, one product after another."""
    from llvmlite import ir

    octets = builder.bitcast(x, weights.type)
    number = ir.IntType(32)
    for lane in range(total.type.count):
        at = ir.Constant(number, lane)
        value = builder.extract_element(total, at)
        for i in range(4 * lane, 4 * lane + 4):
            left, right = (builder.extract_element(each, ir.Constant(number, i)) for each in (octets, weights))
            value = builder.add(value, builder.mul(builder.zext(left, number), builder.sext(right, number)))
        total = builder.insert_element(total, value, at)
    return total


def assembly_of_a_tile(module: Any) -> str:
    import llvmlite.binding as llvm
    from llvmlite import ir

    code = ir.Module()
    function = ir.Function(code, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 10), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    module._generate(builder, module.TALL, module.WIDE, *function.args)
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    cpu = "icelake-server" if module.LANES == 16 else "alderlake"
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu=cpu, opt=3)
    return target.emit_assembly(llvm.parse_assembly(str(code)))


def by_numba(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Like `product`, by the numba kernels themselves."""
    outputs, depth = -(-len(matrix) // int8.LANES) * int8.LANES, -(-x.shape[1] // 4) * 4
    packed, start, scales = np.empty(outputs * depth, np.int8), np.empty(outputs, np.int32), np.empty(outputs, np.float32)
    int8.pack(matrix, packed, start, scales)
    rows, row_scales = np.empty((len(x), registers.COPIES, depth), np.uint8), np.empty(len(x), np.float32)
    int8.quantise(x, rows, row_scales)
    out = np.empty((len(x), outputs), np.float32)
    int8.multiply(rows, row_scales, packed.reshape(outputs, depth), start, scales, out, 0)
    return out[:, : len(matrix)]


if __name__ == "__main__":
    from bestfirst.engine.steps.native import int8

    print(assembly_of_a_tile(int8))
    int8._dot = emulated_dot
    int8.SHAPE = int8.SHAPE._replace(tall=2)  # few tile shapes: the emulation takes long to compile
    int8.TALL = 2
    for shape in [(1, 5, 3), (3, 70, 100), (5, 64, 48)]:
        x, matrix = normal(shape[0], shape[1]), normal(shape[2], shape[1], seed=1)
        np.testing.assert_array_equal(by_numba(x, matrix), by_numpy(x, matrix))
