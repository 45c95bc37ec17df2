"""No warnings: what we warn of is an error, what others left behind is not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_warnings() -> Iterator[None]:
    """A warning raises. But not that of a file or a socket which another test left open, told whenever it is collected, nor that
    a library imports something deprecated, told to whoever is the first to need it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in (ResourceWarning, DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        yield
