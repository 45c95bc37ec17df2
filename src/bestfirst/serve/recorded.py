"""Recorded search: one that remembers what the model said, so that it can be repeated in the paper's order."""

from __future__ import annotations

from ..search import Hypothesis, Result, Search, Successors


class RecordedSearch:
    """Search as the search it holds; with others, and ahead of turn. `replay` then repeats it one hypothesis at a time.

    Strict order needs nothing that was not scored: whatever the order, those hypotheses had to be (`docs/algorithm.md`).
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.root = search.root
        self.whole_levels = search.whole_levels
        self.level_rows = search.level_rows
        self.width = search.width
        self.rows = search.rows
        self._successors: dict[tuple[int, ...], Successors] = {}

    def frontier(self, m: int) -> list[Hypothesis]:
        return self.search.frontier(m)

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        self._successors[y.tokens] = successors
        self.search.commit(y, successors)
        self.rows = self.search.rows

    def result(self) -> Result:
        return self.search.result()

    def dismantle(self) -> None:
        self.search.dismantle()

    def replay(self, search: Search) -> None:
        """Run another search of the same input, in strict order, without asking the model, for the sake of its trace."""
        width = int(self.width)  # the model may have been asked for more, on behalf of others
        while needed := search.frontier(1):
            values, tokens, logprobs, ending = self._successors[needed[0].tokens]
            search.commit(needed[0], Successors(values[:width], tokens[:width], logprobs and logprobs[:width], ending))
        search.result()
        search.dismantle()
