"""Rules: a job's settings as numbers for the kernels, and which settings they do not support, so that the host runs such jobs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, inf

from ...constraints.trie import Trie
from ...scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability, Score
from ...search import Answered, BestFirst, Exhausted, NeverStop, OptimalStop, Patience, Strategy
from ...settings import Decoding
from ...strategies import FirstFinished, HuggingFaceStep
from ..logits_edits import bits
from .kernels.answers import AS_HUGGING_FACE, BEST_FIRST, BY_LEVEL, RULES
from .state import WIDE

LARGEST_BEAM = 5000  # with as many answers: a program holds one number per member, up to 8192
BUSY, BUSY_RISING = 2048, 4096  # rows of a step beyond which nothing is scored ahead (`answers.FULL`). Where a score rises with
BUSY_WIDE = 8192  # length most of what is scored ahead is needed, and where hundreds of answers are returned nearly all
KNOWN = (LogProbability, LengthNormalized, GNMT, LengthReward, BoundedLengthReward)  # value / norm(length) + gain(length)
WHOLE_LEVELS = (Exhausted, NeverStop, OptimalStop)  # stops of beam search that do not count answers
NEVER = 1 << 30  # a number of answers that no search reaches


def unknown_to_device(decoding: Decoding, vocabulary: float = inf) -> str | None:
    """The first of these settings that the kernels do not support; None if they support all. `vocabulary`: number of tokens."""
    plan, score, trie = decoding.plan, decoding.objective, decoding.allowed
    reasons = {
        "row_budget or max_cache_tokens": isinstance(decoding.row_budget, int) or decoding.max_cache_tokens < inf,
        f"strategy {plan.name!r} with stop {plan.stop.name!r}": search_kind(plan, score) is None or plan.heuristic is not None,
        f"score {score.name!r}": type(score) not in KNOWN,
        "stop_strings": bool(decoding.stop_strings),
        "min_length beside a trie": decoding.min_length > 0 and trie is not None,
        "min_length at a temperature": decoding.min_length > 0 and not score.plain,
        "processors": bool(decoding.processors),
        "allowed, unless it is a trie": type(trie) not in (Trie, type(None)),
        "tokens that the model does not have": isinstance(trie, Trie) and trie.largest >= vocabulary,
        "a trie of so many nodes": isinstance(trie, Trie) and len(trie.tokens) >= 1 << 31,
        "must_contain": bool(decoding.must_contain),
        "queue_capacity": plan.queue_capacity is not None,
        "max_calls": decoding.max_calls is not None,
        f"a beam above {LARGEST_BEAM}": plan.k > LARGEST_BEAM,
        "nbest above the beam": decoding.nbest > plan.k,
    }
    return next((why for why, holds in reasons.items() if holds), None)


def temperature_bits(score: Score) -> int:
    """The float32 bits of the temperature that log-probabilities are taken at; 0 stands for temperature 1."""
    return bits(score.temperature) if isinstance(score, LogProbability) and not score.plain else 0


def search_kind(plan: Strategy, score: Score) -> int | None:
    """The kernels' search for this strategy and score, None if there is none: best-first until the answers are proven, or until
    Hugging Face would stop; or level by level until there are enough answers or nothing can precede them."""
    if plan.name == "best-first" and type(plan.order) is BestFirst:
        return {Answered: BEST_FIRST.value, HuggingFaceStep: AS_HUGGING_FACE.value}.get(type(plan.stop))
    stop = plan.stop
    whole = {"leave": WHOLE_LEVELS, "keep": (Exhausted,), "shrink": ()}[plan.finished]
    counts = plan.finished == "leave" and type(stop) in (Patience, FirstFinished) and stop.enough(plan, score) < inf  # type: ignore[attr-defined]
    known = counts or (type(stop) in whole and not plan.order.relies_on_bound)
    return BY_LEVEL.value if known and plan.level_by_level and plan.any_order else None


@dataclass(frozen=True)
class Rules:
    """One job's settings. `numbers`: the fields listed at `answers.RULES`, padded with zeros. `reward`: the largest length reward
    per token of the input where it is bounded, else None."""

    numbers: tuple[int, ...]
    reward: float | None

    @classmethod
    def of(cls, decoding: Decoding, width: int, table: int, program: int) -> Rules:
        """`width`: successors that matter; `table`: row of the score in `State.norm`; `program`: 1 + row in `State.programs`, 0:
        none."""
        plan, score = decoding.plan, decoding.objective
        k, kind = int(plan.k), search_kind(plan, score)
        assert kind is not None
        if kind == AS_HUGGING_FACE.value and score.monotonic:
            kind = BEST_FIRST.value  # for these scores both stop at the same time
        enough = ceil(plan.stop.enough(plan, score)) if isinstance(plan.stop, Patience) else max(decoding.nbest, k)
        settled = enough if isinstance(plan.stop, NeverStop) else decoding.nbest if isinstance(plan.stop, OptimalStop) else 0
        if type(plan.stop) in WHOLE_LEVELS:
            enough = NEVER
        limits, rises = (decoding.nbest, int(decoding.accept_truncated)), not score.monotonic
        prunes, busy = plan.order.relies_on_bound, BUSY_WIDE if decoding.nbest > WIDE else BUSY_RISING if rises else BUSY
        keeps = plan.finished == "keep"
        fields = (k, width, *limits, kind, table, int(rises), enough, busy, program, int(prunes), int(keeps), settled)
        reward = score.beta * score.ratio if isinstance(score, BoundedLengthReward) else None
        return cls((*fields, temperature_bits(score), *[0] * (RULES.value - 1 - len(fields))), reward)


def table_key(score: Score) -> Hashable:
    """Equal for scores that have the same tables."""
    return type(score), tuple(sorted((name, value) for name, value in vars(score).items() if isinstance(value, (int, float))))


def table_of(score: Score, lengths: int, prompt: int) -> tuple[list[float], list[float]]:
    """(norms, gains) by length on the device, which counts the prompt: a score is value / norm + gain."""
    own = [max(0, t - prompt + 1) for t in range(lengths)]
    norms = [score.norm(n) for n in own] if isinstance(score, LengthNormalized) else [1.0] * lengths
    beta = score.beta if isinstance(score, (LengthReward, BoundedLengthReward)) else 0.0
    return norms, [beta * n for n in own]
