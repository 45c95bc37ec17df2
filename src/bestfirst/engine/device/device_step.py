# ruff: noqa: N803, N806  capitals are sizes
"""DeviceStep: everything that happens in one forward pass, as launches on the device; nothing in it waits for the host."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from ...search import Result
from ..engine import Job
from ..logits_edits import Edits, NotAnswered
from ..logits_processing import of_one_length
from .admission import Admission, Reading
from .cuda_graphs import Graphs, overlapping
from .device_bart import DeviceLayer as Layer
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

LARGEST_VOCABULARY = 16384  # that one program looks through; above it, a row is looked through in parts
MOST_SUCCESSORS = 128
MOST_LOGITS = 1 << 28  # of a step
SORTED, FEW = 1024, 64  # children in a trie that are sorted at once, beside the best so far; and where there are no more
BLOCK = 1024  # of a row that is edited


class DeviceStep:
    """A step of R rows: grow the beams, share out the rows, run the decoder on them, keep each row's best successors."""

    admission = Admission  # what lets inputs in
    burst = 2, 4, 8  # steps between two glances of the host, for few, some and many inputs: those after all is over are wasted
    buckets: tuple[int, ...] = (16, 64, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144)  # rows in a step: a graph for each
    wide: tuple[int, ...] = (8192,)  # and those of wide beams, all of which are needed

    def __init__(self, state: State, weights: Any) -> None:
        self.state = state
        self.weights: Any = weights
        self.scores: dict[int, torch.Tensor] = {}  # by rows of a step
        self.overlapping = overlapping(weights.device)

    @classmethod
    def buckets_for(cls, shape: Shape, vocabulary: int) -> tuple[int, ...]:
        """The rows that a step may have, as far as there is room for their logits."""
        return cls.buckets + tuple(rows for rows in cls.wide if shape.wide and rows * vocabulary <= MOST_LOGITS)

    def size(self, rows: int, active: int) -> Any:
        """What to call this with, for so many rows of so many inputs: there is a graph for each."""
        return rows

    def learn(self, result: Result) -> None:
        """An input was decoded."""

    def __call__(self, R: Any) -> None:
        self.search(R)
        self.keep(self.decoder(R))

    def search(self, R: int) -> None:
        """What the last step scored goes onto the beams; who is scored next."""
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

    def rows(self, most: int) -> None:
        """Room for so many rows in a step."""
        device = self.weights.device
        self.row_node, self.row_input, self.row_length = (torch.zeros(most, dtype=torch.int32, device=device) for _ in range(3))
        self.row_entry = torch.zeros(most, dtype=torch.int64, device=device)

    def decoder(self, R: int) -> torch.Tensor:
        """Logits of R rows, (R, vocabulary)."""
        used = self.state.counters
        return self.weights.head(self.weights.run(self._embed(R), used, self._own, self._cross), used)

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

    def _own(self, x: torch.Tensor, index: int, layer: Layer) -> torch.Tensor:
        return self._attend(layer.qkv(x, self.state.counters), self.state.memory, index, layer, True)

    def _cross(self, x: torch.Tensor, index: int, layer: Layer) -> torch.Tensor:
        return self._attend(layer.cross_q(x, self.state.counters), self.state.source, index, layer, False)

    def _attend(self, q: torch.Tensor, memory: torch.Tensor, index: int, layer: Layer, own: bool) -> torch.Tensor:
        st, w = self.state, self.weights
        out = torch.empty(len(q), w.width, dtype=w.dtype, device=w.device)
        attend[(len(q), w.heads)](
            st.counters, q, q.shape[1], memory, memory.shape[-1], index,
            self.row_node, self.row_input, self.row_length, st.paths, st.source_start, st.source_length,
            out, layer.scaling, st.shape.lengths, w.heads, w.size,
            OWN=own, FIRST=w.dtype != torch.float32, DP=power(w.size), BLOCK=16, num_warps=1, **self.overlapping,
        )  # fmt: skip
        return out

    def score(self, R: int) -> None:
        """Logits of R rows, to be looked at before their best successors are kept."""
        logits = self.decoder(R)
        if R not in self.scores:  # one place: a graph may look there
            self.scores[R] = torch.empty(logits.shape, device=logits.device)
        self.scores[R].copy_(logits)

    def ask(self, R: int, graphs: Graphs, edits: Edits, slots: Sequence[Job | None]) -> None:
        """A step of R rows that hands their scores to Python on the way, where something is done to them that no kernel knows.

        The decoder is one graph, what keeps the best successors another, and the host waits between them, once a step: slower
        than a search that runs by itself, and still faster than a loop on the host. Work that is recorded may be done twice: the
        decoder's and the last, not the search's.
        """
        self.search(R)
        graphs.run(("scores", R), lambda: self.score(R))
        try:
            self._hand_over(self.scores[R], R, edits, slots)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotAnswered(error) from error
        graphs.run(("asked", R), lambda: self.keep(self.scores[R].clone(), edited=True))  # what is kept is overwritten

    def _hand_over(self, scores: torch.Tensor, R: int, edits: Edits, slots: Sequence[Job | None]) -> None:
        """The rows in use, those of one length together. Within the prompt nothing is asked."""
        st, P = self.state, self.state.shape.prompt
        n, *known = torch.cat((st.counters[ROWS : ROWS + 1], self.row_input[:R], self.row_length[:R])).tolist()
        lengths = known[R : R + n]
        numbers = [slots[slot].index for slot in known[:n]]

        def group(rows: Sequence[int], some: torch.Tensor) -> torch.Tensor:
            some = some if edits.raw else some.log_softmax(-1)
            t = lengths[rows[0]]
            if t + 1 >= P:
                nodes = (self.row_node[:n] if len(rows) == n else self.row_node[list(rows)]).long()
                tokens = st.node_token[st.paths[nodes, : t + 1].long()][:, P:].long()
                some = edits.asked([numbers[row] for row in rows], tokens, some)  # type: ignore[misc]
            return some.log_softmax(-1) if edits.raw else some

        if n:
            scores[:n] = of_one_length(group, range(n), lengths, scores[:n])

    def keep(self, logits: torch.Tensor, edited: bool = False) -> None:
        """Each row's best successors, into its node's entries. `edited`: these are log-probabilities, as they are to be."""
        st, shape = self.state, self.state.shape
        R, V = logits.shape
        W, P = shape.successors, shape.prompt
        if shape.code > 0 and not edited:
            logits, edited = self._edited(logits), True
        if shape.heated:
            logits = self._heated(logits, edited)
        where = (self.row_node, self.row_length, st.logprob, st.token, st.child, st.ends)
        if shape.trie:
            logits, total = self._summed(logits, edited)
            keep_children[(R,)](
                logits, logits.stride(0), total, st.counters, self.row_input, st.rules, *where, st.prompt, self.row_entry,
                st.trie_tokens, st.trie_first, st.trie_items, st.node_place, st.eos, V, W, P,
                WP=power(W), LANES=SORTED if W > SORTED else max(SORTED, 2 * power(W)), FEW=FEW,
                num_warps=4 if W <= SORTED else 8,
            )  # fmt: skip
            return
        if logits.is_cuda and GROUP <= V and W <= MOST_SUCCESSORS:
            total, maxima = self._survey(logits, edited)
            rows, groups = (st.counters, self.row_input, st.rules), maxima.shape[1]
            keep_best[(R,)](
                logits, logits.stride(0), total, maxima, *rows, *where, st.prompt, V, W, P,
                G=groups, C=GROUP, WP=power(W), num_warps=1 if groups <= 256 else 4, **self.overlapping,
            )  # fmt: skip
            return
        values, which, total = best(logits, W, st.banned if shape.any_banned else None)
        total = self._finite(total, edited)
        keep_given[(R,)](values, which, total, *where, st.prompt, W, P, WP=power(W), num_warps=4 if W <= 2048 else 8)

    def _summed(self, logits: torch.Tensor, edited: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits without what is banned, and each row's log-sum-exp."""
        if logits.is_cuda and logits.shape[1] >= GROUP:
            return logits, self._survey(logits, edited)[0]
        total = self._finite(logits.float().logsumexp(-1), edited)
        banned = self.state.shape.any_banned
        return logits.masked_fill(self.state.banned.bool(), -inf) if banned else logits, total

    def _finite(self, total: torch.Tensor, edited: bool) -> torch.Tensor:
        """Note whether the log-sum-exp of a row in use is no number. Edited rows are log-probabilities: theirs counts as 0."""
        counters = self.state.counters
        used = torch.arange(len(total), device=total.device) < counters[ROWS]
        counters[BROKEN : BROKEN + 1] |= (used & total.isnan()).any().int()
        return torch.zeros_like(total) if edited else total

    def _survey(self, logits: torch.Tensor, edited: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's log-sum-exp, and the greatest logit of each of its groups of tokens; what is banned is overwritten."""
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

    def _edited(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the rows, with the edits of their inputs."""
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

    def _heated(self, logits: torch.Tensor, edited: bool) -> torch.Tensor:
        """Logits at their inputs' temperatures; edited ones are log-probabilities and stay such.

        Nodes are told by how much a token's own log-probability is more than the temperature times what it counts here: the same
        for all tokens. So an answer's own is known from its value (`results.write_answers`).
        """
        R, st, logits = len(logits), self.state, logits.float()
        bits = st.rules[self.row_input[:R].long(), TEMPERATURE.value]
        heat = torch.where(bits != 0, bits.view(torch.float32), 1.0)
        heated = logits / heat[:, None]
        totals = heated.logsumexp(-1)
        st.cooled.index_copy_(0, self.row_node[:R].long(), totals * heat - logits.logsumexp(-1))
        return torch.where((heat != 1)[:, None], heated - totals[:, None], heated) if edited else heated


def best(logits: torch.Tensor, width: int, banned: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `width` best logits of each row and their tokens, ties to the smaller, and the log-sum-exp of all."""
    logits = logits.float()
    total = logits.logsumexp(-1)
    if banned is not None:
        logits = logits.masked_fill(banned.bool(), float("-inf"))
    if logits.device.type == "cpu":
        values, tokens = logits.sort(dim=-1, descending=True, stable=True)
        return values[:, :width].contiguous(), tokens[:, :width].contiguous(), total
    return (*logits.topk(width, -1), total)


class CapturedStep(DeviceStep):
    """The model's own modules on the rows of a step."""

    admission = Reading
    burst = 1, 1, 1
    fixed = False  # whether a row's bits depend on its own input alone
    buckets = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1536, 2048)
    wide = (4096, 8192)
    weights: OwnModules

    def rows(self, most: int) -> None:
        super().rows(most)
        self.weights.reach(self.state.shape.lengths, self.state.shape.source)
        self.row_token, self.row_position = (torch.zeros(most, dtype=torch.long, device=self.weights.device) for _ in range(2))

    def decoder(self, R: int) -> torch.Tensor:
        self.enter(R)
        return self.logits(R)

    def enter(self, R: int) -> None:
        """Nodes, tokens and positions of the rows."""
        st, shape = self.state, self.state.shape
        write_tokens[(R,)](
            self.row_node, self.row_input, self.row_length, self.row_entry,
            st.counters, st.token, st.paths, st.node_token, st.node_input, st.hashes,
            st.source_length, self.row_token, self.row_position, shape.lengths, shape.successors,
            BEHIND=self.weights.language_model, LP=power(shape.lengths), num_warps=2,
        )  # fmt: skip

    def logits(self, R: int, *, chained: bool = False) -> torch.Tensor:
        """Of the first R rows, whose tokens and positions are known. `chained`: some are the ancestors of others."""
        st = self.state
        rows = TreeRows(
            st.counters, self.row_node, self.row_input, self.row_length, st.paths, st.first, st.grant,
            st.source_start, st.source_length, st.shape.source, st.shape.picks, self.fixed, chained,
        )  # fmt: skip
        return self.weights.logits(self.row_token[:R], self.row_position[:R], rows, st.memory, st.source)
