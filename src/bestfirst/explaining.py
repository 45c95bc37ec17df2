"""explain: why beam search did not return a wanted output, and which beam would have.

The wanted output is forced through the model, then beam search runs level by level to where it loses it. Best-first search
returns beam search's answers, so this explains both. `tests/page/test_explain.py` compares every claim with searches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from math import inf
from operator import index
from typing import Any

from .engine import scorer_for
from .engine.scorer import Scorer
from .models import Model, Source
from .search import Answer, AnyOrderSearch, Context, Exhausted, Finished, Hypothesis, Strategy, Successors, beam, best_first_beam
from .settings import DEFAULT, SPEED_SETTINGS, Decoding, read_settings

ROWS = 32  # prefixes scored in one forward pass
USED = ("strategy", "beam", "score", "score_options", "length_penalty", "finished", "max_length", "nbest", "deterministic")
"""The settings that `explain` accepts, besides `SPEED_SETTINGS`, which do not change the rank of an answer."""


@dataclass(frozen=True)
class ExplainedToken:
    """One token of the wanted output: its probability under the model, and the rank of the output up to it."""

    token: int
    piece: str | None
    logprob: float  # of this token alone
    choice: int  # its rank among all next tokens
    score: float  # of the output so far
    rank: int | None = None  # among the hypotheses of this length that compete for the same slots; None once it is lost


@dataclass
class Explanation:
    """What beam search did with a wanted output.

    `lost` is the length at which it left the beam, None if it never did; then it is answer number `place`. `smallest` is the
    smallest beam that keeps it to its end (None: none up to `max_beam` does), `smallest_place` its place among the answers there.
    """

    tokens: tuple[int, ...]
    text: str | None
    score: float
    logprob: float
    beam: int
    finished: Finished
    steps: list[ExplainedToken]
    max_beam: int
    lost: int | None = None
    rank: int | None = None  # its rank at length `lost`
    worst: float | None = None  # the score of the worst member there
    place: int | None = None
    smallest: int | None = None
    smallest_place: int | None = None
    answers: list[Answer] = field(default_factory=list)  # beam search's best answer; empty if nothing finished


def explain(
    model: Model,
    source: Any,
    want: str | Sequence[int],
    decoding: Decoding | None = None,
    *,
    max_beam: int = 200,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Explanation:
    """Return where beam search lost `want`, a text or token ids without EOS, and the smallest beam that would have kept it.

    Takes those settings of `bestfirst.Decoding`, by name or as an object, that beam search depends on: beam, finished (of a
    strategy, too), score, score_options, length_penalty, max_length. Tries beams up to `max_beam` or `beam`, the greater; calls
    `progress` with each.
    """
    finished = getattr(decoding, "finished", settings.get("finished", "leave"))
    if finished not in ("keep", "leave"):
        raise ValueError(f"finished must be 'keep' or 'leave', got {finished!r}")
    asked = read_settings(decoding, settings)
    plan = asked.plan
    others = [each.name for each in fields(asked) if each.name not in (*USED, *SPEED_SETTINGS)]
    if unused := [name for name in others if getattr(asked, name) != getattr(DEFAULT, name)]:
        raise ValueError(f"{unused[0]} cannot be explained: leave it out")
    if plan.k == inf or not plan.exact or plan.queue_capacity is not None or plan.finished == "shrink":
        raise ValueError(f"strategy {plan.name!r} cannot be explained: it does not return beam search's answers")
    if not asked.objective.exact(plan.finished):
        combination = f"score {asked.objective.name!r} and finished={plan.finished!r}"
        raise ValueError(f"beam search with {combination} cannot be explained: it is not exact")
    k = int(plan.k)
    max_beam = max(k, max_beam)
    wanted = WantedOutput(model, source, want, asked, max_beam)
    try:
        explanation = wanted.explanation(k, max_beam)
        for smaller in range(1, max_beam + 1):
            if progress is not None:
                progress(smaller)
            if wanted.ranks(smaller)[1] is None:
                explanation.smallest, explanation.smallest_place = smaller, wanted.place(smaller)
                break
        return explanation
    finally:
        for scored in (wanted.top, wanted.all):
            scored.scorer.release(scored.root)


class WantedOutput:
    """A wanted output, and the scores of its prefixes and its rivals; each prefix is scored once, whatever the beam."""

    def __init__(self, model: Model, raw: Any, want: str | Sequence[int], decoding: Decoding, widest: int) -> None:
        try:
            tokens = model.target(want) if isinstance(want, str) else tuple(map(index, want))
        except TypeError:
            raise ValueError(f"the wanted output must be a text or token ids, got {want!r:.60}") from None
        if not tokens:
            raise ValueError("the wanted output is empty")
        self.model = model
        self.source = model.reader()(raw)
        self.score = decoding.objective
        self.finished: Finished = decoding.plan.finished
        n_max = decoding.n_max(self.source)
        if len(tokens) + 1 > n_max:
            given = f"the wanted output has {len(tokens) + 1} tokens with its end"
            raise ValueError(f"{given}, more than max_length, {n_max}; raise it")
        self.context = Context(n_max=n_max, source_length=self.source.length)
        scorer = scorer_for(model, self.score)
        self.top = ScoredPrefixes(scorer, self.source, widest + len(scorer.eos))
        self.all = ScoredPrefixes(scorer, self.source, inf)  # with all tokens as successors, for counting ranks
        self.tokens: tuple[int, ...] = ()
        self.logprob = 0.0
        self.steps = self._force(tokens)

    def _force(self, tokens: tuple[int, ...]) -> list[ExplainedToken]:
        """Score the output token by token and end it with its most likely EOS. Raises ValueError if the model cannot write it."""
        steps: list[ExplainedToken] = []
        value = 0.0
        for token in (*tokens, None):
            ((values, ids, own, ending),) = self.all([self.tokens])
            if token is None:
                token = next((each for each in ids if each in self.model.eos), None)
            if token is None or token not in ids:
                what = "end" if token is None else f"write {self.model.piece(token) or token!r}"
                raise ValueError(f"the model cannot {what} after {self._text() or 'nothing'!r}: it gives that no probability")
            place = list(ids).index(token)
            value += values[place]
            logprob = values[place] if own is None else own[place]
            self.logprob += logprob
            self.tokens = (*self.tokens, token)
            worth = self.score.final(value, len(self.tokens), self.context)
            worth += ending if token in self.model.eos else 0.0
            steps.append(ExplainedToken(token, self.model.piece(token), logprob, place + 1, worth))
        return steps

    def _text(self) -> str:
        return self.model.text(self.source.payload, self.tokens) or " ".join(map(str, self.tokens))

    # -- what beam search does with it -----------------------------------------------------------------------------------

    def explanation(self, k: int, max_beam: int) -> Explanation:
        """What beam search with beam k does with the output; `smallest` is left open."""
        ranks, lost, worst = self.ranks(k, count=True)
        search = self._search(best_first_beam(k, self.finished), 1)
        self._run(search)
        answers = search.result().hypotheses
        for answer in answers:
            answer.text = self.model.text(self.source.payload, answer.tokens)
        return Explanation(
            tokens=self.tokens,
            text=self.model.text(self.source.payload, self.tokens),
            score=self.steps[-1].score,
            logprob=self.logprob,
            beam=k,
            finished=self.finished,
            steps=[replace(step, rank=rank) for step, rank in zip_longest(self.steps, ranks[: len(self.steps)])],
            max_beam=max_beam,
            lost=lost,
            rank=None if lost is None else ranks[-1],
            worst=worst,
            place=self.place(k) if lost is None else None,
            answers=answers,
        )

    def ranks(self, k: int, count: bool = False) -> tuple[list[int], int | None, float | None]:
        """Run beam search level by level while the output is on its beams. Returns its ranks, by length from 1; the length at
        which it was lost, or None; the score of the worst member there. `count`: compute its rank there, too, not only that it is
        beyond k."""
        search = self._search(beam(k, self.finished).using(stop=Exhausted()), k)
        ranks: list[int] = []
        length = 0
        while level := search.frontier(int(k)):
            for y, successors in zip(level, self.top([y.tokens for y in level]), strict=True):
                search.commit(y, successors)
            length += 1
            if length > len(self.tokens) and self.finished == "leave":
                break  # the output was accepted as an answer
            members = search.agenda.beams[length].members
            place = next((i for i, z in enumerate(members) if z.tokens == self.tokens[:length]), None)
            if place is None:
                rank = self._refused_rank(search, length) if count else k + 1
                return [*ranks, rank], length, members[-1].worth if members else None
            if length <= len(self.tokens):
                ranks.append(1 + sum(1 for z in members[:place] if not (z.finished and self._finished_apart(length))))
        return ranks, None, None

    def _finished_apart(self, length: int) -> bool:
        """Whether finished rivals of this length take no slot from the output."""
        return self.finished == "leave" and length < len(self.tokens)

    def _refused_rank(self, search: AnyOrderSearch, length: int) -> int:
        """The rank of the output at the length where it was lost, among all candidates (under `leave`, all unfinished ones).

        If it was lost at a length beyond its own (`keep`), it ranks after all members.
        """
        members = search.agenda.beams[length].members
        if length > len(self.tokens):
            return len(members) + 1
        kept = sum(1 for z in members if z.length < length)  # shorter finished ones, which hold a slot
        parents = [z for z in search.agenda.beams[length - 1].members if z.successors is not None]
        lists = self.all([y.tokens for y in parents])
        mine = next(i for i, y in enumerate(parents) if y.tokens == self.tokens[: length - 1])
        value = parents[mine].value + lists[mine].values[list(lists[mine].tokens).index(self.tokens[length - 1])]
        apart, better = self._finished_apart(length), 0
        for y, (values, tokens, _, _) in zip(parents, lists, strict=True):
            for increment, token in zip(values, tokens, strict=True):
                if y.value + increment < value:
                    break
                if y.value + increment == value and (*y.tokens, token) >= self.tokens[:length]:
                    continue
                better += not (apart and token in self.model.eos)
        return kept + better + 1

    def place(self, k: int) -> int:
        """The place of the output among the answers of a beam that keeps it, by best-first search up to what precedes it."""
        search = self._search(best_first_beam(k, self.finished), k if self.finished == "keep" else 10**9)

        def place() -> int | None:
            return next((i for i, answer in enumerate(search.answers) if answer.tokens == self.tokens), None)

        self._run(search, lambda y: (i := place()) is not None and search.answers[i].key < y.key)
        found = place()
        return 1 + (len(search.answers) if found is None else found)

    def _search(self, strategy: Strategy, n: int) -> AnyOrderSearch:
        return AnyOrderSearch(strategy, score=self.score, eos=self.model.eos, context=self.context, n=n)

    def _run(self, search: AnyOrderSearch, stop: Callable[[Hypothesis], bool] = lambda y: False) -> None:
        while (batch := search.frontier(ROWS)) and not stop(batch[0]):
            for y, successors in zip(batch, self.top([y.tokens for y in batch]), strict=True):
                search.commit(y, successors)


class ScoredPrefixes:
    """The model's successors of prefixes of one input; each prefix is scored once."""

    def __init__(self, scorer: Scorer, source: Source, width: float) -> None:
        self.scorer = scorer
        self.width = width  # successors per prefix
        self.root = Hypothesis(None, -1, 0.0, 0.0, False)
        self._nodes: dict[tuple[int, ...], Hypothesis] = {(): self.root}
        self._scored: dict[tuple[int, ...], Successors] = {}
        scorer.start([(self.root, source)])

    def __call__(self, prefixes: Sequence[tuple[int, ...]]) -> list[Successors]:
        """The successors of each prefix. Their own prefixes are scored first, for the model needs their states."""
        for length in range(max(map(len, prefixes), default=-1) + 1):
            cut = dict.fromkeys(tokens[:length] for tokens in prefixes if len(tokens) >= length)
            level = [tokens for tokens in cut if tokens not in self._scored]
            for start in range(0, len(level), ROWS):
                batch = level[start : start + ROWS]
                successors = self.scorer.expand([self._node(each) for each in batch], self.width)
                self._scored.update(zip(batch, successors, strict=True))  # type: ignore[arg-type]
        return [self._scored[tokens] for tokens in prefixes]

    def _node(self, tokens: tuple[int, ...]) -> Hypothesis:
        if tokens not in self._nodes:
            self._nodes[tokens] = Hypothesis(self._nodes[tokens[:-1]], tokens[-1], 0.0, 0.0, False)
        return self._nodes[tokens]
