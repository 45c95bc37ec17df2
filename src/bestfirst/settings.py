"""Decoding: all settings of a decode in one frozen object, which checks itself and has a signature and a JSON form."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import ceil, inf
from operator import index
from typing import Any

from .constraints import Constraint, named_constraint
from .drafting import Drafter, check_draft
from .models import Model, Source
from .models.model import eos_of
from .scoring import LengthNormalized, Score, by_length_penalty, is_number, named_score, options_of, score_signature, written
from .search import Answered, Context, Finished, Heuristic, NeverStop, Search, Stop, Strategy, Trace, by_method
from .search.required_words import RequiredWords, RequiredWordsSearch, alternatives_of, token_sequences
from .search.score import NEEDS
from .strategies import FirstFinished, as_ctranslate2, named_strategy, stopping


@dataclass(frozen=True)
class Budget:
    """The size of a forward pass: at most `rows`. Up to `free` rows cost little more than one, so speculation pays.

    `alone`: 1 + the rows that cost as much as an empty step (`measured_budget`). A single input gets so many rows, or more if
    they were usually needed (`model_record.SpeculationRates`). None: unknown; a single input gets all that could be needed.
    `step_seconds`: what a step of one row takes, if that was measured.
    """

    rows: int
    free: int
    alone: int | None = None
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"row_budget must be at least 1, got {self.rows}")


@dataclass(frozen=True)
class Decoding:
    """All settings for decoding an input: how to search, for what, and within which limits (vLLM calls it SamplingParams).

    strategy          what to expand first, by name or as a `Strategy`
    beam              hypotheses of each length to keep
    score             what a hypothesis is worth: an object of `bestfirst.scoring`, or its name and parameters (`score_options`)
    length_penalty    short for the score that divides by length ** length_penalty, as in Hugging Face and CTranslate2; 0: none
    method            for scores that are not monotonic: "exact", or the paper's "stopping" or "heuristic" (no guarantee)
    nbest             answers of each input
    max_length        counts generated tokens, EOS included, BOS not: a number; "2x" for twice |x|; a function of |x|; by default
                      the model's own limit, else 2|x| + 10
    min_length        tokens before EOS may come, as Hugging Face's min_new_tokens
    eos               the token, or tokens, that end an output instead of the model's own
    stop_strings      texts that end an output as EOS does; the output is the text before the first of them
    finished          whether finished hypotheses "leave" the beam (today's toolkits) or "keep" their slot (the paper)
    prefix            the forced start of every output, a text or token ids (Hugging Face models); it is not scored
    allowed           the allowed outputs: a `bestfirst.Trie` of outputs, a `bestfirst.Grammar`, another `Constraint`,
                      or a name: a file of outputs, one a line, "regex:PATTERN", "schema:FILE", "grammar:FILE"
    must_contain      words that every output has to contain, in any order: texts or token ids; a list of them stands for one of
                      them. Hypotheses compete with those that miss as many tokens (`search.required_words` says what is exact)
    processors        functions of (token ids, log-probabilities), one row per hypothesis of one length, that return the changed
                      log-probabilities: transformers' `LogitsProcessor`s or your own. For a model of transformers both are
                      tensors, and ids begin with the prompt. Exact, unless one is known to lift a log-probability above 0
    heuristic         h(y, context), where context.source is the input, for "a-star-beam" and "a-star"
    stop              a stopping rule other than the strategy's own, an object or its name: "exhausted", "opennmt", "shrinking",
                      "huang", "hf-true", "hf-false", "hf-never", "patience", "ctranslate2" (these two with a factor in
                      `stop_options`)
    max_calls         give up on an input after that many calls (`status="budget"`)
    queue_capacity    memory-reduced search: at most this many hypotheses are queued (the paper's gamma * k)
    accept_truncated  whether unfinished hypotheses count as finished at max_length, as in Hugging Face
    row_budget        rows in a forward pass, shared by all inputs in flight; by default what suits the model, measured once
    max_cache_tokens  tokens in the KV cache for all inputs in flight: at this limit fewer are admitted. Results depend on neither
    draft             a drafter that guesses how outputs continue, so that a step scores several tokens of one: "source" (from the
                      input), "outputs" (from earlier outputs of this run), "model:FOLDER" (a smaller model), or a
                      `bestfirst.Drafter`. Results do not depend on it
    deterministic     the same bits for an input whatever shares its batch (on a GPU): inputs are encoded one by one, and a
                      forward pass always has the same number of rows
    """

    strategy: str | Strategy = "best-first"
    beam: int = 5
    score: str | Score = "logprob"
    score_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    length_penalty: float | None = None
    method: str = "exact"
    nbest: int = 1
    max_length: int | str | Callable[[int], int] | None = None
    min_length: int = 0
    eos: int | Sequence[int] | None = None
    stop_strings: str | Sequence[str] = ()
    finished: Finished = "leave"
    prefix: str | Sequence[int] | None = None
    allowed: Constraint | str | None = None
    must_contain: Sequence[Any] | RequiredWords = ()
    processors: Sequence[Callable[[Any, Any], Any]] = ()
    heuristic: Heuristic | None = None
    stop: str | Stop | None = None
    stop_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    max_calls: int | None = None
    queue_capacity: int | None = None
    accept_truncated: bool = False
    row_budget: int | Budget | None = None
    max_cache_tokens: float = inf
    draft: str | Drafter | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        """Find contradictions at once, also by starting a search without a model. What can be changed from outside is copied."""
        for name in ("score_options", "stop_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a mapping of names to values, got {getattr(self, name)!r}")
            object.__setattr__(self, name, {**getattr(self, name)})
        self._check_types()
        if self.stop_options and not isinstance(self.stop, str):
            raise ValueError(f"{', '.join(self.stop_options)} goes with a stopping rule; name one with stop")
        if isinstance(self.max_length, int) and self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if not isinstance(self.allowed, (Constraint, str, type(None))):
            what = "a Trie (of texts: Trie.of_texts(model, texts)), another Constraint or a file's name"
            raise ValueError(f"allowed must be {what}, got {type(self.allowed).__name__}")
        if self.allowed is not None and self.prefix:
            raise ValueError("allowed does not go with prefix: it is of whole outputs; leave prefix out, allow what begins so")
        if self.draft is not None:
            check_draft(self.draft)
        self._check_final()
        self._check_endings()
        self._check_processors()
        self._check_words()
        if isinstance(self.max_length, str):
            self._limit(1)
        _ = self.budget
        self.objective.check(self.plan)
        plan = self.plan if self.plan.heuristic is None else self.plan.using(heuristic=None)  # it may look at the input
        self.objective.search(plan, eos=(), context=Context(n_max=1), n=self.nbest, max_calls=self.max_calls)

    def _check_types(self) -> None:
        """Raise ValueError for a value of a wrong type; whole numbers of any kind become ints."""
        for name in ("accept_truncated", "deterministic"):
            if getattr(self, name) not in (True, False):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
            object.__setattr__(self, name, bool(getattr(self, name)))
        for name in ("beam", "nbest", "max_length", "min_length", "max_calls", "queue_capacity", "row_budget"):
            value = getattr(self, name)
            if hasattr(value, "__float__") and not isinstance(value, bool) and value % 1 == 0:
                object.__setattr__(self, name, int(value))
            elif isinstance(value, bool) or (name == "row_budget" and not isinstance(value, (Budget, type(None)))):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
        if is_number(self.length_penalty):
            object.__setattr__(self, "length_penalty", float(self.length_penalty))  # type: ignore[arg-type]
        if self.max_length is not None and not isinstance(self.max_length, (int, str)) and not callable(self.max_length):
            raise ValueError(f"max_length is a number, or a multiple of |x| such as '2x', got {self.max_length!r}")
        if not (is_number(self.max_cache_tokens) or self.max_cache_tokens == inf) or not self.max_cache_tokens > 0:
            raise ValueError(f"max_cache_tokens must be a number above 0, got {self.max_cache_tokens!r}")
        if self.heuristic is not None and not callable(self.heuristic):
            raise ValueError(f"heuristic must be a function of a hypothesis and its context, got {self.heuristic!r}")
        if self.prefix is not None and not isinstance(self.prefix, str):
            try:
                tokens = (-1,) if isinstance(self.prefix, bytes) else tuple(map(index, self.prefix))
            except TypeError:
                tokens = (-1,)
            if min(tokens, default=0) < 0:
                raise ValueError(f"prefix must be a text or a list of token ids, got {self.prefix!r}")
            object.__setattr__(self, "prefix", tokens)

    def _check_final(self) -> None:
        """Raise TypeError if a score of the user does not return a number, or needs what there is not."""
        needs: Any = self.objective.needs
        if not isinstance(needs, (set, frozenset)) or not needs <= NEEDS:
            raise TypeError(f"{type(self.objective).__name__}.needs must be a set of {', '.join(sorted(NEEDS))}, got {needs!r}")
        try:
            worth = self.objective.final(-1.0, 1, Context(n_max=1, source_length=1))
        except Exception:  # it may need the input, and there is none here
            return
        if not hasattr(worth, "__float__") or worth != worth:
            raise TypeError(f"{type(self.objective).__name__}.final returned {worth!r:.60}; it must return a number")

    def _check_endings(self) -> None:
        given: Any = self.stop_strings
        strings = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        if not all(isinstance(string, str) and string for string in strings):
            raise ValueError(f"stop_strings must be texts that are not empty, got {list(strings)}")
        object.__setattr__(self, "stop_strings", strings)
        if inside := [each for each in strings if isinstance(self.prefix, str) and each in self.prefix]:
            raise ValueError(f"the prefix {self.prefix!r} has the stop string {inside[0]!r} in it; leave one of them out")
        if self.eos is not None:
            tokens = () if isinstance(self.eos, bool) else tuple(sorted(eos_of(self.eos, "Decoding")))
            if not tokens or tokens[0] < 0:
                raise ValueError(f"eos must be the token that ends an output, or several of them, got {self.eos!r}")
            object.__setattr__(self, "eos", tokens)
        if not isinstance(self.min_length, int) or self.min_length < 0:
            raise ValueError(f"min_length must be a whole number from 0 up, got {self.min_length!r}")
        if isinstance(self.max_length, int) and self.min_length >= self.max_length and not self.accept_truncated:
            raise ValueError(f"min_length ({self.min_length}) leaves no room for EOS within max_length ({self.max_length})")

    def _check_processors(self) -> None:
        given = self.processors
        processors = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        for each in processors:
            if not callable(each) or isinstance(each, type):
                raise ValueError(f"processors must be functions of (token ids, scores), got {each!r}")
        object.__setattr__(self, "processors", processors)

    def _check_words(self) -> None:
        if not self.must_contain:
            object.__setattr__(self, "must_contain", ())
            return
        if not isinstance(self.must_contain, (list, tuple, RequiredWords)):
            raise ValueError(f"must_contain is a list of words, got {self.must_contain!r}; write [{self.must_contain!r}]")
        if isinstance(self.must_contain, (list, tuple)):
            object.__setattr__(self, "must_contain", tuple(map(alternatives_of, self.must_contain)))
        plan, score = self.plan, self.objective
        plain = score.plain and score.exact("leave") and not score.needs & {"attention", "language_model"}
        others = {
            "allowed": self.allowed is not None,
            **{each: bool(getattr(self, each)) for each in ("prefix", "stop_strings", "max_calls", "accept_truncated")},
            f"finished={plan.finished!r}": plan.finished != "leave",
            f"method={self.method!r}": self.method != "exact" and not score.monotonic,
            "stop": self.stop is not None or not isinstance(plan.stop, (Answered, NeverStop)),
            "heuristic": plan.heuristic is not None,
            f"strategy {plan.name!r}": plan.name not in ("best-first", "beam", "greedy") or plan.k == inf,
            f"score {score.name!r}": not plain,
            "queue_capacity": bool(plan.queue_capacity),
            "draft": self.draft not in (None, "none"),
        }
        for name, given in others.items():
            if given:
                raise ValueError(f"must_contain does not go with {name}; leave one of them out")

    # -- what the settings mean ------------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Strategy:
        """The strategy, with its stopping rule, method and queue capacity."""
        plan = named_strategy(self.strategy, beam=self.beam, finished=self.finished, heuristic=self.heuristic)
        if self.stop == FirstFinished.name and not self.stop_options.keys() - {"factor"}:
            plan = as_ctranslate2(plan, self.objective, self.nbest, **self.stop_options)
        elif self.stop is not None:
            plan = stopping(plan, self.stop, self.objective, **self.stop_options)
        plan = by_method(plan, self.method, self.objective)
        return plan if self.queue_capacity is None else plan.using(queue_capacity=self.queue_capacity)

    @cached_property
    def objective(self) -> Score:
        """The score that is searched with."""
        if self.length_penalty is None:
            return named_score(self.score, **self.score_options)
        if self.score != "logprob" or self.score_options:
            raise ValueError(f"length_penalty is a score of its own, so is score={self.score!r}; leave one of them out")
        return by_length_penalty(self.length_penalty)

    @property
    def budget(self) -> Budget | None:
        """The rows of a forward pass, if they are given."""
        return Budget(self.row_budget, self.row_budget) if isinstance(self.row_budget, int) else self.row_budget

    def ending(self, eos: Collection[int]) -> Collection[int]:
        """The tokens that end an output; `eos` are the model's own."""
        return eos if self.eos is None else self.eos  # type: ignore[return-value]

    def read(self, model: Model) -> Decoding:
        """These settings resolved for a model: a named constraint, required words as tokens, one-token stop strings as EOS."""
        if isinstance(self.objective.language_model, str):
            raise TypeError(f"the language model is the text {self.objective.language_model!r}; load it: bestfirst.load(...)")
        tokens = {string: token for string in self.stop_strings if (token := model.special_token(string)) is not None}
        if tokens:
            strings = tuple(string for string in self.stop_strings if string not in tokens)
            ends = [*self.ending(eos_of(model.eos, "Model")), *tokens.values()]
            return self.using(eos=ends, stop_strings=strings).read(model)
        if isinstance(self.must_contain, tuple) and self.must_contain:
            sets = [token_sequences(alternatives, model) for alternatives in self.must_contain]
            return self.using(must_contain=RequiredWords(sets)).read(model)
        if isinstance(self.allowed, Constraint):
            self.allowed.check(self.ending(eos_of(model.eos, "Model")))
        if not isinstance(self.allowed, str):
            return self
        return self.using(allowed=named_constraint(self.allowed, model))

    def n_max(self, source: Source) -> int:
        """The most tokens that an output for this input may have."""
        wanted = self.max_length
        if wanted is not None and type(wanted) is not int:  # called for every input: the common case first
            wanted = self._limit(source.length)
        n_max = source.max_length if wanted is None else wanted
        if not hasattr(n_max, "__index__"):
            raise ValueError(f"max_length must be a whole number, got {n_max!r} for an input of length {source.length}")
        if n_max > source.limit:
            n_max = int(source.limit)
        if n_max < 1:
            raise ValueError(f"max_length must be at least 1, got {n_max}")
        return n_max

    def _limit(self, length: int) -> int | None:
        if isinstance(self.max_length, str):
            written = re.fullmatch(r"(\d{1,9}(\.\d*)?|\.\d+)x", self.max_length, re.ASCII)
            if not written or not float(written[1]):
                raise ValueError(f"max_length is a number, or a multiple of |x| such as '2x', got {self.max_length!r}")
            return max(1, ceil(float(written[1]) * length))
        if not callable(self.max_length):
            return self.max_length
        try:
            return self.max_length(length)
        except Exception as error:  # raised by the user's function, for this input
            raise ValueError(f"max_length({length}) raised {type(error).__name__}: {error}") from error

    def search(self, source: Source, eos: Collection[int], trace: Trace | None = None, **more: Any) -> Search:
        """A new search of one input, for an engine to drive."""
        context = Context(self.n_max(source), source.length, source.payload)
        if self.must_contain:
            if trace is not None:
                raise ValueError("must_contain is searched without a trace; leave one of them out")
            words: Any = self.must_contain
            return RequiredWordsSearch(self.plan, score=self.objective, eos=eos, context=context, words=words, n=self.nbest)
        more |= {"accept_truncated": self.accept_truncated, "max_calls": self.max_calls, "trace": trace}
        return self.objective.search(self.plan, eos=eos, context=context, n=self.nbest, **more)

    # -- written down ----------------------------------------------------------------------------------------------------

    def using(self, **changes: Any) -> Decoding:
        return replace(self, **changes)

    def json(self) -> dict[str, Any]:
        """The settings that differ from the defaults, for JSON; `Decoding(**fields)` reads it. ValueError for unnamed objects."""
        out = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value == getattr(DEFAULT, each.name):
                continue
            if isinstance(value, Score) and (options := options_of(value)) is not None:
                out["score_options"] = options
                value = value.name
            elif isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, tuple) and all(isinstance(one, (str, int, tuple)) for one in value):
                value = list(value)
            elif isinstance(value, Budget):
                value = value.rows
            elif not isinstance(value, (str, int, float)):
                raise ValueError(f"{each.name}={value!r} cannot be written down; give it by name")
            out[each.name] = value
        return out

    def identity(self) -> dict[str, Any]:
        """As `json`, without the settings that change no result, and the same for all ways to ask for a score."""
        same: dict[str, Any] = {name: getattr(DEFAULT, name) for name in SPEED_SETTINGS}
        if (options := options_of(self.objective)) is not None:
            same |= {"score": self.objective.name, "score_options": options, "length_penalty": None}
            if type(self.objective) is LengthNormalized and self.objective.alpha != 0:
                same |= {"score": "logprob", "score_options": {}, "length_penalty": self.objective.alpha}
        return self.using(**same).json()

    @property
    def signature(self) -> str:
        """The settings that determine a result, in one line: `best-first|k:10|score:logprob|finished:leave`."""
        k = int(self.plan.k) if self.plan.k < inf else self.beam  # 1 for greedy search
        parts = [self.plan.name, f"k:{k}", f"score:{score_signature(self.objective)}"]
        parts.append(f"finished:{self.plan.finished}")
        parts += [f"{name}:{value}" for name in SIGNED if (value := getattr(self, name)) != getattr(DEFAULT, name)]
        if self.plan.queue_capacity is not None:
            parts.append(f"queue_capacity:{self.plan.queue_capacity}")
        heuristic = self.heuristic if isinstance(self.strategy, str) else self.strategy.heuristic
        if heuristic is not None:
            parts.append(f"heuristic:{_name_of(heuristic)}")
        if self.stop is not None or not isinstance(self.strategy, str):
            parts.append(f"stop:{written(self.plan.stop, self.plan.stop.name, ('name',))}")
        if self.max_length is not None:
            parts.append(f"n_max:{getattr(self.max_length, '__name__', self.max_length)}")
        if self.allowed is not None:
            parts.append(f"allowed:{self.allowed if isinstance(self.allowed, str) else self.allowed.signature}")
        if self.must_contain:
            parts.append(f"must_contain:{self.must_contain}")
        if self.processors:
            parts.append("processors:" + ",".join(map(_name_of, self.processors)))
        if self.prefix:
            parts.append(f"prefix:{self.prefix if isinstance(self.prefix, str) else list(self.prefix)}")
        return "|".join(parts)


def _name_of(given: Any) -> str:
    """The name of a function; of another object, that of its class and the numbers and texts that it holds."""
    return getattr(given, "__name__", None) or written(given, type(given).__name__)


SIGNED = ("min_length", "eos", "stop_strings", "method", "nbest", "max_calls", "accept_truncated")
"""Settings that a signature names individually if they differ from the default."""
SPEED_SETTINGS = ("row_budget", "max_cache_tokens", "draft")
"""Settings that affect speed and memory, but no result."""
DEFAULT = Decoding()
SETTINGS = tuple(each.name for each in fields(Decoding))
SYNONYMS = {"num_beams": "beam", "beam_size": "beam", "beam_width": "beam", "num_return_sequences": "nbest", "n": "nbest",
    "num_hypotheses": "nbest", "max_new_tokens": "max_length", "max_decoding_length": "max_length",
    "min_new_tokens": "min_length", "early_stopping": "stop", "logits_processor": "processors",
    **dict.fromkeys(("alpha", "beta", "ratio", "temperature", "weight", "epsilon"), "score_options")}  # fmt: skip
"""Names that other libraries use for a setting, and its name here."""


def read_settings(decoding: Decoding | None, settings: Mapping[str, Any]) -> Decoding:
    """The settings of a call, which gave them as an object or by name. TypeError for both, and for names that are none."""
    if unknown := [name for name in settings if name not in SETTINGS]:
        from difflib import get_close_matches

        near = SYNONYMS.get(unknown[0]) or next(iter(get_close_matches(unknown[0], SETTINGS)), None)
        hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(SETTINGS)}"
        raise TypeError(f"unknown setting {unknown[0]!r}{hint}")
    if not isinstance(decoding, (Decoding, type(None))):
        raise TypeError(f"settings are given by name, such as beam=5, or as a bestfirst.Decoding, got {decoding!r:.60}")
    if decoding is not None and settings:
        raise TypeError(f"settings are given twice: as an object, and as {', '.join(settings)}; use decoding.using(...)")
    return decoding or Decoding(**settings)
