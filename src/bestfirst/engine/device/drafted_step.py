# ruff: noqa: N803, N806  capitals are sizes
"""DraftedStep: speculative decoding on the device. Rows of a step may be each other's ancestors: drafts (kernels in
`draft_rows`)."""

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
from .rules import search_kind
from .state import State

CANDIDATES = 8  # tokens considered after each hypothesis
WIDEST = 16  # drafted rows of a level and input, and the largest beam that is drafted for
LOOKUP_DEPTH = 8  # most levels where drafts are looked up, which costs next to nothing
CHEAP_ROWS = 96  # rows of a step up to which another row costs next to nothing
FIRST_RATE, LEARNING_RATE = 0.8, 0.25  # acceptance rate that is assumed at first, and the weight of each input in its estimate
RETRY_AFTER = 32  # inputs after which drafts that did not pay are tried again
LOOKUP_COST = 0.02  # of a step: the cost of a draft without a model


@dataclass(frozen=True)
class DraftModels:
    """A model and its drafter by their own modules. `small`: None to look drafts up in what came before. `depth`: most tokens
    drafted ahead. To a session this is the model and its KV cache."""

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
    def models(self) -> list[OwnModules]:
        return [self.large] if self.small is None else [self.large, self.small]

    @property
    def bytes_of_a_token(self) -> int:
        return sum(each.bytes_of_a_token for each in self.models)

    @property
    def cost(self) -> float:
        """The cost of a drafted level, in steps of the larger model: estimated by the numbers of parameters."""
        sizes = [sum(weight.numel() for weight in each.model.parameters()) for each in self.models]
        return LOOKUP_COST if self.small is None else max(LOOKUP_COST, sizes[1] / sizes[0])

    def reach(self, lengths: int, source: int) -> None:
        for each in self.models:
            each.reach(lengths, source)

    def room(self, tokens: int, source: bool) -> list[Memories]:
        """KV caches of each model."""
        return [each.room(tokens, source) for each in self.models]

    def read_prompts(self, given: Packed, cells: torch.Tensor, source: list[Memories]) -> None:
        for each, arrays in zip(self.models, source, strict=True):
            each.read_prompts(given, cells, arrays)


def drafts_for(modules: OwnModules | None, decoding: Decoding) -> DraftModels | None:
    """The draft models for a model with these modules; None if the device cannot draft for it, or not with these settings. In
    searches level by level scored descendants would be taken for answers too early."""
    draft = decoding.draft
    if modules is None or not modules.language_model or decoding.deterministic or decoding.allowed is not None:
        return None
    plan = decoding.plan
    if search_kind(plan, decoding.objective) == BY_LEVEL.value or plan.k > WIDEST or not decoding.objective.plain:
        return None
    if isinstance(draft, SourceLookup) or draft == SourceLookup.name:
        return DraftModels(modules, None, min(getattr(draft, "most", LOOKUP_DEPTH), LOOKUP_DEPTH))
    if not isinstance(draft, SmallerModel) or not draft.model.on_gpu:
        return None
    small = own_modules(draft.model)  # type: ignore[arg-type]
    if small is None or not small.language_model or small.device != modules.device:
        return None
    same_tokens = small.model.get_input_embeddings().weight.shape[0] >= modules.vocabulary
    return DraftModels(modules, small, draft.depth) if same_tokens else None


class Depth:
    """How many tokens to draft ahead. If a token is accepted with probability p given that the one before was, and a level costs
    `cost` of a step, this is the d that maximises tokens over time, (1 + p + ... + p^d) / (1 + d cost)."""

    def __init__(self, most: int, cost: float) -> None:
        self.most, self.cost = most, cost
        self._rate = FIRST_RATE
        self._idle = 0
        self.now = self._best_depth()

    def note(self, tokens: int, steps: int) -> None:
        """Learn p from an input of `tokens` tokens in `steps` steps. While nothing is drafted, try again once in a while."""
        if self.now == 0:
            self._idle += 1
            self.now = int(self._idle % RETRY_AFTER == 0)
            return
        low, high = 0.0, 1.0
        for _ in range(20):
            p = (low + high) / 2
            low, high = (p, high) if _expected_tokens(p, self.now) < tokens / max(1, steps) else (low, p)
        self._rate += (low - self._rate) * LEARNING_RATE
        self.now = self._best_depth()

    def _best_depth(self) -> int:
        return max(range(self.most + 1), key=lambda d: _expected_tokens(self._rate, d) / (1 + d * self.cost))


def _expected_tokens(p: float, d: int) -> float:
    """1 + p + ... + p^d."""
    return sum(p**i for i in range(d + 1))


class DraftedStep(CapturedStep):
    """Runs the rows of a step and the drafts after them, D per input and level, in one forward pass of the large model. The small
    model's KV cache has the same nodes, so every row passes through it as well."""

    weights: OwnModules

    def __init__(self, state: State, drafts: Any) -> None:
        large_state = copy(state)
        large_state.memory, large_state.source = state.memory[0], state.source[0]
        super().__init__(large_state, drafts.large)
        self.drafts: DraftModels = drafts
        self.depth = Depth(drafts.depth, drafts.cost)
        shape, device = state.shape, drafts.device
        S, N = shape.inputs, shape.nodes
        self.width = min(2 * shape.k, WIDEST)
        self.candidates = min(CANDIDATES, drafts.vocabulary)
        self.draft_logprobs = torch.empty(N * self.candidates + S, device=device)
        self.draft_tokens = torch.zeros(N * self.candidates + S, dtype=torch.int32, device=device)
        self.small: CapturedStep | None = None
        if drafts.small is not None:
            small_state = copy(state)
            small_state.memory, small_state.source = state.memory[1], state.source[1]
            small_state.shape = replace(shape, successors=self.candidates, code=0, any_banned=False)
            small_state.logprob, small_state.token = self.draft_logprobs, self.draft_tokens
            small_state.child = torch.empty_like(self.draft_tokens)
            small_state.ends = torch.zeros(max(drafts.small.vocabulary, drafts.vocabulary), dtype=torch.int8, device=device)
            self.small = CapturedStep(small_state, drafts.small)

    def allocate_rows(self, most: int) -> None:
        S, depth, device = self.state.shape.inputs, self.drafts.depth, self.drafts.device
        level = S * self.width
        super().allocate_rows(most)
        self._step_rows = self._row_arrays()
        self._all_rows = self._extra_rows(most + depth * level)
        self._parents = torch.zeros(most + depth * level, dtype=torch.int32, device=device)
        if self.small is not None:
            self.small.allocate_rows(1)
            self._small_rows = self._extra_rows(most + level)  # rows of the step, and the last drafts before
        # drafted rows by level, and which of them belong to an input
        kinds = {"row_node": torch.int32, "row_input": torch.int32, "row_length": torch.int32, "parent": torch.int32}
        kinds |= {"row_token": torch.long, "row_position": torch.long, "value": torch.float64}
        self._levels = {name: torch.zeros(depth, level, dtype=kind, device=device) for name, kind in kinds.items()}
        self._late = {name: torch.zeros_like(arrays[0]) for name, arrays in self._levels.items()}
        self._used = torch.zeros(depth + 1, 8, dtype=torch.int32, device=device)
        self._of_input = torch.zeros(2, depth, S, dtype=torch.int32, device=device)

    def _row_arrays(self) -> dict[str, Any]:
        names = ("row_node", "row_input", "row_length", "row_entry", "row_token", "row_position", "state")
        return {name: getattr(self, name) for name in names}

    def _extra_rows(self, many: int) -> dict[str, Any]:
        """Row arrays of another set of rows than the step's, and a state that says which of them belong to an input."""
        super().allocate_rows(many)
        state = copy(self.state)
        state.first, state.grant = torch.zeros_like(state.first), torch.zeros_like(state.grant)
        return self._row_arrays() | {"state": state}

    def _level(self, j: int) -> dict[str, torch.Tensor]:
        """The row arrays of one level of drafts."""
        return {name: arrays[j] for name, arrays in self._levels.items()}

    def graph_key(self, rows: int, active: int) -> tuple[int, int, int]:
        """(rows of the step, levels drafted, inputs drafted for). No levels if rows are expensive or drafts seldom accepted."""
        inputs = min(power(active), self.state.shape.inputs)
        depth = min(self.depth.now, (CHEAP_ROWS - rows) // (inputs * self.width))
        return (rows, depth, inputs) if depth > 0 else (rows, 0, 0)

    def learn(self, result: Result) -> None:
        if self.depth.now > 0 and result.drafted == 0:
            return  # too many rows for drafts: this says nothing of their acceptance rate
        self.depth.note(max((len(each.tokens) for each in result.hypotheses), default=0), result.steps)

    def __call__(self, size: Any) -> None:
        R, depth, inputs = size
        vars(self).update(self._step_rows)
        if depth == 0:
            super().__call__(R)
            return
        self.search(R)
        self.enter(R)
        self._guess(R, depth, inputs * self.width)
        all_rows, W = R + depth * inputs * self.width, self.state.shape.successors
        self._unite(self._levels, depth, self._all_rows, self.state.counters, all_rows)
        vars(self).update(self._all_rows)
        self.keep_successors(self.logits(all_rows, chained=True))
        link_guesses[(all_rows,)](
            self.state.counters, self.row_node, self.row_token, self._parents,
            self.state.logprob, self.state.token, self.state.child, W, WP=power(W), num_warps=1,
        )  # fmt: skip

    def _guess(self, R: int, depth: int, level: int) -> None:
        """Draft level by level. The small model runs the last level only in the next step, together with its rows."""
        small = self.small
        self._used[0].copy_(self.state.counters)
        if small is not None:
            small.state.ends[: len(self.state.ends)] = self.state.ends
            self._unite(self._late, 1, self._small_rows, self._used[0], R + level)
            state = self._small_rows["state"]
            self._set_rows(small, self._small_rows, self._used[0], state.first, state.grant)
            small.keep_successors(small.logits(R + level, chained=True))
        for j in range(depth):
            if small is None:
                self._look_up(j, level if j else R)
            elif j:
                self._set_rows(small, self._level(j - 1), self._used[j], *self._of_input[:, j - 1])
                small.keep_successors(small.logits(level))
            self._propose(j, last=j == depth - 1)

    def _set_rows(
        self, small: CapturedStep, rows: dict[str, Any], used: torch.Tensor, first: torch.Tensor, grant: torch.Tensor
    ) -> None:
        """Make these the rows of the small model."""
        small.state.counters, small.state.first, small.state.grant = used, first, grant
        vars(small).update({name: rows[name] for name in ("row_node", "row_input", "row_length", "row_token", "row_position")})

    def _look_up(self, j: int, many: int) -> None:
        """Drafts for the rows of level j: what followed the last tokens where they occurred before."""
        st = self.state
        rows = self._step_rows if j == 0 else self._level(j - 1)
        look_up[(many,)](
            self._used[j], rows["row_node"], rows["row_input"], rows["row_length"], st.paths, st.node_token, st.source_tokens,
            st.source_start, st.source_length, self.draft_logprobs, self.draft_tokens, st.shape.lengths, self.candidates,
            SIZE=min(256, power(st.shape.source)), CP=power(self.candidates), num_warps=4,
        )  # fmt: skip

    def _propose(self, j: int, last: bool) -> None:
        """From level j, where 0 is the step's own rows, to the next."""
        st, shape, D, late = self.state, self.state.shape, self.width, self._late
        before = self._level(j - 1) if j else self._step_rows | {"value": st.value}
        after = self._level(j)
        propose[(shape.inputs,)](
            st.first, st.grant, before["row_node"], before["row_length"], before["value"], st.pick_length, st.pick_place,
            st.value, self.draft_logprobs, self.draft_tokens, st.limit, st.counters, st.stack, st.paths, st.node_token,
            st.node_input, st.hashes, st.guessed, st.rows, st.drafted, st.source_length, self._used[j + 1],
            *self._of_input[:, j], after["row_node"],
            after["row_input"], after["row_length"], after["row_token"], after["row_position"], after["value"], after["parent"],
            late["row_node"], late["row_length"], late["row_token"], late["row_position"],
            shape.inputs, shape.lengths, self.candidates, D, self.drafts.vocabulary, shape.picks,
            FIRST=j == 0, LAST=last, BEHIND=self.drafts.language_model, KP=power(shape.k), LP=power(shape.lengths),
            RP=power(max(shape.picks, D)), CP=power(self.candidates), DP=power(D), SP=power(shape.inputs), num_warps=4,
        )  # fmt: skip

    def _unite(self, guesses: dict[str, torch.Tensor], depth: int, rows: dict[str, Any], used: torch.Tensor, many: int) -> None:
        """Write the rows of the step and `depth` levels of drafts (or the last drafts of the step before) to `rows`, their number
        to `used`, and clear the rest of `many` rows."""
        st, S, step = self.state, self.state.shape.inputs, self._step_rows
        gather_rows[(S + 1,)](
            st.first, st.grant, step["row_node"], step["row_length"], step["row_token"], step["row_position"],
            guesses["row_node"], guesses["row_length"], guesses["row_token"], guesses["row_position"], guesses["parent"],
            st.node_input, st.guessed, used, rows["state"].first, rows["state"].grant, rows["row_node"], rows["row_input"],
            rows["row_length"], rows["row_token"], rows["row_position"], self._parents, depth, S * self.width, self.width, S,
            many, LATE=guesses is self._late, RP=32, SP=power(S), num_warps=1,
        )  # fmt: skip
