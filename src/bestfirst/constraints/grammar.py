"""Grammar: outputs of a form: a regular expression, a JSON schema, a context-free grammar. Masks are llguidance's.

llguidance, of the libraries that compute such masks, because a beam forks: its matchers are copied in a microsecond, it has all
three kinds, and it depends on nothing (`docs/constraints.md` has the comparison).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..models import Model
from . import Constraint

WHITESPACE = {"whitespace_pattern": " ?"}  # without a bound, outputs of nothing but line ends would be allowed
OPTIONAL = '" "? '
SPACE = "\u2581"  # sentencepiece's: a text begins with one
_vocabularies: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by model: what llguidance made of its tokenizer


class Grammar(Constraint):
    """What is allowed by a grammar over the model's own text.

    Grammar.regex(model, r"[A-Z]{2}-\\d+")         the whole output matches
    Grammar.json(model, {"type": "object", ...})   JSON of this schema; a mapping, or its text
    Grammar.lark(model, 'start: "yes" | "no"')     a context-free grammar, as Lark writes them
    """

    ordered = True

    def __init__(self, model: Model, grammar: str) -> None:
        """`grammar` as `llguidance.LLMatcher` takes it; use one of the three."""
        library = _library()
        tokenizer = _vocabulary(model)
        if error := library.LLMatcher.validate_grammar(grammar, tokenizer):
            raise ValueError(f"the grammar cannot be read: {_told(error)}")
        self._executor = library.LLExecutor()
        self._first = library.LLMatcher(tokenizer, grammar, log_level=0)
        self._words = (tokenizer.vocab_size + 31) // 32
        self._eos = set(tokenizer.eos_tokens)
        self.signature = f"grammar-{sha256(grammar.encode()).hexdigest()[:16]}"

    @classmethod
    def regex(cls, model: Model, pattern: str) -> Grammar:
        """Outputs that match from their first to their last letter."""
        return cls(model, _from("regex", f"{'(?: )?' if _begins_with_space(model) else ''}(?:{pattern})"))

    @classmethod
    def json(cls, model: Model, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that obeys a schema, with at most one space between its parts (`x-guidance` in the schema asks for more)."""
        try:
            schema = {"x-guidance": WHITESPACE, **(json.loads(schema) if isinstance(schema, str) else schema)}
        except (TypeError, ValueError) as error:
            raise ValueError(f"the schema is not a JSON object: {error}") from None
        start = f"start: {OPTIONAL if _begins_with_space(model) else ''}value"
        return cls(model, _from("lark", f"{start}\nvalue: %json {json.dumps(schema)}\n"))

    @classmethod
    def lark(cls, model: Model, text: str) -> Grammar:
        """What a context-free grammar derives from `start`."""
        if _begins_with_space(model):
            text = f"start: {OPTIONAL}whole\nwhole: %lark {{\n{text}\n}}\n"  # whose `start` is its own
        return cls(model, _from("lark", text))

    # -- as a constraint -----------------------------------------------------------------------------------------------------

    def start(self) -> Any:
        return self._first.deep_copy()

    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """None for a dead end: what the grammar asks for next has no token in this vocabulary."""
        copies = [state.deep_copy() for state in states]
        return [copy if copy.consume_token(token) else None for copy, token in zip(copies, tokens, strict=True)]

    def allowed(self, states: Sequence[Any], eos: Collection[int]) -> list[np.ndarray]:
        """All masks in one call, outside of Python's lock and in threads."""
        masks = np.zeros((len(states), self._words), np.int32)
        numbered = [(state, row) for row, state in enumerate(states) if state is not None]
        if numbered:
            self._executor.unsafe_compute_mask_ptr(numbered, masks.ctypes.data, 4 * self._words, len(states))
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
        # a matcher that has failed (a letter without a token, a limit of the library's) lets EOS through, too
        alive = np.array([state is not None and not state.is_error() for state in states], bool)
        may_end = alive & bits[:, sorted(self._eos)].any(1)
        may_end[may_end] = [state.is_accepting() for state, ends in zip(states, may_end, strict=True) if ends]
        bits[~alive] = 0
        bits[:, sorted(eos)] = may_end[:, None]
        return [np.flatnonzero(row).astype(np.int32) for row in bits]


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ValueError("grammars need llguidance; run: pip install 'bestfirst[grammar]'") from None
    return llguidance


def _from(kind: str, text: str) -> str:
    """A grammar of llguidance's own. ValueError, in one line, for what it cannot read."""
    try:
        return str(getattr(_library().LLMatcher, f"grammar_from_{kind}")(text))
    except Exception as error:
        raise ValueError(f"the grammar cannot be read: {_told(str(error))}") from None


def _told(error: str) -> str:
    """The line of an error that says what is wrong."""
    lines = [line.strip() for line in error.strip().splitlines()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0] if lines else "")


def _begins_with_space(model: Model) -> bool:
    """Whether its tokenizer begins every text with a space: then one may stand first."""
    tokenizer = _tokenizer(model)
    return any(str(token).startswith(SPACE) for token in tokenizer.convert_ids_to_tokens(list(tokenizer("word").input_ids)))


def _tokenizer(model: Model) -> Any:
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError("a grammar is over text, and this model has no tokenizer; use a Trie, or a Constraint of your own")
    return tokenizer


def _vocabulary(model: Model) -> Any:
    """The model's tokens as llguidance knows them, made once."""
    if model in _vocabularies:
        return _vocabularies[model]
    library, tokenizer, eos = _library(), _tokenizer(model), sorted(model.eos)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    size = model.vocabulary  # type: ignore[attr-defined]
    if backend is not None:
        made = library.LLTokenizer(backend.to_str(), n_vocab=size, eos_token=eos)
    else:
        made = library.LLTokenizer(library.TokenizerWrapper(_Pieces(tokenizer, eos[0], size)), n_vocab=size, eos_token=eos)
    _vocabularies[model] = made
    return made


class _Pieces:
    """A tokenizer without `tokenizers` behind it, as llguidance asks for it: every token's bytes."""

    def __init__(self, tokenizer: Any, eos: int, size: int) -> None:
        self.eos_token_id, self.bos_token_id = eos, tokenizer.bos_token_id
        special = set(tokenizer.all_special_ids)
        names = [str(tokenizer.convert_ids_to_tokens(token)) for token in range(size)]
        self.tokens = [b"\xff" + name.encode() if i in special else _bytes(name) for i, name in enumerate(names)]
        self.special_token_ids = sorted(special)
        self._numbers = {name: i for i, name in enumerate(self.tokens) if i not in special}
        self._longest = max(map(len, self._numbers))

    def __call__(self, text: bytes) -> list[int]:
        """Some tokens that spell these very bytes: llguidance only wants to know how many are certain."""
        found, begin = [], 0
        while begin < len(text):
            ends = range(min(len(text), begin + self._longest), begin, -1)
            end = next((end for end in ends if text[begin:end] in self._numbers), None)
            if end is None:
                break
            found.append(self._numbers[text[begin:end]])
            begin = end
        return found


def _bytes(name: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-F]{2}>", name):  # sentencepiece's byte fallback
        return bytes([int(name[3:5], 16)])
    return name.replace(SPACE, " ").encode()
