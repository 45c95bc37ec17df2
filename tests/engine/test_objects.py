"""Kernels that were compiled ahead of time: those of these sources, the same functions, and nothing that stands in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the kernels that they are compared with need numba")

from bestfirst.engine.steps.native import calls, kernels, objects, registers, tiles

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def ints(high: int, *shape: int, kind: Any = np.int32) -> Any:
    return RNG.integers(0, high, shape, kind)


ROWS, HEADS, SIZE, SLOTS, CONTEXT, SOURCES, LONGEST, K = 5, 2, 8, 13, 6, 3, 7, 4
D = HEADS * SIZE
SCALE, STARTS = np.float32(0.3), np.array([0, 2, 5])
NUMBERS: dict[str, tuple[Any, ...]] = {
    "own_attention": (
        floats(ROWS, 3 * D), floats(3 * D), floats(SLOTS, 2 * D), ints(SLOTS, SLOTS, CONTEXT), np.arange(1, 6, dtype=np.int32),
        ints(CONTEXT, ROWS), HEADS, SCALE, floats(ROWS, D),
    ),
    "cross_attention": (
        floats(ROWS, D), floats(D), floats(2, SOURCES, HEADS, LONGEST, SIZE), 1 + ints(LONGEST, SOURCES, kind=np.int64),
        ints(SOURCES, ROWS), SCALE, floats(ROWS, D),
    ),
    "self_attention": (floats(ROWS, 3 * D), floats(3 * D), STARTS, HEADS, SCALE, floats(ROWS, D)),
    "put": (floats(ROWS, 2 * D), floats(2 * D), STARTS, 1, floats(2, SOURCES, HEADS, LONGEST, SIZE)),
    "norm": (floats(ROWS, D), floats(D), floats(D), np.float32(1e-5), floats(ROWS, D)),
    "add_norm": (floats(ROWS, D), floats(ROWS, D), floats(D), floats(D), floats(D), np.float32(1e-5), floats(ROWS, D)),
    **{name: (floats(ROWS, D), floats(D)) for name in ("relu", "gelu", "gelu_tanh", "silu")},
    "embed": (ints(9, ROWS), ints(6, ROWS), floats(9, D), SCALE, floats(6, D), floats(ROWS, D)),
    "top": (floats(300, 8), np.array([3, 70, 400]), floats(ROWS, K), ints(9, ROWS, K, kind=np.int64)),
    "pack": (floats(64, D), 6, floats(64 * D)),
    "by_panels": (floats(ROWS, D), floats(64 * D), 512, tiles.ZEROS, floats(ROWS, 64)),
    "by_rows": (floats(11, D), floats(32 * D), tiles.ZEROS, floats(11, 32)),
}  # fmt: skip


WHOLE = {"encoder", "decoder"}  # held against transformers in test_compiled_model.py, and below against their parts


def test_every_entry_is_compared():
    assert {*NUMBERS, *WHOLE} == set(objects.entries())


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_all_layers_at_once_are_the_layers_one_by_one(name):
    from bestfirst.engine.steps.bart_modules import read_bart
    from bestfirst.engine.steps.native.bart import NativeDecoder
    from bestfirst.engine.steps.native_bart import as_numpy
    from engine.builders import ARCHITECTURES

    decoder = NativeDecoder(as_numpy(read_bart(ARCHITECTURES[name].build(seed=2))))
    assert decoder.whole is not None
    assert decoder.encoder is not None
    found = []
    for whole in (True, False):
        if not whole:
            decoder.whole = decoder.encoder.whole = None
        tree, sources = decoder.room()
        decoder.take_in([[5, 6, 7], [8, 9]], sources)
        slots = tree.allocate(5)
        table = [(2, 0, slots[0], 0, 0), (2, 0, slots[1], 0, 1)]
        logits = [decoder.step(tree.rows(table, [1, 1]), tree, sources).copy()]
        table = [(7, 1, slots[2], slots[0], 0), (8, 1, slots[3], slots[0], 0), (9, 1, slots[4], slots[1], 1)]
        logits.append(decoder.step(tree.rows(table, [2, 1]), tree, sources).copy())
        found.append(np.concatenate(logits))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_entry_is_the_kernel(name):
    mine, its = ([each.copy() if isinstance(each, np.ndarray) else each for each in NUMBERS[name]] for _ in range(2))
    getattr(calls, name)(*mine)
    getattr(kernels if hasattr(kernels, name) else tiles, name)(*its)
    for one, other in zip(mine, its, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="objects are shipped for Linux")
def test_what_is_shipped_is_of_these_sources(monkeypatch):
    """If not, 'make kernels' makes it anew."""
    monkeypatch.setattr(objects.platform, "machine", lambda: "x86_64")
    names = {f"linux-x86_64-{level}-{objects.key(level)}.o" for level in objects.NAMES}
    assert {path.name for path in objects.SHIPPED.glob("*.o")} == names
    for name in names:
        found = objects.read(objects.SHIPPED / name)
        assert found is not None
        assert set(found) == {*NUMBERS, *WHOLE}


def test_objects_that_are_damaged_or_not_there_are_not_used(tmp_path):
    path = tmp_path / "some.o"
    kept = {"f": ("symbol", ["i"], b"123"), "g": ("other", ["f", "i"], b"45")}
    assert objects.read(path) is None
    assert objects.write(path, kept)
    assert objects.read(path) == kept
    whole = path.read_bytes()
    for broken in (b"", whole[:-1], whole[:20], b"\xff" * 40, whole[:-2] + b"xy"):
        path.write_bytes(broken)
        assert objects.read(path) is None
    assert not objects.write(Path("/proc/nowhere/some.o"), kept)


def test_a_cpu_that_nothing_is_shipped_for_compiles_once(tmp_path, monkeypatch, capsys):
    """Where nothing can be kept, every time; two at once are no problem: files appear whole."""
    monkeypatch.setattr(registers, "LEVEL", None)
    monkeypatch.setattr(objects, "compile_entries", lambda: {"f": ("symbol", ["i"], b"123")})
    monkeypatch.setenv("BESTFIRST_CACHE", str(tmp_path / "kept"))
    objects._compile_and_keep()
    assert "compiling kernels for this CPU" in capsys.readouterr().err
    assert [objects.read(path) for path in objects._places() if path.exists()] == [{"f": ("symbol", ["i"], b"123")}]


def test_levels(monkeypatch):
    monkeypatch.delenv("BESTFIRST_CPU_LEVEL", raising=False)
    for has, level in (
        (registers.NEEDED["v4"] + registers.NEEDED["v3"], "v4"),
        (registers.NEEDED["v3"], "v3"),
        (("avx2",), None),
    ):
        monkeypatch.setattr(registers, "features", lambda has=has: dict.fromkeys(has, True))
        assert registers.level() == level


def test_warmup_says_that_it_is_done():
    ran = subprocess.run(
        [sys.executable, "-m", "bestfirst", "warmup"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout == "kernels are ready\n"
