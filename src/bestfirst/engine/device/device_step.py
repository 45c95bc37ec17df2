# ruff: noqa: N803, N806  capitals are sizes
"""DeviceStep: the kernels around one forward pass, without waiting for the host. CapturedStep: with the model's own modules."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from ...search import Result
from ..engine import Job
from ..logits_edits import Edits, NotAnswered
from ..logits_processing import apply_by_length
from .admission import Admission, Reading
from .cuda_graphs import Graphs, overlapping
from .device_bart import DeviceLayer
from .kernels.answers import TEMPERATURE
from .kernels.attention_kernels import attend
from .kernels.beams import grow
from .kernels.logits_kernels import edit
from .kernels.matmul import empty_aligned, power
from .kernels.rows import BROKEN, ROWS, assign_rows, embed, share_rows, write_tokens
from .kernels.successors import GROUP, keep_best, keep_children, keep_given, lse_and_maxima, lse_and_maxima_part, sum_lse
from .modules.own_modules import OwnModules
from .modules.tree_attention import TreeRows
from .state import Shape, State

LARGEST_VOCABULARY = 16384  # that one program reads; a row of a larger one is read in parts
MOST_SUCCESSORS = 128
MOST_LOGITS = 1 << 28  # numbers in the logits of a step
SORTED, FEW = 1024, 64  # candidates in a trie sorted at a time, with the best so far; and up to which one sort is enough
BLOCK = 1024  # tokens of a row that are edited at a time


class DeviceStep:
    """A step of R rows: grow the beams, assign rows to inputs, run the decoder (`DeviceBart`), keep each row's best
    successors."""

    admission = Admission  # the class that admits inputs
    burst = 2, 4, 8  # steps between two looks of the host, for few, some and many inputs: steps after the end are wasted
    buckets: tuple[int, ...] = (16, 64, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144)  # rows of a step: a graph for each
    wide: tuple[int, ...] = (8192,)  # more buckets, for wide beams, where nearly all rows come to be needed

    def __init__(self, state: State, weights: Any) -> None:
        self.state = state
        self.weights: Any = weights
        self.logits_buffers: dict[int, torch.Tensor] = {}  # by rows of a step
        self.overlapping = overlapping(weights.device)

    @classmethod
    def buckets_for(cls, shape: Shape, vocabulary: int) -> tuple[int, ...]:
        """The row counts that a step may have, as far as there is memory for their logits."""
        return cls.buckets + tuple(rows for rows in cls.wide if shape.wide and rows * vocabulary <= MOST_LOGITS)

    def graph_key(self, rows: int, active: int) -> Any:
        """The argument to call this with for a step of so many rows of so many inputs; each has a graph of its own."""
        return rows

    def learn(self, result: Result) -> None:
        """Called with every result of a session that drafts; here there is nothing to learn."""

    def __call__(self, R: Any) -> None:
        self.search(R)
        self.keep_successors(self.decoder(R))

    def search(self, R: int) -> None:
        """Merge what the last step scored into the beams, and assign the rows of this step to hypotheses."""
        st, shape = self.state, self.state.shape
        S, L, W, picks, KP = shape.inputs, shape.lengths, shape.successors, shape.picks, power(shape.k)
        grow[(S,)](
            st.value, st.entry, st.tie, st.node, st.pushed, st.count, st.inside, st.head, st.scored,
            st.logprob, st.token, st.child, st.hashes, st.mark, st.turns, st.places,
            st.status, st.deepest, st.limit, st.rules, st.caps, st.norm, st.gain, st.answers, st.kept, st.bars,
            st.pick_length, st.pick_place, st.wants, st.counters, shape.n, L, W,
            MANY=shape.many, PICKS=picks, KP=KP, CP=min(power(W), 16), LP=power(L), TILE=shape.tile, CROWD=shape.crowd,
            KEEP=shape.keep, num_warps=1 if KP <= 8 else 2 if KP <= 128 else 8 if KP <= 1024 else 16,
            **self.overlapping,
        )  # fmt: skip
        share_rows[(1,)](
            st.wants, st.grant, st.first, st.counters, st.rules, R, S, shape.times, PICKS=picks, SP=power(S), num_warps=8,
            **self.overlapping,
        )  # fmt: skip
        assign_rows[(S,)](
            st.wants, st.grant, st.first, st.counters, st.pick_length, st.pick_place,
            st.entry, st.node, st.child, st.scored, st.stack,
            self.row_node, self.row_input, self.row_length, self.row_entry, st.rows, st.steps, L, PICKS=picks, KP=KP,
            num_warps=1 if picks <= 64 else 4, **self.overlapping,
        )  # fmt: skip

    def allocate_rows(self, most: int) -> None:
        """Allocate row arrays for steps of up to `most` rows."""
        device = self.weights.device
        self.row_node, self.row_input, self.row_length = (torch.zeros(most, dtype=torch.int32, device=device) for _ in range(3))
        self.row_entry = torch.zeros(most, dtype=torch.int64, device=device)

    def decoder(self, R: int) -> torch.Tensor:
        """Logits of R rows, (R, vocabulary)."""
        used = self.state.counters
        return self.weights.head(self.weights.run(self._embed(R), used, self._self_attention, self._cross_attention), used)

    def _embed(self, R: int) -> torch.Tensor:
        st, w, shape = self.state, self.weights, self.state.shape
        x = torch.empty(R, w.width, dtype=w.dtype, device=w.device)
        embed[(R,)](
            self.row_node, self.row_input, self.row_length, self.row_entry,
            st.counters, st.token, st.paths, st.node_token, st.node_input, st.hashes,
            w.embedding, w.positions, x, w.embed_scale, shape.lengths, shape.successors, w.width,
            LP=power(shape.lengths), DP=power(w.width), num_warps=2, **self.overlapping,
        )  # fmt: skip
        return x

    def _self_attention(self, x: torch.Tensor, index: int, layer: DeviceLayer) -> torch.Tensor:
        return self._attend(layer.qkv(x, self.state.counters), self.state.memory, index, layer, True)

    def _cross_attention(self, x: torch.Tensor, index: int, layer: DeviceLayer) -> torch.Tensor:
        return self._attend(layer.cross_q(x, self.state.counters), self.state.source, index, layer, False)

    def _attend(self, q: torch.Tensor, memory: torch.Tensor, index: int, layer: DeviceLayer, own: bool) -> torch.Tensor:
        st, w = self.state, self.weights
        out = torch.empty(len(q), w.width, dtype=w.dtype, device=w.device)
        attend[(len(q), w.heads)](
            st.counters, q, q.shape[1], memory, memory.shape[-1], index,
            self.row_node, self.row_input, self.row_length, st.paths, st.source_start, st.source_length,
            out, layer.scaling, st.shape.lengths, w.heads, w.size,
            OWN=own, FIRST=w.dtype != torch.float32, DP=power(w.size), BLOCK=16, num_warps=1, **self.overlapping,
        )  # fmt: skip
        return out

    def store_logits(self, R: int) -> None:
        """Write the logits of R rows to `logits_buffers`, for Python to edit them."""
        logits = self.decoder(R)
        if R not in self.logits_buffers:  # one address per size, for the graphs
            self.logits_buffers[R] = torch.empty(logits.shape, device=logits.device)
        self.logits_buffers[R].copy_(logits)

    def run_with_python_edits(self, R: int, graphs: Graphs, edits: Edits, slots: Sequence[Job | None]) -> None:
        """A step of R rows whose scores a Python function edits (`Edits.callback`). The decoder is one graph, the choice of
        successors another, and the host waits in between, once a step: slower than a search that runs by itself, still faster
        than a loop on the host. Graphs repeat their work when captured, which is harmless for these two; `search` runs
        outside of them."""
        self.search(R)
        graphs.run(("scores", R), lambda: self.store_logits(R))
        try:
            self._call_python(self.logits_buffers[R], R, edits, slots)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotAnswered(error) from error
        graphs.run(("asked", R), lambda: self.keep_successors(self.logits_buffers[R].clone(), edited=True))  # overwrites them

    def _call_python(self, scores: torch.Tensor, R: int, edits: Edits, slots: Sequence[Job | None]) -> None:
        """Edit the scores of the rows in use, all rows of one length in one call. Rows within the prompt are not edited."""
        st, P = self.state, self.state.shape.prompt
        n, *slots_and_lengths = torch.cat((st.counters[ROWS : ROWS + 1], self.row_input[:R], self.row_length[:R])).tolist()
        lengths = slots_and_lengths[R : R + n]
        numbers = [slots[slot].index for slot in slots_and_lengths[:n]]

        def edit_rows(rows: Sequence[int], part: torch.Tensor) -> torch.Tensor:
            part = part if edits.raw else part.log_softmax(-1)
            t = lengths[rows[0]]
            if t + 1 >= P:
                nodes = (self.row_node[:n] if len(rows) == n else self.row_node[list(rows)]).long()
                tokens = st.node_token[st.paths[nodes, : t + 1].long()][:, P:].long()
                part = edits.callback([numbers[row] for row in rows], tokens, part)  # type: ignore[misc]
            return part.log_softmax(-1) if edits.raw else part

        if n:
            scores[:n] = apply_by_length(edit_rows, range(n), lengths, scores[:n])

    def keep_successors(self, logits: torch.Tensor, edited: bool = False) -> None:
        """Write each row's best successors to its node's entries. `edited`: these are log-probabilities, edited already."""
        st, shape = self.state, self.state.shape
        R, V = logits.shape
        W, P = shape.successors, shape.prompt
        if shape.code > 0 and not edited:
            logits, edited = self._apply_edits(logits), True
        if shape.heated:
            logits = self._apply_temperatures(logits, edited)
        outputs = (self.row_node, self.row_length, st.logprob, st.token, st.child, st.ends)
        if shape.trie:
            logits, total = self._masked_and_summed(logits, edited)
            keep_children[(R,)](
                logits, logits.stride(0), total, st.counters, self.row_input, st.rules, *outputs, st.prompt, self.row_entry,
                st.trie_tokens, st.trie_first, st.trie_items, st.node_place, st.eos, V, W, P,
                WP=power(W), LANES=SORTED if W > SORTED else max(SORTED, 2 * power(W)), FEW=FEW,
                num_warps=4 if W <= SORTED else 8,
            )  # fmt: skip
            return
        if logits.is_cuda and GROUP <= V and W <= MOST_SUCCESSORS:
            total, maxima = self._survey(logits, edited)
            rows, groups = (st.counters, self.row_input, st.rules), maxima.shape[1]
            keep_best[(R,)](
                logits, logits.stride(0), total, maxima, *rows, *outputs, st.prompt, V, W, P,
                G=groups, C=GROUP, WP=power(W), num_warps=1 if groups <= 256 else 4, **self.overlapping,
            )  # fmt: skip
            return
        values, which, total = best(logits, W, st.banned if shape.any_banned else None)
        total = self._note_nan(total, edited)
        keep_given[(R,)](values, which, total, *outputs, st.prompt, W, P, WP=power(W), num_warps=4 if W <= 2048 else 8)

    def _masked_and_summed(self, logits: torch.Tensor, edited: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits with banned tokens masked, and the log-sum-exp of each row."""
        if logits.is_cuda and logits.shape[1] >= GROUP:
            return logits, self._survey(logits, edited)[0]
        total = self._note_nan(logits.float().logsumexp(-1), edited)
        banned = self.state.shape.any_banned
        return logits.masked_fill(self.state.banned.bool(), -inf) if banned else logits, total

    def _note_nan(self, total: torch.Tensor, edited: bool) -> torch.Tensor:
        """Set `BROKEN` if the log-sum-exp of a row in use is NaN. Edited rows are log-probabilities: theirs counts as 0."""
        counters = self.state.counters
        used = torch.arange(len(total), device=total.device) < counters[ROWS]
        counters[BROKEN : BROKEN + 1] |= (used & total.isnan()).any().int()
        return torch.zeros_like(total) if edited else total

    def _survey(self, logits: torch.Tensor, edited: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(R,) log-sum-exp and (R, groups) largest logit of each group of tokens; masks banned tokens in place."""
        st, (R, V), device = self.state, logits.shape, logits.device
        banned, groups = self.state.shape.any_banned, power(V) // GROUP
        total, maxima = torch.empty(R, device=device), torch.empty(R, groups, device=device)
        if V <= LARGEST_VOCABULARY:
            lse_and_maxima[(R,)](
                logits, logits.stride(0), total, maxima, st.banned_bits, st.counters, V,
                ANY_BANNED=banned, EDITED=edited, G=groups, C=GROUP, num_warps=8, **self.overlapping,
            )  # fmt: skip
            return total, maxima
        parts = power(V) // LARGEST_VOCABULARY
        sums = torch.empty(R, parts, device=device)
        lse_and_maxima_part[(R, parts)](
            logits, logits.stride(0), sums, maxima, st.banned_bits, st.counters, V, parts,
            ANY_BANNED=banned, G=groups // parts, C=GROUP, num_warps=8,
        )  # fmt: skip
        sum_lse[(R,)](sums, total, st.counters, parts, EDITED=edited, PP=power(parts), num_warps=1)
        return total, maxima

    def _apply_edits(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the rows after the edits of their inputs, (R, vocabulary)."""
        st, shape = self.state, self.state.shape
        R, V = logits.shape
        out = empty_aligned(R, V, self.state.logprob)
        edit[(R,)](
            logits, logits.stride(0), out, out.stride(0), st.counters,
            self.row_node, self.row_input, self.row_length, st.rules, st.programs, st.given,
            st.paths, st.node_token, V, shape.lengths, shape.prompt, shape.code, shape.given,
            LP=power(shape.lengths), BLOCK=min(BLOCK, power(V)), num_warps=4,
        )  # fmt: skip
        return out

    def _apply_temperatures(self, logits: torch.Tensor, edited: bool) -> torch.Tensor:
        """Logits over the temperature of their input; edited ones are log-probabilities and stay such. Each node stores by how
        much a token's log-probability at temperature 1 exceeds the temperature times the one here, which is the same for all
        tokens: so an answer's own log-probability follows from its value (`results.write_answers`)."""
        R, st, logits = len(logits), self.state, logits.float()
        bits = st.rules[self.row_input[:R].long(), TEMPERATURE.value]
        heat = torch.where(bits != 0, bits.view(torch.float32), 1.0)
        heated = logits / heat[:, None]
        heated_sums = heated.logsumexp(-1)
        st.cooled.index_copy_(0, self.row_node[:R].long(), heated_sums * heat - logits.logsumexp(-1))
        return torch.where((heat != 1)[:, None], heated - heated_sums[:, None], heated) if edited else heated


def best(logits: torch.Tensor, width: int, banned: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `width` best logits of each row and their tokens, and the log-sum-exp. Ties go to the smaller token on a CPU; on a GPU
    `topk` leaves open which of them are kept. `banned`: flags by token."""
    logits = logits.float()
    total = logits.logsumexp(-1)
    if banned is not None:
        logits = logits.masked_fill(banned.bool(), float("-inf"))
    if logits.device.type == "cpu":
        values, tokens = logits.sort(dim=-1, descending=True, stable=True)
        return values[:, :width].contiguous(), tokens[:, :width].contiguous(), total
    return (*logits.topk(width, -1), total)


class CapturedStep(DeviceStep):
    """A step that runs the model's own modules (`OwnModules`)."""

    admission = Reading
    burst = 1, 1, 1
    fixed = False  # whether the bits of a row depend on its own input alone
    buckets = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1536, 2048)
    wide = (4096, 8192)
    weights: OwnModules

    def allocate_rows(self, most: int) -> None:
        super().allocate_rows(most)
        self.weights.reach(self.state.shape.lengths, self.state.shape.source)
        self.row_token, self.row_position = (torch.zeros(most, dtype=torch.long, device=self.weights.device) for _ in range(2))

    def decoder(self, R: int) -> torch.Tensor:
        self.enter(R)
        return self.logits(R)

    def enter(self, R: int) -> None:
        """Write tokens, ancestors and hashes of the rows' nodes, and the rows' tokens and positions."""
        st, shape = self.state, self.state.shape
        write_tokens[(R,)](
            self.row_node, self.row_input, self.row_length, self.row_entry,
            st.counters, st.token, st.paths, st.node_token, st.node_input, st.hashes,
            st.source_length, self.row_token, self.row_position, shape.lengths, shape.successors,
            BEHIND=self.weights.language_model, LP=power(shape.lengths), num_warps=2,
        )  # fmt: skip

    def logits(self, R: int, *, chained: bool = False) -> torch.Tensor:
        """Logits of the first R rows, after `enter`, (R, vocabulary). `chained`: some rows are ancestors of others."""
        st = self.state
        rows = TreeRows(
            st.counters, self.row_node, self.row_input, self.row_length, st.paths, st.first, st.grant,
            st.source_start, st.source_length, st.shape.source, st.shape.picks, self.fixed, chained,
        )  # fmt: skip
        return self.weights.logits(self.row_token[:R], self.row_position[:R], rows, st.memory, st.source)
