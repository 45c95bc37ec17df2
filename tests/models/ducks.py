"""Duck: a small user model that does not derive from `Model`, and the same model as a function."""

from __future__ import annotations

import numpy


def bigram(source, prefix):
    """Log-probabilities that depend on the input and the last token."""
    row = numpy.random.default_rng([source, *prefix[-1:]]).random(5)
    return numpy.log(row / row.sum())


class Duck:
    """Not a `Model`, but with the methods of one."""

    eos = 0

    def start(self, source):
        return (source, ())

    def score(self, batch):
        return [(bigram(state[0], prefix), (state[0], prefix)) for state, prefix in batch]

    def text(self, source, tokens):
        return f"{source}: {list(tokens)}"
