# ruff: noqa: N803, N806  capitals are sizes
"""Asking: a step that hands its rows' scores to Python on their way, where something is done to them that no kernel knows.

The decoder is one graph, what keeps the best successors another, and the host waits between them, once a step: slower than a
search that runs by itself, and still faster than a loop on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..edits import Edits, NotAnswered
from ..engine import Job
from ..processing import of_one_length
from .launch import Graphs
from .rows import ROWS
from .step import DeviceStep


def asking_step(step: DeviceStep, graphs: Graphs, R: int, edits: Edits, slots: Sequence[Job | None]) -> None:
    """A step of R rows. Work that is recorded may be done twice: the decoder's and the last, not the search's."""
    step.search(R)
    graphs.run(("scores", R), lambda: step.score(R))
    try:
        _ask(step, R, edits, slots)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotAnswered(error) from error
    graphs.run(("asked", R), lambda: step.keep(step.scores[R].clone(), edited=True))  # what is kept is overwritten


def _ask(step: DeviceStep, R: int, edits: Edits, slots: Sequence[Job | None]) -> None:
    """Hand over the rows in use, those of one length together. Within the prompt nothing is asked."""
    st, P, scores = step.state, step.state.shape.prompt, step.scores[R]
    n, *known = torch.cat((st.counters[ROWS : ROWS + 1], step.row_input[:R], step.row_length[:R])).tolist()
    inputs, lengths = known[:n], known[R : R + n]
    assert edits.asked is not None

    def group(rows: Sequence[int], some: torch.Tensor) -> torch.Tensor:
        some = some if edits.raw else some.log_softmax(-1)
        t = lengths[rows[0]]
        if t + 1 >= P:
            nodes = (step.row_node[:n] if len(rows) == n else step.row_node[list(rows)]).long()
            tokens = st.node_token[st.paths[nodes, : t + 1].long()][:, P:].long()
            some = edits.asked([_number(slots[inputs[row]]) for row in rows], tokens, some)  # type: ignore[misc]
        return some.log_softmax(-1) if edits.raw else some

    if n:
        scores[:n] = of_one_length(group, range(n), lengths, scores[:n])


def _number(job: Job | None) -> Any:
    assert job is not None
    return job.index
