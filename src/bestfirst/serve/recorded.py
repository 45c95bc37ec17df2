"""Recorded search: one that remembers what the model said, so that it can be repeated in the paper's order."""

from __future__ import annotations

from typing import Any

from ..search import Hypothesis, Search, Successors


class RecordedSearch:
    """Search as the search it holds; with others, and ahead of turn. `replay` then repeats it one hypothesis at a time.

    Strict order needs nothing that was not scored: whatever the order, those hypotheses had to be (`docs/algorithm.md`).
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self._successors: dict[tuple[int, ...], Successors] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.search, name)

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        self._successors[y.tokens] = successors
        self.search.commit(y, successors)

    def replay(self, search: Search) -> None:
        """Run another search of the same input, in strict order, without asking the model, for the sake of its trace."""
        width = int(self.search.width)  # the model may have been asked for more, on behalf of others
        while needed := search.frontier(1):
            values, tokens, logprobs, ending = self._successors[needed[0].tokens]
            search.commit(needed[0], Successors(values[:width], tokens[:width], logprobs and logprobs[:width], ending))
        search.result()
        search.dismantle()
