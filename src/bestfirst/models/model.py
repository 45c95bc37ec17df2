"""The `Model` interface: next-token scores for a batch of hypotheses. A model of your own implements two methods, `start` and
`score`; `as_model` also accepts any object that has them, and `FunctionModel` wraps a single function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from math import inf
from operator import index
from typing import Any, NamedTuple

from ..search import BrokenLaw


@dataclass(slots=True)
class Source:
    """A tokenized and measured input, as returned by a model's `reader`."""

    payload: Any  # what `Model.start` gets, such as a `Prompt`
    length: int  # |x|
    max_length: int  # default limit on generated tokens
    limit: float = inf  # hard limit: the positions that the model has left


class Query(NamedTuple):
    """A hypothesis to score. `prefix` is all of its tokens (no BOS), `state` what scoring the prefix one token shorter returned
    (for the empty prefix: what `start` returned)."""

    state: Any
    prefix: tuple[int, ...]


class Scored(NamedTuple):
    """The answer to a query: one score for each token of the vocabulary (-inf forbids a token), and the state after `prefix`.

    Scores may be a list, an array or a tensor of any precision on any device; they are summed in float64.
    `attention`, set only by `attend`, is the cross-attention weight of each source token for the next token."""

    logprobs: Any
    state: Any = None
    attention: Sequence[float] | None = None


class Model(ABC):
    """An autoregressive model: a start state for each input, and next-token scores for a batch of hypotheses.

    `bestfirst.testing.check_model` tests the properties that the search relies on. Scores need not be probabilities. An object
    with `eos`, `start` and `score` that does not inherit from `Model` is accepted wherever a model is expected (`as_model`)."""

    eos: Collection[int]  # tokens that finish a hypothesis; a single int is accepted
    hugging_face = False  # whether this is a `TextModel`, for which engines have their own decoders and KV caches
    on_gpu = False
    eight_bits = False  # whether the engine multiplies matrices in int8
    stateful = True  # whether `score` needs the state of the previous prefix; False: that of `start` is enough
    chats = False  # whether inputs may be conversations (lists of messages)

    @property
    def known_as(self) -> Any:
        """The object that identifies the weights: engine records (timings, checks) are shared by models with the same one."""
        return self

    @abstractmethod
    def start(self, source: Any) -> Any:
        """The state before the first token."""

    def start_batch(self, sources: Sequence[Any]) -> Sequence[Any]:
        """The start states of several inputs. Override it where the encoder is faster on a batch."""
        return [self.start(source) for source in sources]

    @abstractmethod
    def score(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """Score the next token of each hypothesis. The result for one must not depend on the others in the batch.

        Instead of a `Scored`, a pair (scores, state) is accepted, or scores alone from a model without states; instead of the
        list, one matrix (hypotheses, vocabulary), or such a matrix and a list of states."""

    def batch_key(self, query: Query) -> Hashable:
        """Hypotheses with different keys never share a batch: return `len(query.prefix)` for a KV cache without a mask."""
        return None

    def merge_key(self, source: Any, prefix: tuple[int, ...]) -> Hashable:
        """The part of a prefix that determines its possible continuations and their scores: for a tagger, the last tag.

        Of hypotheses with the same length and key only the best is kept, so a beam as wide as the number of keys finds the global
        optimum. None: never merged; nor is anything under a constraint, stop strings, logits processors, or a score that needs a
        language model or attention, which look at the whole prefix."""
        return None

    def attend(self, batch: Sequence[Query]) -> Sequence[Scored]:
        """Like `score`, with the attention to the source. Called only for a score that needs it (a coverage penalty)."""
        raise ValueError(f"{type(self).__name__} gives no attention, which a coverage penalty needs; write its `attend`")

    def source_length(self, source: Any) -> int:
        """|x|, without EOS; 0 for an input without a length."""
        return len(source) if hasattr(source, "__len__") else 0

    def max_length(self, source: Any) -> int:
        """The default limit on generated tokens, EOS included."""
        return 2 * self.source_length(source) + 10

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        """The tokens as text; None for a model without a tokenizer."""
        return None

    def piece(self, token: int) -> str | None:
        """The text of one token, with a leading space if it begins a word; None if the model has no names for tokens."""
        return None

    def special_token(self, text: str) -> int | None:
        """The id of the special token with this name (`<|im_end|>`); None if there is none."""
        return None

    def reader(self, prefix: Any = None) -> Callable[[Any], Source]:
        """A function that reads one input; ValueError if that cannot be decoded. `prefix` is the forced start of outputs."""
        if prefix:
            raise ValueError("a forced prefix needs a Hugging Face model; a model of your own can start from any state")
        return self._read

    def _read(self, raw: Any) -> Source:
        try:
            return Source(raw, self.source_length(raw), self.max_length(raw))
        except ValueError:
            raise  # its message describes the input's problem
        except Exception as error:  # raised by the user's code: attribute it to this input, not to the whole call
            raise ValueError(f"{name_of(self)} cannot read the input: {type(error).__name__}: {error}") from error

    def target(self, text: str) -> tuple[int, ...]:
        """The tokens of a given output text, without EOS. ValueError if the model cannot generate it."""
        raise ValueError(f"{type(self).__name__} reads no outputs; give token ids instead of text")

    def targets(self, texts: Sequence[str]) -> list[tuple[int, ...] | None]:
        """`target` for many texts at once; None for each text that the model cannot generate."""
        outputs: list[tuple[int, ...] | None] = []
        for text in texts:
            try:
                outputs.append(self.target(text))
            except ValueError:
                outputs.append(None)
        return outputs


def ask(model: Model, batch: Sequence[Query], method: str = "score") -> list[Scored]:
    """What the model's `score`, or `attend`, returns, as one `Scored` per query; queries with different `batch_key`s in calls of
    their own. BrokenLaw if its form is not understood."""
    out: list[Any] = [None] * len(batch)
    for places in groups_of(model, batch):
        for place, answer in zip(places, _ask_together(model, [batch[i] for i in places], method), strict=True):
            out[place] = answer
    return out


def groups_of(model: Model, batch: Sequence[Query]) -> Collection[Sequence[int]]:
    """The places of the queries that share a call: those with the same `batch_key`."""
    if getattr(model.batch_key, "__func__", None) is Model.batch_key:
        return [range(len(batch))]
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, query in enumerate(batch):
        groups[model.batch_key(query)].append(place)
    return groups.values()


def _ask_together(model: Model, batch: Sequence[Query], method: str) -> list[Scored]:
    given = getattr(model, method)(batch)
    label = f"{name_of(model)}.{method} was asked about {len(batch)} hypotheses"
    states: Any = None
    if isinstance(given, tuple) and len(given) == 2 and getattr(given[0], "ndim", 1) == 2:
        given, states = given
    if isinstance(given, Scored):
        raise BrokenLaw(f"{label} and returned one Scored; return a list, one for each")
    if isinstance(given, (dict, str)) or not hasattr(given, "__iter__"):
        raise BrokenLaw(f"{label} and returned {_described(given)}; return a list of Scored(logprobs, state), one for each")
    if getattr(given, "ndim", 2) != 2:
        shape = tuple(given.shape)
        raise BrokenLaw(f"{label} and returned an array of shape {shape}; return one of shape ({len(batch)}, vocabulary)")
    answers = list(given)
    for part, count in (("answers", len(answers)), ("states", len(answers if states is None else states))):
        if count != len(batch):
            raise BrokenLaw(f"{label} and returned {count} {part}; return one for each, in the same order")
    if states is not None:
        return [Scored(row, state) for row, state in zip(answers, states, strict=True)]
    return [answer if isinstance(answer, Scored) else _as_scored(answer) for answer in answers]


def _as_scored(answer: Any) -> Scored:
    """Converts a tuple of scores, state and attention, or plain scores."""
    if isinstance(answer, tuple) and len(answer) in (2, 3) and (answer[0] is None or hasattr(answer[0], "__len__")):
        return Scored(*answer)
    return Scored(answer)


def _described(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.40}"


def name_of(model: Any) -> str:
    """The name of the class that the user gave."""
    return type(getattr(model, "given", model)).__name__


class FunctionModel(Model):
    """A model defined by one function: `next_logprobs(prefix)` takes the generated tokens (no BOS) and scores every next token.

    toy = FunctionModel(lambda prefix: [-1.0, -0.5, -2.0], eos=0)
    bestfirst.decode(toy, [None], beam=2)

    A function of two arguments is called with the input as well: `(source, prefix)`. With `batched` it is called with a list of
    prefixes (preceded by a list of sources, if it takes two), and returns a row of scores for each."""

    stateful = False

    def __init__(self, next_logprobs: Callable[..., Any], eos: int | Collection[int], *, batched: bool = False) -> None:
        self.next_logprobs = next_logprobs
        self.batched = batched
        self.reads_source = _required_arguments(next_logprobs) > 1
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
            return rows  # the engine raises the error
        return list(map(Scored, rows, states))


def _required_arguments(function: Callable[..., Any]) -> int:
    """The number of positional arguments without a default; 1 if the function has no signature (a builtin)."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is Parameter.empty and each.kind in positional for each in parameters)


def eos_of(eos: Any, owner: str) -> frozenset[int]:
    """The tokens that finish a hypothesis as a set, from one int or several. ValueError, naming `owner`, for anything else."""
    try:
        return frozenset(map(index, eos)) if hasattr(eos, "__iter__") else frozenset([index(eos)])
    except TypeError:
        raise ValueError(f"{owner}.eos must be the token that ends a hypothesis, or several of them, got {eos!r}") from None


OPTIONAL_METHODS = [
    name for name, each in vars(Model).items() if callable(each) and name[0] != "_" and name not in ("start", "score")
]


class AdaptedModel(Model):
    """Wraps an object with `eos`, `start` and `score` as a `Model`; any other methods of `Model` that it has are used too."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.eos = eos_of(given.eos, type(given).__name__)
        self.stateful, self.chats = bool(getattr(given, "stateful", True)), bool(getattr(given, "chats", False))
        for name in OPTIONAL_METHODS:
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def start(self, source: Any) -> Any:
        return self.given.start(source)

    def score(self, batch: Sequence[Query]) -> Any:
        return self.given.score(batch)


def as_model(given: Any) -> Model:
    """The given object as a `Model`, adapted if necessary. TypeError, saying what to pass instead, if it is not a model."""
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
