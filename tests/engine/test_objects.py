"""Kernels compiled ahead of time: they are those of these sources, load no compiler, and are not used when damaged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bestfirst.engine.steps.native import calls, registers
from bestfirst.engine.steps.native.registers import SIGNATURES

compiling = pytest.importorskip("bestfirst.engine.steps.native.compiling", reason="numba is not installed")


BYTES = {"quantise", "pack_bytes", "multiply_bytes"}


@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_all_layers_in_one_call_equal_the_layers_one_by_one(name):
    from bestfirst.engine.steps.bart import as_numpy, read_bart
    from bestfirst.engine.steps.native.decoder import NativeDecoder
    from bestfirst.models.reader import Prompt
    from engine.builders import ARCHITECTURES

    decoder = NativeDecoder(as_numpy(read_bart(ARCHITECTURES[name].build(seed=2))))
    assert decoder.whole is not None
    assert decoder.encoder is not None
    found = []
    for whole in (True, False):
        if not whole:
            decoder.whole = decoder.encoder.whole = None
        tree, sources = decoder.new_tree()
        decoder.add_inputs(None, [Prompt([5, 6, 7], ()), Prompt([8, 9], ())], sources)
        slots = tree.allocate(5)
        table = [(2, 0, slots[0], 0, 0), (2, 0, slots[1], 0, 1)]
        logits = [decoder.step(tree.rows(table, [1, 1]), tree, sources).copy()]
        table = [(7, 1, slots[2], slots[0], 0), (8, 1, slots[3], slots[0], 0), (9, 1, slots[4], slots[1], 1)]
        logits.append(decoder.step(tree.rows(table, [2, 1]), tree, sources).copy())
        found.append(np.concatenate(logits))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are shipped for Linux")
def test_shipped_libraries_have_the_functions_of_these_sources(monkeypatch):
    """If not, run 'make kernels'. Their other symbols are the C library's, of any version."""
    monkeypatch.setattr(registers.platform, "machine", lambda: "x86_64")
    made = {registers.shipped(name): level for name, level in registers.LEVELS.items()}
    assert set(registers.SHIPPED.iterdir()) == set(made)
    for path, level in made.items():
        names = {name.decode() for name in re.findall(rb"bestfirst_\w+", path.read_bytes())}
        expected = {*SIGNATURES} | BYTES if level.eight else {*SIGNATURES} - BYTES
        assert names == {registers.PREFIX + name for name in expected}
        assert not any(word in path.read_bytes() for word in (b"GLIBC", b"numba", b"Py_"))


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are shipped for Linux")
def test_shipped_libraries_load_neither_numba_nor_llvm():
    code = (
        "import sys, bestfirst; bestfirst.decode(bestfirst.load(dtype=sys.argv[1]), ['Ja.']);"
        "sys.exit(bool({'numba', 'llvmlite'} & sys.modules.keys()))"
    )
    for dtype in ("fp32", "int8"):
        subprocess.run([sys.executable, "-c", code, dtype], check=True)


def test_damaged_or_missing_objects_are_not_used(tmp_path):
    path = tmp_path / "some.o"
    assert compiling.read(path) is None
    assert compiling.write(path, b"12345")
    assert compiling.read(path) == b"12345"
    whole = path.read_bytes()
    for broken in (b"", whole[:-1], whole[:20], b"\xff" * 40, whole[:-2] + b"xy"):
        path.write_bytes(broken)
        assert compiling.read(path) is None
    assert not compiling.write(Path("/proc/nowhere/some.o"), b"12345")


def test_a_cpu_without_a_shipped_library_compiles_once(tmp_path, monkeypatch, capsys):
    """Two processes at once are safe: files appear whole. One entry is enough to show that compiled code runs."""
    from bestfirst.engine.steps.native import entries

    monkeypatch.setattr(registers, "LEVEL", None)
    monkeypatch.setattr(entries, "ENTRIES", {"norm": entries.ENTRIES["norm"]})
    monkeypatch.setattr(calls, "SIGNATURES", {"norm": SIGNATURES["norm"]})
    monkeypatch.setenv("BESTFIRST_CACHE", str(tmp_path / "kept"))
    for compiles in (True, False):
        linked = calls.linked(compiling.compiled_here().get_function_address)
        assert ("compiling kernels for this CPU" in capsys.readouterr().err) is compiles
        monkeypatch.setattr(calls, "entries", lambda linked=linked: linked)
        x, ones, zeros = np.array([[1.0, 3.0]], np.float32), np.ones(2, np.float32), np.zeros(2, np.float32)
        calls.norm(x, ones, zeros, np.float32(0), x)
        assert x.tolist() == [[-1, 1]]
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_the_cpu_level_follows_from_its_features(monkeypatch):
    monkeypatch.delenv("BESTFIRST_CPU_LEVEL", raising=False)
    for name, level in registers.LEVELS.items():
        monkeypatch.setattr(registers, "features", lambda level=level: {*level.needs, "sse2"})
        assert registers.level() == name
    monkeypatch.setattr(registers, "features", lambda: {"neon"})
    assert registers.level() is None


def test_warmup_prints_that_kernels_are_ready():
    ran = subprocess.run(
        [sys.executable, "-m", "bestfirst", "warmup"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout == "kernels are ready\n"
