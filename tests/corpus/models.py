"""A toy model for corpus jobs: it upper-cases its input, one token per character."""

from __future__ import annotations

from bestfirst import Model, Scored


class Upper(Model):
    """Raises on texts that contain `broken`."""

    eos = (0,)
    budget = None

    def start(self, source):
        if "broken" in source:
            raise ZeroDivisionError("no such text")
        return source.upper()

    def score(self, batch):
        out = []
        for text, prefix in batch:
            wanted = ord(text[len(prefix)]) if len(prefix) < len(text) else 0
            out.append(Scored([0.0 if token == wanted else -9.0 for token in range(96)], text))
        return out

    def text(self, source, tokens):
        return "".join(chr(token) for token in tokens if token)
