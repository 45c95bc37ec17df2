"""Model: who gives next-token scores. Bring your own by writing two methods; or bring any object that has them (`as_model`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from math import inf
from operator import index
from typing import Any, NamedTuple


@dataclass(slots=True)
class Source:
    """One input, read: what the model makes of it, |x|, and how long its output may get by default and at most."""

    payload: Any
    length: int
    max_length: int
    limit: float = inf  # positions the model has


class Query(NamedTuple):
    """A hypothesis to score: `prefix` is all its tokens (no BOS), `state` what scoring the prefix without its last token returned
    (for the empty prefix: what `start` returned)."""

    state: Any
    prefix: tuple[int, ...]


class Scored(NamedTuple):
    """The answer to a query: one score for every token that may come next (-inf: may not), and the state to go on from.

    Scores may be a list, an array or a tensor of any precision on any device: they are added up in float64.
    `attention`, given only by `attend`, is the weight of each source token in choosing the next one.
    """

    logprobs: Any
    state: Any = None
    attention: Sequence[float] | None = None


class Model(ABC):
    """A sequential predictor: a start state for an input, and scores of the next token for a batch of hypotheses.

    `bestfirst.testing.check_model` runs the laws that the search relies on. Scores need not be probabilities. An object that is
    no `Model` but has `eos`, `start` and `score` will do wherever a model is asked for (`as_model`).
    """

    eos: Collection[int]  # tokens that finish a hypothesis; one will do
    hugging_face = False  # whether it is a `TransformersModel`, which engines run in ways of their own
    on_gpu = False
    eight_bits = False  # whether the engine's products are taken in these
    stateful = True  # whether `score` needs the state of the prefix before, as against that of `start`
    chats = False  # whether inputs may be conversations: lists of messages

    @property
    def known_as(self) -> Any:
        """What stands for its weights, by identity: models that share it share what is known of them."""
        return self

    @abstractmethod
    def start(self, source: Any) -> Any:
        """The state before the first token."""

    def start_batch(self, sources: Sequence[Any]) -> Sequence[Any]:
        """The states of several inputs. To be written where an encoder is faster on a batch."""
        return [self.start(source) for source in sources]

    @abstractmethod
    def score(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """Score the next token of each hypothesis. Must not depend on what else is in the batch.

        A pair (scores, state) will do for a `Scored`, scores alone for a model without states, and for all answers one matrix,
        a row a hypothesis, or such a matrix and a list of states.
        """

    def batch_key(self, query: Query) -> Hashable:
        """Hypotheses of different keys are never in one batch: `len(query.prefix)` for a cache that has no mask."""
        return None

    def merge_key(self, source: Any, prefix: tuple[int, ...]) -> Hashable:
        """What of a prefix decides on how it may go on, where that is less than all of it: the last tag, for a tagger.

        Of hypotheses of one length with equal keys only the best is kept, so a beam as wide as there are keys finds the best of
        all. None: it is like no other."""
        return None

    def attend(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """As `score`, with the attention to the source. Asked only for a score that needs it (a coverage penalty)."""
        raise ValueError(f"{type(self).__name__} gives no attention, which a coverage penalty needs; write its `attend`")

    def source_length(self, source: Any) -> int:
        """|x|, without EOS; 0 where there is no input."""
        return len(source) if hasattr(source, "__len__") else 0

    def max_length(self, source: Any) -> int:
        """The default limit on generated tokens, EOS included."""
        return 2 * self.source_length(source) + 10

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        """The tokens as text, where the model knows how."""
        return None

    def piece(self, token: int) -> str | None:
        """The text of one token, with a space in front where it begins a word; None where the model has no names for tokens."""
        return None

    def special_token(self, text: str) -> int | None:
        """The token that this text is the name of, where it is one without a text of its own (`<|im_end|>`)."""
        return None

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        """What tokenises and measures one input. Raises ValueError, naming the input, for one that cannot be decoded."""
        if prefix:
            raise ValueError("a forced prefix needs a Hugging Face model; a model of your own can start from any state")
        return self._read

    def _read(self, raw: Any) -> Source:
        try:
            return Source(raw, self.source_length(raw), self.max_length(raw))
        except ValueError:
            raise  # which says what is wrong with the input
        except Exception as error:  # of the user's own code: it is about this input
            name = type(getattr(self, "given", self)).__name__
            raise ValueError(f"{name} cannot read the input: {type(error).__name__}: {error}") from error

    def target(self, text: str) -> tuple[int, ...]:
        """The tokens of an output that somebody wrote, without EOS."""
        raise ValueError(f"{type(self).__name__} reads no outputs; give token ids instead of text")

    def targets(self, texts: Sequence[str]) -> list[tuple[int, ...] | None]:
        """As `target`, for many at once; None for what the model cannot write."""

        def tokens(text: str) -> tuple[int, ...] | None:
            try:
                return self.target(text)
            except ValueError:
                return None

        return [tokens(text) for text in texts]


class FunctionModel(Model):
    """A model that is one function: `next_logprobs(prefix)` gets the generated tokens (no BOS), and scores every next token.

    toy = FunctionModel(lambda prefix: [-1.0, -0.5, -2.0], eos=0)
    bestfirst.decode(toy, [None], beam=2)

    A function of two arguments gets the input as well, `(source, prefix)`. With `batched` it gets a list of prefixes (and before
    it a list of sources), and returns a row of scores for each.
    """

    stateful = False

    def __init__(self, next_logprobs: Callable[..., Any], eos: int | Collection[int], *, batched: bool = False) -> None:
        self.next_logprobs = next_logprobs
        self.batched = batched
        self.reads_source = _arguments(next_logprobs) > 1
        self.eos = eos_of(eos, "FunctionModel")

    def start(self, source: Any) -> Any:
        return source if self.reads_source else None

    def score(self, batch: Sequence[Query]) -> Any:
        first = 0 if self.reads_source else 1
        if not self.batched:
            return [Scored(self.next_logprobs(*query[first:]), query.state) for query in batch]
        states, prefixes = [query.state for query in batch], [query.prefix for query in batch]
        rows = self.next_logprobs(*(states, prefixes)[first:])
        if not hasattr(rows, "__len__") or len(rows) != len(batch):
            return rows  # for the engine to complain of
        return list(map(Scored, rows, states))


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments a function must be given; 1 where it does not tell."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(each.default is Parameter.empty and each.kind in POSITIONAL for each in parameters)


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def eos_of(eos: Any, whose: str) -> frozenset[int]:
    """The tokens that finish a hypothesis, given as one or several."""
    try:
        return frozenset(map(index, eos)) if hasattr(eos, "__iter__") else frozenset([index(eos)])
    except TypeError:
        raise ValueError(f"{whose}.eos must be the token that ends a hypothesis, or several of them, got {eos!r}") from None


OPTIONAL = [name for name, each in vars(Model).items() if callable(each) and name[0] != "_" and name not in ("start", "score")]


class AdaptedModel(Model):
    """An object with `eos`, `start` and `score`; whatever else of `Model` it has is used too."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.eos = eos_of(given.eos, type(given).__name__)
        self.stateful, self.chats = bool(getattr(given, "stateful", True)), bool(getattr(given, "chats", False))
        for name in OPTIONAL:
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def start(self, source: Any) -> Any:
        return self.given.start(source)

    def score(self, batch: Sequence[Query]) -> Any:
        return self.given.score(batch)


def as_model(given: Any) -> Model:
    """What was given as a model. TypeError, with the way out, for what is none."""
    name = type(given).__name__
    if isinstance(given, type):
        raise TypeError(f"the model is the class {given.__name__}; make one of it: {given.__name__}(...)")
    methods = [method for method in ("start", "score") if callable(getattr(given, method, None))]
    if len(methods) == 2:
        if getattr(given, "eos", None) is None:
            raise TypeError(f"{name} has no eos; set it to the token that ends a hypothesis, or to several")
        if not isinstance(given, Model):
            return AdaptedModel(given)
        if not isinstance(given.eos, (frozenset, set, tuple, list)):
            given.eos = eos_of(given.eos, name)
        return given
    if isinstance(given, str):
        raise TypeError(f"the model is a text, {given!r}; load it first: bestfirst.load({given!r})")
    if hasattr(given, "generate") and hasattr(given, "config"):
        raise TypeError(f"{name} is a Hugging Face model; give bestfirst.wrap(model, tokenizer)")
    if callable(given) and not methods:
        named = str(getattr(given, "__name__", "f")).replace("<lambda>", "lambda ...")
        raise TypeError(f"the model is a function; say which token ends a hypothesis: bestfirst.FunctionModel({named}, eos=...)")
    lacks = "score(batch)" if methods == ["start"] else "start(source)" if methods else "start(source) and score(batch)"
    raise TypeError(f"a model is an object with start(source), score(batch) and eos; {name} lacks {lacks}")
