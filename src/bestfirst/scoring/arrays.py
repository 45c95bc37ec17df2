"""The two functions that numpy arrays and tensors spell differently. Neither library is imported before it is needed."""

from __future__ import annotations

from typing import Any


def log_softmax(x: Any) -> Any:
    """Normalised over the last axis; -inf stays -inf."""
    if hasattr(x, "log_softmax"):
        return x.log_softmax(-1)
    import numpy

    x = x - x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))


def log(x: Any) -> Any:
    """The natural logarithm of each element."""
    if hasattr(x, "log"):
        return x.log()
    import numpy

    return numpy.log(x)
