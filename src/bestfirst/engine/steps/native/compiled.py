"""compiled: numba's compiler with a cache that never stands in the way.

Kernels are kept on disk where numba keeps them (NUMBA_CACHE_DIR, beside this file, the user's cache directory), else among the
system's temporary files, else in memory. A file that was cut short is written anew. Whatever is not as usual is told once.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache

_told = False


def compiled(**options: Any) -> Callable[[Any], Any]:
    """As `numba.njit(cache=True, **options)`, without the Python lock; a division by zero gives no number, as in numpy."""

    def compile_it(function: Any) -> Any:
        kernel = njit(nogil=True, error_model="numpy", **options)(function)
        try:
            kernel._cache = _cache(function)
        except (RuntimeError, OSError):  # nowhere: it stays in memory
            _tell("are compiled anew in every process: no directory for them can be written to (NUMBA_CACHE_DIR can name one)")
        return kernel

    return compile_it


class KernelCache(FunctionCache):
    """Where trouble with a file means that a kernel is compiled, not that nothing works.

    A kernel has those that it calls compiled into it: it is compiled anew when any file beside its own has changed.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        files = sorted(Path(function.__code__.co_filename).parent.glob("*.py"))
        self._cache_file._source_stamp = [(file.name, file.stat().st_mtime, file.stat().st_size) for file in files]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever a damaged file makes of itself
            _tell(f"are compiled anew this once: a file of theirs in {self.cache_path!r} is damaged ({type(error).__name__})")
            self._try(self.flush)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        self._try(lambda: super(KernelCache, self).save_overload(sig, data))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            _tell(f"are compiled anew in every process: {self.cache_path!r} cannot be written to ({error})")
            self.disable()


def _cache(function: Any) -> KernelCache:
    try:
        return KernelCache(function)
    except RuntimeError:  # none of numba's places will do
        with _kept_in(_temporary()):
            cache = KernelCache(function)
        place = os.path.dirname(cache.cache_path)
        _tell(f"are kept in {place!r}: their own and the user's directory cannot be written to (NUMBA_CACHE_DIR can name one)")
        return cache


def _temporary() -> Path:
    """A directory that is this user's alone: what lies in it will be run."""
    owner = os.getuid() if hasattr(os, "getuid") else "all"
    path = Path(tempfile.gettempdir(), f"bestfirst-kernels-{owner}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or (hasattr(os, "getuid") and (found.st_uid != owner or found.st_mode & 0o022)):
        raise PermissionError(f"{str(path)!r} is not this user's alone")
    return path


@contextmanager
def _kept_in(path: Path) -> Iterator[None]:
    settings: Any = config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(path)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _tell(what: str) -> None:
    global _told
    if not _told:
        _told = True
        warnings.warn(f"compiled kernels {what}", stacklevel=3)
