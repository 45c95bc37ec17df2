"""A context in which warnings are errors, but for those that other tests and libraries cause."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_warnings() -> Iterator[None]:
    """Raise on warnings, except for `ResourceWarning` (a file or socket that another test left open, reported whenever it is
    collected) and deprecations (a library's imports, reported on the first import)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in (ResourceWarning, DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        yield
