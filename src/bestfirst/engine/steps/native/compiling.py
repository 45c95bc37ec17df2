"""Compiling: kernels by numba, for the package (`ship`), or for this machine's CPU where the package has no library for it.

What is compiled on this machine is kept in a cache directory, in a file named by the kernels' sources and the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from . import registers
from .registers import PREFIX, SHIPPED, SIGNATURES, key, shipped

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
"""Replaces the part of numba's runtime that kernels use, allocating and freeing an array of their own. A MemInfo is a reference
count, two unused fields, the data's address, and its size in bytes."""

MESSAGE = "compiling kernels for this CPU: about half a minute, once ('bestfirst warmup' does it ahead of time)"
_engines: list[Any] = []  # kept alive, since their code is freed with them


def compiled_here() -> Any:
    """An LLVM engine with every entry, compiled for this machine's CPU now or by an earlier process."""
    _initialize()
    data = next((data for path in _cache_paths() if (data := read(path)) is not None), None)
    if data is None:
        data = _compile_and_keep()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    _engines.append(engine)
    return engine


def compiled_module() -> Any:
    """All entries as one LLVM module, for this CPU or the one that numba's environment variables name."""
    from numba import njit, types

    from .entries import ENTRIES

    scalars = {"int": types.int64, "float": types.float32}
    numbers = {"f": types.float32, "i": types.int32, "l": types.int64, "b": types.int8, "u": types.uint8}
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    modules = []
    for name, function in ENTRIES.items():
        kinds = [scalars.get(each) or types.Array(numbers[each[0]], int(each[1]), "C") for each in SIGNATURES[name].split()]
        fast = function.targetoptions.get("fastmath", False)
        compiled = njit(**options, fastmath=fast)(function.py_func)._compiler.compile(tuple(kinds), types.void)
        module = llvm.parse_bitcode(compiled.library._final_module.as_bitcode())
        module.get_function(compiled.fndesc.llvm_func_name).name = PREFIX + name
        modules.append(module)
    runtime = llvm.parse_assembly(RUNTIME)
    runtime.triple = modules[0].triple
    return reduce(lambda whole, more: whole.link_in(more) or whole, [runtime, *modules])


def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _compile_and_keep() -> bytes:
    if sys.stderr is not None:
        print(f"bestfirst: {MESSAGE}", file=sys.stderr, flush=True)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    data = machine.emit_object(compiled_module())
    if not any(write(path, data) for path in _cache_paths()):
        warnings.warn("compiled kernels cannot be kept: no directory for them can be written to (BESTFIRST_CACHE)", stacklevel=2)
    return data


def _cache_paths() -> Iterator[Path]:
    """Files in which this machine's compiled kernels may be kept, preferred ones first."""
    cpu = f"{llvm.get_host_cpu_name()} {sorted(registers.features())}".encode()
    name = f"{key(registers.LEVEL)}-{sha256(cpu).hexdigest()[:16]}.o"
    if named := os.environ.get("BESTFIRST_CACHE"):
        yield Path(named) / name
    with suppress(RuntimeError):  # the user has no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bestfirst" / name
    owner = os.getuid() if hasattr(os, "getuid") else "all"
    yield Path(tempfile.gettempdir(), f"bestfirst-kernels-{owner}") / name


def read(path: Path) -> bytes | None:
    """The object code in a file that is complete, in a directory owned by this user or root; else None: it will be executed."""
    try:
        if hasattr(os, "getuid") and path.parent.lstat().st_uid not in (os.getuid(), 0):
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if data[:32] == sha256(data[32:]).digest() else None


def write(path: Path, data: bytes) -> bool:
    """Write object code and its digest atomically. Returns whether that was possible."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(sha256(data).digest() + data)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


# -- for the package ---------------------------------------------------------------------------------------------------------


def ship() -> None:
    """Compile for every level, two at a time, and replace the libraries in the package."""
    code = f"from {__package__} import compiling; compiling.build()"
    old, running = {*SHIPPED.glob("*")}, []
    for name, level in registers.LEVELS.items():
        settings = {"BESTFIRST_CPU_LEVEL": name, "NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.more}
        running.append(subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **settings}))
        if len(running) % 2 == 0:
            running[-2].wait()
    if any(process.wait() for process in running):
        sys.exit("some levels could not be compiled")
    for path in old - {shipped(name) for name in registers.LEVELS}:
        path.unlink()


def build() -> None:
    """Make the library of the level that is compiled for (BESTFIRST_CPU_LEVEL), linked by the system's C compiler."""
    _initialize()
    level = registers.HERE
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=level.cpu, features=level.more, opt=3, reloc="pic", codemodel="default"
    )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "kernels.o")
        made.write_bytes(machine.emit_object(compiled_module()))
        script = Path(folder, "names")
        script.write_text(f"{{ global: {PREFIX}*; local: *; }};")
        flags = ["-shared", "-nostdlib", "-s", "-Wl,--gc-sections", "-Wl,--build-id=none", f"-Wl,--version-script={script}"]
        subprocess.run(["cc", *flags, "-o", str(shipped(registers.LEVEL)), str(made)], check=True)


if __name__ == "__main__":
    ship()
