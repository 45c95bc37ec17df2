# ruff: noqa: N803, N806  capitals are sizes
"""DraftedStep: a step whose rows may be each other's ancestors, because a drafter guessed what follows them (`draft_rows`)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...drafting import SourceLookup
from ...search import Result
from ...settings import Decoding
from ..smaller_model import SmallerModel
from .device_bart import Packed
from .device_step import CapturedStep
from .kernels.answers import BY_LEVEL
from .kernels.draft_rows import gather_rows, link_guesses, look_up, propose
from .kernels.matmul import power
from .model_check import own_modules
from .modules.own_modules import Memories, OwnModules
from .rules import kind_of
from .state import State

CANDIDATES = 8  # tokens that are looked at behind a hypothesis
WIDEST = 16  # guesses of a level and input, and the largest beam that is drafted for
LOOKED_UP = 8  # levels where guesses cost nothing
CHEAP = 96  # rows of a step up to which one more costs next to nothing
LIKELY, LEARNED = 0.8, 0.25  # how likely a guess is right at first, and the weight of each input in what is known of that
SELDOM = 32  # inputs after which guesses are tried again that did not pay
FREE = 0.02  # of a step: a guess that no model is asked for
TensorDict = dict[str, torch.Tensor]


@dataclass(frozen=True)
class DraftModels:
    """A model by its own modules, and who drafts for it: a smaller one by its own; if None, what came before is looked up.

    `depth`: tokens that are guessed ahead, at most. To a session it is the model and its memory.
    """

    large: OwnModules
    small: OwnModules | None
    depth: int

    @property
    def device(self) -> torch.device:
        return self.large.device

    @property
    def vocabulary(self) -> int:
        return self.large.vocabulary

    @property
    def language_model(self) -> bool:
        return self.large.language_model

    @property
    def both(self) -> list[OwnModules]:
        return [self.large] if self.small is None else [self.large, self.small]

    @property
    def bytes_of_a_token(self) -> int:
        return sum(each.bytes_of_a_token for each in self.both)

    @property
    def cost(self) -> float:
        """What a guess costs, in steps."""
        sizes = [sum(weight.numel() for weight in each.model.parameters()) for each in self.both]
        return FREE if self.small is None else max(FREE, sizes[1] / sizes[0])

    def reach(self, lengths: int, source: int) -> None:
        for each in self.both:
            each.reach(lengths, source)

    def room(self, tokens: int, source: bool) -> list[Memories]:
        """Of the model and of the smaller one."""
        return [each.room(tokens, source) for each in self.both]

    def read_prompts(self, given: Packed, cells: torch.Tensor, source: list[Memories]) -> None:
        for each, its in zip(self.both, source, strict=True):
            each.read_prompts(given, cells, its)


def drafts_for(modules: OwnModules | None, decoding: Decoding) -> DraftModels | None:
    """Who drafts on the device for a model that runs there by these modules, if anybody does. Level by level nobody does: what is
    known of longer hypotheses would be taken for answers too soon."""
    draft = decoding.draft
    if modules is None or not modules.language_model or decoding.deterministic or decoding.allowed is not None:
        return None
    plan = decoding.plan
    if kind_of(plan) == BY_LEVEL.value or plan.k > WIDEST or not decoding.objective.plain:
        return None
    if isinstance(draft, SourceLookup) or draft == SourceLookup.name:
        return DraftModels(modules, None, min(getattr(draft, "most", LOOKED_UP), LOOKED_UP))
    if not isinstance(draft, SmallerModel) or not draft.model.on_gpu:
        return None
    small = own_modules(draft.model)  # type: ignore[arg-type]
    if small is None or not small.language_model or small.device != modules.device:
        return None
    readable = small.model.get_input_embeddings().weight.shape[0] >= modules.vocabulary
    return DraftModels(modules, small, draft.depth) if readable else None


class Depth:
    """How many tokens are guessed ahead: where each is right with probability p, given that the one before was, and costs `cost`
    of a step, the d with the most tokens for the time, (1 + p + ... + p^d) / (1 + d cost)."""

    def __init__(self, most: int, cost: float) -> None:
        self.most, self.cost = most, cost
        self._right = LIKELY
        self._idle = 0
        self.now = self._best()

    def note(self, tokens: int, steps: int) -> None:
        """An input was decoded: so many tokens in so many steps. Where nothing is guessed, it is tried again once in a while."""
        if self.now == 0:
            self._idle += 1
            self.now = int(self._idle % SELDOM == 0)
            return
        low, high = 0.0, 1.0
        for _ in range(20):
            p = (low + high) / 2
            low, high = (p, high) if _powers(p, self.now) < tokens / max(1, steps) else (low, p)
        self._right += (low - self._right) * LEARNED
        self.now = self._best()

    def _best(self) -> int:
        return max(range(self.most + 1), key=lambda d: _powers(self._right, d) / (1 + d * self.cost))


def _powers(p: float, d: int) -> float:
    """1 + p + ... + p^d."""
    return sum(p**i for i in range(d + 1))


class DraftedStep(CapturedStep):
    """The rows of a step and what is guessed to follow them, D for each input and level, in one pass of the model.

    The smaller model keeps its keys and values by the nodes of the larger one, so every row passes through it as well.
    """

    weights: OwnModules

    def __init__(self, state: State, drafts: Any) -> None:
        """`drafts`: a `DraftModels`, of which the state has made room for both models."""
        mine = copy(state)
        mine.memory, mine.source = state.memory[0], state.source[0]
        super().__init__(mine, drafts.large)
        self.drafts: DraftModels = drafts
        self.depth = Depth(drafts.depth, drafts.cost)
        shape, device = state.shape, drafts.device
        S, N = shape.inputs, shape.nodes
        self.width = min(2 * shape.k, WIDEST)
        self.candidates = min(CANDIDATES, drafts.vocabulary)
        self.said = torch.empty(N * self.candidates + S, device=device)
        self.words = torch.zeros(N * self.candidates + S, dtype=torch.int32, device=device)
        self.small: CapturedStep | None = None
        if drafts.small is not None:
            theirs = copy(state)
            theirs.memory, theirs.source = state.memory[1], state.source[1]
            theirs.shape = replace(shape, successors=self.candidates, code=0, any_banned=False)
            theirs.logprob, theirs.token, theirs.child = self.said, self.words, torch.empty_like(self.words)
            theirs.ends = torch.zeros(max(drafts.small.vocabulary, drafts.vocabulary), dtype=torch.int8, device=device)
            self.small = CapturedStep(theirs, drafts.small)

    def rows(self, most: int) -> None:
        S, depth, device = self.state.shape.inputs, self.drafts.depth, self.drafts.device
        level = S * self.width
        super().rows(most)
        self._first = self._these()
        self._all = self._more_rows(most + depth * level)
        self._parents = torch.zeros(most + depth * level, dtype=torch.int32, device=device)
        if self.small is not None:
            self.small.rows(1)
            self._read = self._more_rows(most + level)  # by the smaller model: those of the step, and what it has not read yet
        # by level: what was guessed, and which of it is an input's
        kinds = {"row_node": torch.int32, "row_input": torch.int32, "row_length": torch.int32, "parent": torch.int32}
        kinds |= {"row_token": torch.long, "row_position": torch.long, "value": torch.float64}
        self._levels = {name: torch.zeros(depth, level, dtype=kind, device=device) for name, kind in kinds.items()}
        self._late = {name: torch.zeros_like(its[0]) for name, its in self._levels.items()}
        self._used = torch.zeros(depth + 1, 8, dtype=torch.int32, device=device)
        self._of_input = torch.zeros(2, depth, S, dtype=torch.int32, device=device)

    def _these(self) -> dict[str, Any]:
        names = ("row_node", "row_input", "row_length", "row_entry", "row_token", "row_position", "state")
        return {name: getattr(self, name) for name in names}

    def _more_rows(self, many: int) -> dict[str, Any]:
        """Room for rows beside those of the step, and which of them are an input's."""
        super().rows(many)
        state = copy(self.state)
        state.first, state.grant = torch.zeros_like(state.first), torch.zeros_like(state.grant)
        return self._these() | {"state": state}

    def size(self, rows: int, active: int) -> tuple[int, int, int]:
        """Rows of the step, levels that are guessed, and inputs that they are guessed for: none where rows are dear, or guesses
        are seldom right."""
        inputs = min(power(active), self.state.shape.inputs)
        depth = min(self.depth.now, (CHEAP - rows) // (inputs * self.width))
        return (rows, depth, inputs) if depth > 0 else (rows, 0, 0)

    def learn(self, result: Result) -> None:
        if self.depth.now > 0 and result.drafted == 0:
            return  # there was no room for guesses: nothing is known of how right they would have been
        self.depth.note(max((len(each.tokens) for each in result.hypotheses), default=0), result.steps)

    def __call__(self, size: Any) -> None:
        R, depth, inputs = size
        vars(self).update(self._first)
        if depth == 0:
            super().__call__(R)
            return
        self.search(R)
        self.enter(R)
        self._guess(R, depth, inputs * self.width)
        every, W = R + depth * inputs * self.width, self.state.shape.successors
        self._unite(self._levels, depth, self._all, self.state.counters, every)
        vars(self).update(self._all)
        self.keep(self.logits(every, chained=True))
        link_guesses[(every,)](
            self.state.counters, self.row_node, self.row_token, self._parents,
            self.state.logprob, self.state.token, self.state.child, W, WP=power(W), num_warps=1,
        )  # fmt: skip

    def _guess(self, R: int, depth: int, level: int) -> None:
        """Level by level, what may follow. What is guessed last the smaller model reads with the rows of the next step."""
        small = self.small
        self._used[0].copy_(self.state.counters)
        if small is not None:
            small.state.ends[: len(self.state.ends)] = self.state.ends
            self._unite(self._late, 1, self._read, self._used[0], R + level)
            self._hand(small, self._read, self._used[0], self._read["state"].first, self._read["state"].grant)
            small.keep(small.logits(R + level, chained=True))
        for j in range(depth):
            if small is None:
                self._look_up(j, level if j else R)
            elif j:
                self._hand(
                    small, {name: its[j - 1] for name, its in self._levels.items()}, self._used[j], *self._of_input[:, j - 1]
                )
                small.keep(small.logits(level))
            self._propose(j, last=j == depth - 1)

    def _hand(
        self, small: CapturedStep, rows: dict[str, Any], used: torch.Tensor, first: torch.Tensor, grant: torch.Tensor
    ) -> None:
        """Rows for the smaller model."""
        small.state.counters, small.state.first, small.state.grant = used, first, grant
        vars(small).update({name: rows[name] for name in ("row_node", "row_input", "row_length", "row_token", "row_position")})

    def _look_up(self, j: int, many: int) -> None:
        st = self.state
        rows = self._first if j == 0 else {name: its[j - 1] for name, its in self._levels.items()}
        look_up[(many,)](
            self._used[j], rows["row_node"], rows["row_input"], rows["row_length"], st.paths, st.node_token, st.source_tokens,
            st.source_start, st.source_length, self.said, self.words, st.shape.lengths, self.candidates,
            SIZE=min(256, power(st.shape.source)), CP=power(self.candidates), num_warps=4,
        )  # fmt: skip

    def _propose(self, j: int, last: bool) -> None:
        """From level j, where 0 are the step's own rows, to the next."""
        st, shape, D, late = self.state, self.state.shape, self.width, self._late
        before = {name: its[j - 1] for name, its in self._levels.items()} if j else self._first | {"value": st.value}
        after = {name: its[j] for name, its in self._levels.items()}
        propose[(shape.inputs,)](
            st.first, st.grant, before["row_node"], before["row_length"], before["value"], st.pick_length, st.pick_place,
            st.value, self.said, self.words, st.limit, st.counters, st.stack, st.paths, st.node_token, st.node_input, st.hashes,
            st.guessed, st.rows, st.drafted, st.source_length, self._used[j + 1], *self._of_input[:, j], after["row_node"],
            after["row_input"], after["row_length"], after["row_token"], after["row_position"], after["value"], after["parent"],
            late["row_node"], late["row_length"], late["row_token"], late["row_position"],
            shape.inputs, shape.lengths, self.candidates, D, self.drafts.vocabulary, shape.picks,
            FIRST=j == 0, LAST=last, BEHIND=self.drafts.language_model, KP=power(shape.k), LP=power(shape.lengths),
            RP=power(max(shape.picks, D)), CP=power(self.candidates), DP=power(D), SP=power(shape.inputs), num_warps=4,
        )  # fmt: skip

    def _unite(self, its: TensorDict, depth: int, rows: dict[str, Any], used: torch.Tensor, many: int) -> None:
        """The rows of the step and `depth` levels of guesses, or those of the step before, are the first of `many` rows."""
        st, S, mine = self.state, self.state.shape.inputs, self._first
        gather_rows[(S + 1,)](
            st.first, st.grant, mine["row_node"], mine["row_length"], mine["row_token"], mine["row_position"],
            its["row_node"], its["row_length"], its["row_token"], its["row_position"], its["parent"], st.node_input, st.guessed,
            used, rows["state"].first, rows["state"].grant, rows["row_node"], rows["row_input"], rows["row_length"],
            rows["row_token"], rows["row_position"], self._parents, depth, S * self.width, self.width, S, many,
            LATE=its is self._late, RP=32, SP=power(S), num_warps=1,
        )  # fmt: skip
