"""Objects: kernels compiled ahead of time, so that neither numba is loaded nor anything compiled when a model is first used.

The package holds those of the levels of x86-64 (`registers`), made by `make kernels`. Elsewhere, or when the kernels' sources
have changed since, they are compiled by numba the first time, and kept where there is room for them. What is kept is known by the
sources and the CPU that it was made of.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from . import registers

HERE = Path(__file__).parent
SOURCES = ("kernels.py", "tiles.py", "registers.py", "entries.py")
SHIPPED = HERE / "built"
NAMES = {"v3": "x86-64-v3", "v4": "x86-64-v4"}  # the CPU that a level is compiled as
Objects = dict[str, tuple[str, list[str], bytes]]  # by entry: its symbol, its arguments' types ("i", "f"), and its object file

RUNTIME = """
declare ptr @malloc(i64)
declare void @free(ptr)
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %alignment) {
  %align = zext i32 %alignment to i64
  %beside = add i64 %align, 64
  %room = add i64 %size, %beside
  %whole = call ptr @malloc(i64 %room)
  %begin = ptrtoint ptr %whole to i64
  %after = add i64 %begin, %beside
  %mask = sub i64 0, %align
  %data = and i64 %after, %mask
  %pointer = inttoptr i64 %data to ptr
  %fields = getelementptr i64, ptr %whole, i64 1
  store i64 1, ptr %whole
  store i64 0, ptr %fields
  %third = getelementptr i64, ptr %whole, i64 2
  store i64 0, ptr %third
  %fourth = getelementptr i64, ptr %whole, i64 3
  store ptr %pointer, ptr %fourth
  %fifth = getelementptr i64, ptr %whole, i64 4
  store i64 %size, ptr %fifth
  ret ptr %whole
}
define void @NRT_MemInfo_call_dtor(ptr %whole) {
  call void @free(ptr %whole)
  ret void
}
"""
"""What kernels ask of numba's runtime: memory for an array of their own, and its end. An array is its count of users, two fields
for others' purposes, where its numbers are, and their size in bytes."""


@cache
def entries() -> Mapping[str, Any]:
    """Each entry (`entries.py`) as a function of Python's numbers; it lets other threads run meanwhile."""
    found = next((objects for path in _places() if (objects := read(path)) is not None), None)
    return _linked(_compile_and_keep() if found is None else found)


def _linked(objects: Objects) -> dict[str, Any]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(RUNTIME), machine)
    for _, _, data in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    kinds: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float}
    made = {}
    for name, (symbol, types, _) in objects.items():
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *(kinds[each] for each in types))
        made[name] = kind(engine.get_function_address(symbol))
    _engines.append(engine)
    return made


_engines: list[Any] = []  # whose code lives as long as they do
RESULT = ctypes.create_string_buffer(64)  # where an entry puts that it returns nothing, and why it failed, which it does not
NOWHERE = ctypes.addressof(RESULT)


# -- made, and kept ------------------------------------------------------------------------------------------------------


def compile_entries() -> Objects:
    """By numba, for this CPU or the one that its settings name."""
    from numba import njit, types

    from .entries import ENTRIES

    made: Objects = {}
    for function, signature in ENTRIES.items():
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        kernel = njit(**options)(function)
        compiled = kernel._compiler.compile(signature, types.void)
        _, _, (data, _) = compiled.library.serialize_using_object_code()
        letters = ["f" if each == types.float32 else "i" for each in signature]
        made[function.__name__] = (compiled.fndesc.llvm_func_name, letters, data)
    return made


def _compile_and_keep() -> Objects:
    message = "compiling kernels for this CPU: some 15 seconds, once ('bestfirst warmup' does it ahead of time)"
    if sys.stderr is not None:
        print(f"bestfirst: {message}", file=sys.stderr, flush=True)
    objects = compile_entries()
    for path in _places():
        if path.parent != SHIPPED and write(path, objects):
            return objects
    warnings.warn("compiled kernels cannot be kept: no directory for them can be written to (BESTFIRST_CACHE)", stacklevel=2)
    return objects


def key(level: str | None) -> str:
    """What objects are known by: the kernels' sources, and the CPU."""
    digest = sha256(b"".join((HERE / name).read_bytes().replace(b"\r\n", b"\n") for name in SOURCES))
    digest.update(f"{platform.machine()} {sys.platform} {level}".encode())
    if level is None:
        digest.update(f"{llvm.get_host_cpu_name()} {sorted(registers.features().items())}".encode())
    return digest.hexdigest()[:16]


def _places() -> Iterator[Path]:
    """Where objects may lie, the likeliest first."""
    name = f"{key(registers.LEVEL)}.o"
    yield SHIPPED / f"{sys.platform}-{platform.machine()}-{registers.LEVEL}-{name}"
    if named := os.environ.get("BESTFIRST_CACHE"):
        yield Path(named) / name
    with suppress(RuntimeError):  # nobody's home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bestfirst" / name
    owner = os.getuid() if hasattr(os, "getuid") else "all"
    yield Path(tempfile.gettempdir(), f"bestfirst-kernels-{owner}") / name


def read(path: Path) -> Objects | None:
    """Those of a file that is whole and this user's or the package's; None for any other: what lies in it will be run."""
    try:
        if path.parent != SHIPPED and hasattr(os, "getuid") and path.parent.lstat().st_uid not in (os.getuid(), 0):
            return None
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
        if header["sha256"] != sha256(body).hexdigest():
            return None
        return {name: (symbol, types, body[begin:end]) for name, (symbol, types, begin, end) in header["entries"].items()}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(path: Path, objects: Objects) -> bool:
    """Whether they could be written, in one piece."""
    body, placed = b"", {}
    for name, (symbol, types, data) in objects.items():
        begin = -(-len(body) // 16) * 16
        body = body.ljust(begin, b"\0") + data
        placed[name] = (symbol, types, begin, len(body))
    header = json.dumps({"entries": placed, "sha256": sha256(body).hexdigest()}).encode()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(len(header).to_bytes(8, "little") + header + body)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


def ship() -> None:
    """Compile for every level, and put what is made into the package in place of what was there."""
    import subprocess

    for old in SHIPPED.glob("*.o"):
        old.unlink()
    for level, cpu in NAMES.items():
        settings = {"BESTFIRST_CPU_LEVEL": level, "NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""}
        code = f"from {__package__} import objects; assert objects.write(next(objects._places()), objects.compile_entries())"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **settings}, check=True)


if __name__ == "__main__":
    ship()
