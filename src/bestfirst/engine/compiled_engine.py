"""CompiledEngine: a `HostEngine` that runs common searches in compiled code, together with the forward pass.

One call runs many steps (`steps/native/searches.py`), without Python in between. Rows are scheduled as in `HostEngine`, so
answers, calls, rows and steps are the same (`tests/engine/test_compiled_engine.py`). All other jobs, such as traced ones, run as
in `HostEngine`; so do inputs with drafts, if drafting is faster for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from math import ceil, inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..constraints.trie import Trie
from ..drafting import MAX_DRAFT_TOKENS
from ..scoring import GNMT, LengthNormalized
from ..search import Answer, Context, LevelSearch, Patience, Result, StepSearch, StrictSearch, check_settings
from ..search.policy import Policy
from ..settings import Decoding
from ..strategies import FirstFinished, HuggingFaceStep
from .engine import Job, Running
from .host import HostEngine, suitable_budget
from .steps.native import search_plan as s
from .steps.native.calls import at
from .steps.native.decoder import MULTIPLE, WIDE, NativeDecoder
from .steps.native.search_memory import SearchMemory, StepMemory
from .tree_scorer import TreeScorer, not_finite

if TYPE_CHECKING:
    from .drafts import Drafting

MAX_K = WIDE - 16  # largest beam: WIDE bounds the successors, of which some may end
STEPS_PER_CALL = 8  # an interrupt (Ctrl+C) is handled between calls


class CompiledSearch:
    """One input's search in compiled code; its state is in `memory`. It runs as the Python search `runs_as` does."""

    whole_levels = False
    state: Any  # the scorer's: a compiled search is its own root

    def __init__(self, job: Job, eos: Collection[int], runs_as: type) -> None:
        decoding, plan, score = job.decoding, job.decoding.plan, job.decoding.objective
        self.context = Context(job.n_max, job.source.length)
        check_settings(plan, score, self.context, decoding.nbest)
        ends, complete = frozenset(decoding.ending(eos)), job.n_max if decoding.accept_truncated else None
        k = int(plan.k)
        most = k * (len(ends) * (job.n_max + 2) + k)  # answers there can be, so that a large n-best takes no memory
        self.memory = SearchMemory(
            k=k, n=min(decoding.nbest, most), n_max=job.n_max, keep=plan.finished == "keep", complete=complete, ends=ends
        )  # fmt: skip
        if decoding.allowed is not None:
            self.memory.under(decoding.allowed, ends)  # type: ignore[arg-type]
        self.root, self.score, self.strategy = self, score, plan
        self.width, self.level_rows, self.runs_as = self.memory.width, int(self.memory.head[s.LEVEL_ROWS]), runs_as
        if runs_as is StepSearch:
            self.memory.until_step(norms(score, job.n_max), max(decoding.nbest, k))
        elif runs_as is LevelSearch:
            enough = plan.stop.enough(plan, self.score)  # type: ignore[attr-defined]
            stop = s.AT_LEAD if isinstance(plan.stop, FirstFinished) and score.value_only else s.AT_ENOUGH
            self.memory.by_levels(norms(score, job.n_max), stop, 1 << 60 if enough == inf else ceil(enough))

    @property
    def rows(self) -> int:
        return int(self.memory.head[s.SCORED])

    def certified(self) -> list[Answer]:
        """The certain answers; none before the end for searches that rank them by score."""
        certain = self.runs_as is StrictSearch or self.memory.head[s.NEEDED] < 0
        return [self._answer(*each) for each in self.memory.answers] if certain else []

    def _answer(self, tokens: tuple[int, ...], value: float) -> Answer:
        return Answer(tokens, self.score.final(value, len(tokens), self.context) if tokens else value, value)

    def result(self) -> Result:
        answers = self.certified()
        return Result(
            hypotheses=answers,
            calls=int(self.memory.head[s.CALLS]),
            rows=self.rows,
            exact=self.strategy.exact and self.score.exact(self.strategy.finished),
            status="complete" if answers else "incomplete",
            partial=None if answers else self._answer(*self.memory.deepest),
        )

    def dismantle(self) -> None:
        """Breaks the reference to itself, the only cycle."""
        del self.root


def compiled_as(job: Job) -> type | None:
    """The Python search that compiled code runs for this job as well; None if it does not support the job."""
    decoding, plan, score = job.decoding, job.decoding.plan, job.decoding.objective
    unsupported = decoding.must_contain, decoding.stop_strings, decoding.min_length, decoding.max_calls, job.begin, job.trace
    if any(unsupported) or not score.plain or plan.k > MAX_K:
        return None
    by_length = type(score) in (LengthNormalized, GNMT)  # a value divided by a function of the length
    if StrictSearch.takes(plan, score):
        return StrictSearch
    if by_length and type(plan.stop) is HuggingFaceStep and StepSearch.takes(plan, score):
        return StepSearch
    if (by_length or score.value_only) and type(plan.stop) in (Patience, FirstFinished) and LevelSearch.takes(plan, score):
        policy = Policy(plan, score)
        return LevelSearch if policy.prunes and policy.relies_on_bound and not policy.whole_levels else None
    return None


def norms(score: Any, n_max: int) -> Any:
    """(2, n_max + 2): by length, the divisors of a value for its score and for its bound; 1 in the last column."""
    return _norms(type(score), score.alpha, n_max) if isinstance(score, LengthNormalized) else np.ones((2, n_max + 2))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _norms(kind: Any, alpha: float, n_max: int) -> Any:
    score, lengths = kind(alpha), range(n_max + 1)
    bounds = [score.norm(length + 1 if score.monotonic else n_max) for length in lengths]
    return np.array([[*(score.norm(length) for length in lengths), 1.0], [*bounds, 1.0]])


class CompiledEngine(HostEngine):
    """Runs searches on a compiled decoder, all compiled or all in Python at a time."""

    scorer: TreeScorer

    @staticmethod
    def takes(scorer: Any, decoding: Decoding) -> bool:
        """Whether compiled code supports the model, the score and everything done to log-probabilities."""
        decoder = getattr(getattr(scorer, "runner", None), "decoder", None)
        return (
            isinstance(decoder, NativeDecoder)
            and decoder.whole is not None
            and (decoder.eight_bits or decoder.tiled)
            and scorer.score.plain
            and not scorer.score.needs
            and scorer.process is None
            and decoding.max_cache_tokens == inf
        )

    def __init__(self, scorer: TreeScorer, decoding: Decoding, drafting: Drafting | None = None) -> None:
        super().__init__(scorer, decoding, drafting)
        self._decoder: NativeDecoder = scorer.runner.decoder
        self._banned = np.array(scorer.model.banned, np.int64)
        self._memory = StepMemory(0)
        self._describe_projection()
        self._max_positions = 1  # path length that memory is allocated for
        self._compiles = True  # until a job arrives that is not compiled; with a drafter, chosen anew when the engine is idle

    def submit(self, *jobs: Job) -> None:
        if self.drafting is not None and jobs:
            alone = not self._by_job
            drafts = self.drafting.pays(jobs, self.budget, alone=alone, measured=self.decoding.budget is None)
            self._compiles = not drafts if alone else self._compiles
        super().submit(*jobs)
        if self._compiles and not all(isinstance(running.search, CompiledSearch) for running in self._by_job.values()):
            self._compiles = False
            for place, running in enumerate(self._waiting):
                if isinstance(running.search, CompiledSearch):  # others keep their search: a trace is recorded once
                    if running.drafts is not None:
                        running.drafts.close(())
                    self._waiting[place] = self._by_job[running.job] = self._prepare(running.job)

    def _prepare(self, job: Job) -> Running:
        runs_as = compiled_as(job) if self._compiles and self._compiles_constraint(job.decoding) else None
        if runs_as is None:
            return super()._prepare(job)
        drafts = None if self.drafting is None else self.drafting.start(job)
        return Running(job, CompiledSearch(job, self.scorer.eos, runs_as), drafts=drafts)  # type: ignore[arg-type]

    def _compiles_constraint(self, decoding: Decoding) -> bool:
        """Whether the constraint, if any, is a trie that compiled code can read, with an end token behind each item."""
        trie = decoding.allowed
        if trie is None:
            return True
        ended = bool(decoding.ending(self.scorer.eos))
        return ended and type(trie) is Trie and trie.narrow and trie.largest < self.scorer.vocabulary

    def _speculation_outcomes(self, running: Running) -> list[tuple[int, bool]]:
        if not isinstance(running.search, CompiledSearch):
            return super()._speculation_outcomes(running)
        return running.search.memory.guesses if self._submitted == 1 else []

    def step(self) -> Iterator[tuple[Job, Result]]:
        if not self._compiles and not any(isinstance(running.search, CompiledSearch) for running in self._active):
            yield from super().step()
            return
        if self.decoding.budget is None:
            self.budget = suitable_budget(self.scorer.budget(), self.decoding)
        if self._compiles:
            self._admit()
        if not self._active:
            return
        self._stats.in_flight = max(self._stats.in_flight, len(self._active))
        searches = [running.search.memory for running in self._active]  # type: ignore[attr-defined]
        with self.scorer.runner.lock:
            steps, last = self._run_steps(searches)
        if steps > (last > 0):  # there was a step before the one that found finished searches
            self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens() - self._memory.spare - last)
        for running, search in zip([*self._active], searches, strict=True):
            if search.head[s.OVER] > 0:
                self._active.remove(running)
                yield running.job, self._finish(running)
        self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens() - self._memory.spare)

    def _finish(self, running: Running) -> Result:
        if isinstance(running.search, CompiledSearch):
            head = running.search.memory.head
            running.steps, running.speculated = int(head[s.STEPS]), int(head[s.GUESSED])
        result = super()._finish(running)
        if self.drafting is not None:
            self.drafting.record_time(result, last=not self._by_job, drafted=not self._compiles)
        return result

    def _needed_prefixes(self, running: Running) -> Iterable[tuple[int, ...]]:
        search = running.search
        return search.memory.needed(MAX_DRAFT_TOKENS) if isinstance(search, CompiledSearch) else super()._needed_prefixes(running)

    def _release(self, running: Running) -> None:
        if isinstance(running.search, CompiledSearch):
            running.search.root.state[0].slots += running.search.memory.slots
        super()._release(running)

    # -- steps -------------------------------------------------------------------------------------------------------------

    def _run_steps(self, searches: list[SearchMemory]) -> tuple[int, int]:
        """Runs up to STEPS_PER_CALL steps, until a search finishes. Returns their number, and the rows of the step that found it
        finished."""
        runner, numbers = self.scorer.runner, self._step_numbers(searches)
        work, steps = self._decoder.workspace.of(self._memory.rows), 0
        while True:
            started = perf_counter()
            table = self._memory.table
            last = self._decoder.whole.search(numbers, table, runner.tree, runner.sources, work, self._max_positions)  # type: ignore[union-attr]
            runner.seconds += perf_counter() - started
            steps += int(numbers[s.STEPS_RUN])
            self._stats.rows += int(numbers[s.ROWS_RUN])
            if numbers[s.REASON] == s.NOT_FINITE:
                place, node = self._memory.broken()
                raise not_finite(searches[place].tokens(node))
            if numbers[s.REASON] != s.MORE_ROOM or steps >= STEPS_PER_CALL:
                self._stats.steps += steps
                return steps, last
            self._reserve(searches)

    def _step_numbers(self, searches: list[SearchMemory]) -> Any:
        """The step's parameters and buffers that all searches share, as compiled code reads them."""
        memory, free, width = self._memory, self._cheap_rows(), max(search.width for search in searches)
        rows = min(self.budget.rows, sum(running.search.level_rows for running in self._active))
        if rows > memory.rows:
            memory.make_room(max(rows, min(self.budget.rows, 2 * memory.rows)))
        for running, search in zip(self._active, searches, strict=True):
            sentence = running.search.root.state[0]
            search.head[s.START : s.PAUSED + 1] = (
                sentence.start, sentence.offset, sentence.prompt_slot, sentence.place, running.job.paused
            )  # fmt: skip
        self._heads = np.array([search.address for search in searches], np.int64)
        numbers = memory.numbers
        numbers[[s.SEARCHES, s.SEARCHES_AT, s.BUDGET, s.LIMIT]] = len(searches), at(self._heads), self.budget.rows, STEPS_PER_CALL
        numbers[s.FREE] = min(free, self.budget.rows)
        memory.room(s.BEST_OF_AT, rows * width, np.float32)
        memory.room(s.TOKENS_OF_AT, rows * width, np.int64)
        decoder, columns = self._decoder, -(-memory.rows // MULTIPLE) * MULTIPLE
        if decoder.packed is not None:
            memory.room(s.LOGITS_AT, memory.rows * len(decoder.packed.scales), np.float32)
        else:
            memory.room(s.TURNED_AT, columns * decoder.width, np.float32)
            memory.room(s.LOGITS_AT, columns * len(decoder.head), np.float32)
        guesses = len(searches) * max(running.search.level_rows for running in self._active)
        memory.room(s.GUESS_COSTS_AT, guesses)
        memory.room(s.GUESSES_AT, 3 * guesses, np.int32)
        lengths = max(int(search.head[s.N_MAX]) + 2 for search in searches)
        memory.room(s.PLAYED_AT + s.COUNTS_AT, 3 * lengths, np.int64)
        memory.room(s.PLAYED_AT + s.MARKS_AT, 5 * lengths)
        self._reserve_answers(searches)
        return numbers

    def _describe_projection(self) -> None:
        """Writes the vocabulary projection and the banned tokens into the step's parameters."""
        decoder, numbers, packed = self._decoder, self._memory.numbers, self._decoder.packed
        numbers[[s.BANNED_AT, s.BANNED, s.VOCABULARY, s.LANES]] = at(self._banned), len(self._banned), len(decoder.head), MULTIPLE
        numbers[s.HEAD_BIAS_AT] = 0 if decoder.head_bias is None else at(decoder.head_bias)
        if packed is not None:
            numbers[[s.HEAD_AT, s.HEAD_START_AT, s.HEAD_SCALES_AT, s.COLUMNS]] = (*map(at, packed), len(packed.scales))
        else:
            numbers[s.HEAD_AT] = at(decoder.head)

    def _reserve(self, searches: list[SearchMemory]) -> None:
        """Allocates memory for another step, whatever its outcome (`searches.has_room`)."""
        memory, tree = self._memory, self.scorer.runner.tree
        if memory.spare < memory.rows:
            memory.give(tree.allocate(max(64, STEPS_PER_CALL * memory.rows)))
        for search in searches:
            search.make_room()
        self._max_positions = max(self._max_positions, *(search.longest for search in searches))
        tree.reserve_positions(self._max_positions)
        queued = max(int(search.head[s.ROW_ROOM]) for search in searches)
        memory.numbers[s.PLAYED] = queued
        for costs, cursors in ((s.COSTS_AT, s.CURSORS_AT), (s.AWAY_COSTS_AT, s.AWAY_CURSORS_AT)):
            memory.room(s.PLAYED_AT + costs, queued)
            memory.room(s.PLAYED_AT + cursors, 3 * queued, np.int32)
        self._reserve_answers(searches)

    def _reserve_answers(self, searches: list[SearchMemory]) -> None:
        """Buffers for lookahead play-outs: as many answers as any of these searches has room for."""
        memory, found = self._memory, max(int(search.head[s.ANSWER_ROOM]) for search in searches)
        memory.room(s.PLAYED_AT + s.ANSWERS_AT, 2 * found, np.int32)
        memory.room(s.PLAYED_AT + s.ANSWER_VALUES_AT, found)
