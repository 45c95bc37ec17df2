"""CompiledEngine: a `HostEngine` whose searches are compiled with the forward pass, where they are usual ones.

They run many steps in one call (`steps/native/searches.py`), so that Python is not waited for. Which rows share a step is decided
as in `HostEngine`, so answers, calls, rows and steps are the same (`tests/engine/test_compiled_engine.py`). Whatever else is
submitted, such as a search that is traced, runs as it does there; so do inputs that are drafted for, where that pays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from math import ceil, inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..constraints.trie import Trie
from ..drafting import MOST
from ..scoring import GNMT, LengthNormalized, Score
from ..search import Answer, Context, LevelSearch, Patience, Result, StepSearch, Strategy, StrictSearch, check
from ..search.policy import Policy
from ..settings import Decoding
from ..strategies import FirstFinished, HuggingFaceStep
from .engine import Job, Running
from .host import HostEngine, roomy
from .steps.native import search_plan as s
from .steps.native.calls import at
from .steps.native.decoder import MULTIPLE, NOTHING, WIDE, NativeDecoder
from .steps.native.search_memory import SearchMemory, StepMemory
from .tree_scorer import TreeScorer, not_finite

if TYPE_CHECKING:
    from .drafts import Drafting

WIDEST = WIDE - 16  # beam: there are more successors than that, for some may end
STEPS = 8  # in one call: whoever interrupts is heard after that


class CompiledSearch(ABC):
    """One input's search, which runs elsewhere."""

    whole_levels = False
    state: Any  # the scorer's own, as a root has it

    @classmethod
    def takes(cls, job: Job) -> bool:
        """Whether it is asked for what compiled code can do."""
        asked = job.decoding
        others = asked.must_contain, asked.stop_strings, asked.min_length or None, asked.max_calls
        own = job.begin is None and job.trace is None and not any(each is not None and each != () for each in others)
        return own and asked.objective.plain and asked.plan.k <= WIDEST and cls.knows(asked.plan, asked.objective)

    @staticmethod
    @abstractmethod
    def knows(plan: Strategy, score: Score) -> bool:
        """Whether these are what it is for."""

    def __init__(self, job: Job, eos: Collection[int]) -> None:
        asked, plan = job.decoding, job.decoding.plan
        self.context = Context(job.n_max, job.source.length)
        check(plan, asked.objective, self.context, asked.nbest)
        ends, complete = frozenset(asked.ending(eos)), job.n_max if asked.accept_truncated else None
        self.memory = SearchMemory(
            k=int(plan.k), n=asked.nbest, n_max=job.n_max, keep=plan.finished == "keep", complete=complete, ends=ends
        )  # fmt: skip
        if asked.allowed is not None:
            self.memory.under(asked.allowed, eos)  # type: ignore[arg-type]
        self.root, self.score, self.strategy = self, asked.objective, plan
        self.width, self.level_rows = self.memory.width, int(self.memory.head[s.LEVEL_ROWS])

    @property
    def rows(self) -> int:
        return int(self.memory.head[s.SCORED])

    @property
    def answers(self) -> list[Answer]:
        """Those that are certain: of one that ranks them by score, none until it is over."""
        levels, by_step, needed = self.memory.head[[s.LEVELS, s.BY_STEP, s.NEEDED]]
        return [] if (levels or by_step) and needed >= 0 else [self._answer(*each) for each in self.memory.answers]

    def _answer(self, tokens: tuple[int, ...], value: float) -> Answer:
        return Answer(tokens, self.score.final(value, len(tokens), self.context) if tokens else value, value)

    def result(self) -> Result:
        answers = self.answers
        return Result(
            hypotheses=answers,
            calls=int(self.memory.head[s.CALLS]),
            rows=self.rows,
            exact=self.strategy.exact and self.score.exact(self.strategy.finished),
            status="complete" if answers else "incomplete",
            partial=None if answers else self._answer(*self.memory.deepest),
        )

    def dismantle(self) -> None:
        """Nothing in it refers to itself but its root."""
        del self.root


class CompiledStrictSearch(CompiledSearch):
    """A `StrictSearch`."""

    @staticmethod
    def knows(plan: Strategy, score: Score) -> bool:
        return StrictSearch.takes(plan, score)


class CompiledStepSearch(CompiledStrictSearch):
    """A `StepSearch`, by scores that divide by what depends on the length."""

    @staticmethod
    def knows(plan: Strategy, score: Score) -> bool:
        return type(plan.stop) is HuggingFaceStep and StepSearch.takes(plan, score) and type(score) in (LengthNormalized, GNMT)

    def __init__(self, job: Job, eos: Collection[int]) -> None:
        super().__init__(job, eos)
        self.memory.until_step(norms(self.score, job.n_max), max(job.decoding.nbest, int(self.strategy.k)))


class CompiledLevelSearch(CompiledSearch):
    """A `LevelSearch`, in the order that relies on bounds, by scores that divide by what depends on the length."""

    @staticmethod
    def knows(plan: Strategy, score: Score) -> bool:
        usual = LevelSearch.takes(plan, score) and type(plan.stop) in (Patience, FirstFinished)
        known = score.value_only or type(score) in (LengthNormalized, GNMT)
        policy = Policy.of(plan, score)
        return usual and known and policy.prunes and policy.relies_on_bound and not policy.whole_levels

    def __init__(self, job: Job, eos: Collection[int]) -> None:
        super().__init__(job, eos)
        enough = self.strategy.stop.enough(self)  # type: ignore[attr-defined]
        lead = isinstance(self.strategy.stop, FirstFinished) and self.score.value_only
        self.memory.by_levels(
            norms(self.score, job.n_max), s.AT_LEAD if lead else s.AT_ENOUGH, 1 << 60 if enough == inf else ceil(enough)
        )


def norms(score: Any, n_max: int) -> Any:
    """By length, what a value is divided by for its score, and for its bound; and one more."""
    return _norms(type(score), score.alpha, n_max) if isinstance(score, LengthNormalized) else np.ones((2, n_max + 2))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _norms(kind: Any, alpha: float, n_max: int) -> Any:
    score, lengths = kind(alpha), range(n_max + 1)
    bounds = [score.norm(length + 1 if score.monotonic else n_max) for length in lengths]
    return np.array([[*(score.norm(length) for length in lengths), 1.0], [*bounds, 1.0]])


class CompiledEngine(HostEngine):
    """Runs searches on a compiled decoder."""

    scorer: TreeScorer
    learned_of = (*HostEngine.learned_of, CompiledStrictSearch)

    @staticmethod
    def takes(scorer: Any, decoding: Decoding) -> bool:
        """Whether nothing is asked of the model, or done with what it says, that compiled code does not know."""
        native = getattr(getattr(scorer, "runner", None), "decoder", None)
        return (
            isinstance(native, NativeDecoder)
            and native.whole is not None
            and (native.eight_bits or native.tiled)
            and scorer.score.plain
            and not scorer.score.needs
            and scorer.process is None
            and decoding.max_cache_tokens == inf
        )

    def __init__(self, scorer: TreeScorer, decoding: Decoding, drafting: Drafting | None = None) -> None:
        super().__init__(scorer, decoding, drafting)
        self._native: NativeDecoder = scorer.runner.decoder
        self._banned = np.array(scorer.model.banned, np.int64) if scorer.model.banned else NOTHING
        self._memory = StepMemory(0)
        self._longest = 1  # positions that there is room for
        self._compiles = True  # until something comes that is not compiled

    def submit(self, *jobs: Job) -> None:
        if self.drafting is not None and jobs:
            alone = not self._running
            drafts = self.drafting.pays(jobs, self.budget, alone=alone, measured=self.decoding.budget is None)
            self._compiles = not drafts if alone else self._compiles
        super().submit(*jobs)
        if self._compiles and not all(isinstance(running.search, CompiledSearch) for running in self._running.values()):
            self._compiles = False
            for place, running in enumerate(self._waiting):
                if isinstance(running.search, CompiledSearch):  # the others have begun, and what is traced begins once
                    if running.drafts is not None:
                        running.drafts.finish(())
                    self._waiting[place] = self._running[running.job] = self._begin(running.job)

    def _begin(self, job: Job) -> Running:
        kinds = CompiledStrictSearch, CompiledStepSearch, CompiledLevelSearch
        for kind in kinds if self._compiles and self._can_follow(job.decoding) else ():
            if kind.takes(job):
                drafts = None if self.drafting is None else self.drafting.follow(job)
                return Running(job, kind(job, self.scorer.eos), drafts=drafts)  # type: ignore[arg-type]
        return super()._begin(job)

    def _can_follow(self, asked: Decoding) -> bool:
        """Whether what is allowed, if anything is named, is a trie that compiled code reads, with an end behind every item."""
        trie = asked.allowed
        if trie is None:
            return True
        ended = self.scorer.eos and set(asked.ending(self.scorer.eos)) >= set(self.scorer.eos)
        return bool(ended) and type(trie) is Trie and trie.narrow and trie.largest < self.scorer.vocabulary

    def _certain(self, running: Running) -> list[Answer]:
        return running.search.answers if isinstance(running.search, CompiledSearch) else super()._certain(running)

    def _looked_ahead(self, running: Running) -> list[tuple[int, bool]]:
        if not isinstance(running.search, CompiledSearch):
            return super()._looked_ahead(running)
        return running.search.memory.guesses if self._submitted == 1 else []

    def step(self) -> Iterator[tuple[Job, Result]]:
        if not self._compiles and not any(isinstance(running.search, CompiledSearch) for running in self._active):
            yield from super().step()
            return
        if self.decoding.budget is None:
            self.budget = roomy(self.scorer.budget(), self.decoding)
        if self._compiles:
            self._admit()
        if not self._active:
            return
        self._stats.in_flight = max(self._stats.in_flight, len(self._active))
        searches = [running.search.memory for running in self._active]  # type: ignore[attr-defined]
        with self.scorer.runner.lock:
            steps, last = self._run(searches)
        if steps > (last > 0):  # there was one before that in which some were found to be over
            self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens() - self._memory.spare - last)
        for running, search in zip([*self._active], searches, strict=True):
            if search.head[s.OVER] > 0:
                self._active.remove(running)
                yield running.job, self._result(running)
        self._stats.cache_tokens = max(self._stats.cache_tokens, self.scorer.cache_tokens() - self._memory.spare)

    def _result(self, running: Running) -> Result:
        if isinstance(running.search, CompiledSearch):
            head = running.search.memory.head
            running.steps, running.guessed = int(head[s.STEPS]), int(head[s.GUESSED])
        result = super()._result(running)
        if self.drafting is not None:
            self.drafting.took(result, last=not self._running, drafted=not self._compiles)
        return result

    def _needed(self, running: Running) -> Iterable[tuple[int, ...]]:
        return running.search.memory.needed(MOST) if isinstance(running.search, CompiledSearch) else super()._needed(running)

    def _release(self, running: Running) -> None:
        if isinstance(running.search, CompiledSearch):
            running.search.root.state[0].slots += running.search.memory.slots
        super()._release(running)

    # -- steps -------------------------------------------------------------------------------------------------------------

    def _run(self, searches: list[SearchMemory]) -> tuple[int, int]:
        """Steps of these, until one is over. Returns how many, and the rows of that in which some were over, if it has any."""
        runner, numbers = self.scorer.runner, self._numbers(searches)
        work, steps = self._native.workspace.of(self._memory.rows), 0
        while True:
            begun = perf_counter()
            table = self._memory.table
            last = self._native.whole.search(numbers, table, runner.tree, runner.sources, work, self._longest)  # type: ignore[union-attr]
            runner.seconds += perf_counter() - begun
            steps += int(numbers[s.STEPS_RUN])
            self._stats.rows += int(numbers[s.ROWS_RUN])
            if numbers[s.REASON] == s.NOT_FINITE:
                place, node = self._memory.broken()
                raise not_finite(searches[place].tokens(node))
            if numbers[s.REASON] != s.MORE_ROOM or steps >= STEPS:
                self._stats.steps += steps
                return steps, last
            self._make_room_for(searches)

    def _numbers(self, searches: list[SearchMemory]) -> Any:
        """What these searches share, as compiled code reads it."""
        memory, free, width = self._memory, self._free(), max(search.width for search in searches)
        rows = min(self.budget.rows, sum(running.search.level_rows for running in self._active))
        if rows > memory.rows:
            memory, old = StepMemory(max(rows, min(self.budget.rows, 2 * memory.rows))), memory
            memory.give(old.take_back())
            self._memory = memory
            self._describe(memory)
        for running, search in zip(self._active, searches, strict=True):
            sentence = running.search.root.state[0]
            search.head[s.START : s.PAUSED + 1] = (
                sentence.start, sentence.offset, sentence.prompt_slot, sentence.place, running.job.paused
            )  # fmt: skip
        self._heads = np.array([search.address for search in searches], np.int64)
        numbers = memory.numbers
        numbers[[s.SEARCHES, s.SEARCHES_AT, s.BUDGET, s.LIMIT]] = len(searches), at(self._heads), self.budget.rows, STEPS
        numbers[s.FREE] = min(free, self.budget.rows)
        memory.room(s.BEST_OF_AT, rows * width, np.float32)
        memory.room(s.TOKENS_OF_AT, rows * width, np.int64)
        guesses = len(searches) * max(running.search.level_rows for running in self._active)
        memory.room(s.GUESS_COSTS_AT, guesses)
        memory.room(s.GUESSES_AT, 3 * guesses, np.int32)
        lengths = max(int(search.head[s.N_MAX]) + 2 for search in searches)
        memory.room(s.PLAYED_AT + s.COUNTS_AT, 3 * lengths, np.int64)
        memory.room(s.PLAYED_AT + s.MARKS_AT, 5 * lengths)
        self._make_room_for_answers(searches)
        return numbers

    def _describe(self, memory: StepMemory) -> None:
        """The product with the vocabulary, and what is banned."""
        native, numbers, packed = self._native, memory.numbers, self._native.packed
        numbers[[s.BANNED_AT, s.BANNED, s.VOCABULARY, s.LANES]] = at(self._banned), len(self._banned), len(native.head), MULTIPLE
        numbers[s.HEAD_BIAS_AT] = 0 if native.head_bias is None else at(native.head_bias)
        if packed is not None:
            numbers[[s.HEAD_AT, s.HEAD_START_AT, s.HEAD_SCALES_AT, s.COLUMNS]] = (*map(at, packed), len(packed.scales))
            memory.room(s.LOGITS_AT, memory.rows * len(packed.scales), np.float32)
            return
        columns = -(-memory.rows // MULTIPLE) * MULTIPLE
        numbers[s.HEAD_AT] = at(native.head)
        memory.room(s.TURNED_AT, columns * native.width, np.float32)
        memory.room(s.LOGITS_AT, columns * len(native.head), np.float32)

    def _make_room_for(self, searches: list[SearchMemory]) -> None:
        """Memory for another step, whatever comes of it (`searches.is_room`)."""
        memory, tree = self._memory, self.scorer.runner.tree
        if memory.spare < memory.rows:
            memory.give(tree.allocate(max(64, STEPS * memory.rows)))
        for search in searches:
            search.make_room()
        self._longest = max(self._longest, *(search.longest for search in searches))
        tree.reserve_positions(self._longest)
        queued = max(int(search.head[s.ROW_ROOM]) for search in searches)
        memory.numbers[s.PLAYED] = queued
        for costs, cursors in ((s.COSTS_AT, s.CURSORS_AT), (s.AWAY_COSTS_AT, s.AWAY_CURSORS_AT)):
            memory.room(s.PLAYED_AT + costs, queued)
            memory.room(s.PLAYED_AT + cursors, 3 * queued, np.int32)
        self._make_room_for_answers(searches)

    def _make_room_for_answers(self, searches: list[SearchMemory]) -> None:
        """As many as any of these has room for, where it plays on."""
        memory, found = self._memory, max(int(search.head[s.ANSWER_ROOM]) for search in searches)
        memory.room(s.PLAYED_AT + s.ANSWERS_AT, 2 * found, np.int32)
        memory.room(s.PLAYED_AT + s.ANSWER_VALUES_AT, found)
