"""`Grammar`: outputs that match a regular expression, a JSON schema or a context-free grammar, by llguidance's token masks.

llguidance was chosen among such libraries because beam hypotheses fork: its matchers are copied in a microsecond. It also
supports all three kinds and has no dependencies (comparison in `docs/constraints.md`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..models import Model
from ..models.tokenizer import SPACE
from . import Constraint

WHITESPACE = {"whitespace_pattern": " ?"}  # bounded: otherwise an output of line ends alone could go on forever
OPTIONAL_SPACE = '" "? '  # in Lark
_library_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # model -> llguidance's LLTokenizer


class Grammar(Constraint):
    """Outputs whose text is derived from a grammar.

    Grammar.regex(model, r"[A-Z]{2}-\\d+")         the whole output matches
    Grammar.json(model, {"type": "object", ...})   JSON of this schema; a mapping, or its text
    Grammar.lark(model, 'start: "yes" | "no"')     a context-free grammar, as Lark writes them
    """

    ordered = True

    def __init__(self, model: Model, grammar: str) -> None:
        """`grammar` is in llguidance's own format; use one of the class methods instead."""
        library = _library()
        tokenizer = _library_tokenizer(model)
        if error := library.LLMatcher.validate_grammar(grammar, tokenizer):
            raise ValueError(f"the grammar cannot be read: {_error_line(error)}")
        self._executor = library.LLExecutor()
        self._start_matcher = library.LLMatcher(tokenizer, grammar, log_level=0)
        self._mask_words = (tokenizer.vocab_size + 31) // 32
        self._eos = set(tokenizer.eos_tokens)
        self.signature = f"grammar-{sha256(grammar.encode()).hexdigest()[:16]}"

    @classmethod
    def regex(cls, model: Model, pattern: str) -> Grammar:
        """Outputs of which the whole text matches the pattern."""
        return cls(model, _compile("regex", f"{'(?: )?' if _begins_with_space(model) else ''}(?:{pattern})"))

    @classmethod
    def json(cls, model: Model, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON of a schema, with at most one space between its parts (`x-guidance` in the schema overrides that)."""
        try:
            schema = {"x-guidance": WHITESPACE, **(json.loads(schema) if isinstance(schema, str) else schema)}
        except (TypeError, ValueError) as error:
            raise ValueError(f"the schema is not a JSON object: {error}") from None
        start = f"start: {OPTIONAL_SPACE if _begins_with_space(model) else ''}value"
        return cls(model, _compile("lark", f"{start}\nvalue: %json {json.dumps(schema)}\n"))

    @classmethod
    def lark(cls, model: Model, text: str) -> Grammar:
        """Outputs that a context-free grammar, in Lark's syntax, derives from `start`."""
        if _begins_with_space(model):
            text = f"start: {OPTIONAL_SPACE}whole\nwhole: %lark {{\n{text}\n}}\n"  # the nested grammar keeps its own `start`
        return cls(model, _compile("lark", text))

    # -- the Constraint interface; a state is an LLMatcher -------------------------------------------------------------------

    def start(self) -> Any:
        return self._start_matcher.deep_copy()

    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """None for a dead end: no token of this vocabulary spells what the grammar requires next."""
        copies = [state.deep_copy() for state in states]
        return [copy if copy.consume_token(token) else None for copy, token in zip(copies, tokens, strict=True)]

    def allowed(self, states: Sequence[Any], eos: Collection[int]) -> list[np.ndarray]:
        """All masks come from one call of llguidance's executor, which releases the GIL and uses threads."""
        masks = np.zeros((len(states), self._mask_words), np.int32)
        numbered = [(state, row) for row, state in enumerate(states) if state is not None]
        if numbered:
            self._executor.unsafe_compute_mask_ptr(numbered, masks.ctypes.data, 4 * self._mask_words, len(states))
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
        # a failed matcher (a character without a token, one of llguidance's limits) would allow EOS
        alive = np.array([state is not None and not state.is_error() for state in states], bool)
        may_end = alive & bits[:, sorted(self._eos)].any(1)
        may_end[may_end] = [state.is_accepting() for state, ends in zip(states, may_end, strict=True) if ends]
        bits[~alive] = 0
        bits[:, sorted(self._eos)] = 0  # of these only the end tokens of this search may come
        bits[:, sorted(eos)] = may_end[:, None]
        return [np.flatnonzero(row).astype(np.int32) for row in bits]


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ValueError("grammars need llguidance; run: pip install 'bestfirst[grammar]'") from None
    return llguidance


def _compile(kind: str, text: str) -> str:
    """A "regex" or "lark" grammar in llguidance's own format. ValueError, in one line, if it is invalid."""
    try:
        return str(getattr(_library().LLMatcher, f"grammar_from_{kind}")(text))
    except Exception as error:
        raise ValueError(f"the grammar cannot be read: {_error_line(str(error))}") from None


def _error_line(error: str) -> str:
    """The relevant line of one of llguidance's errors: the one that starts with "error:", else the first."""
    lines = [line.strip() for line in error.strip().splitlines()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0] if lines else "")


def _begins_with_space(model: Model) -> bool:
    """Whether the model's tokenizer puts a space before every text; then grammars allow one at the start."""
    tokenizer = _tokenizer(model)
    return any(str(token).startswith(SPACE) for token in tokenizer.convert_ids_to_tokens(list(tokenizer("word").input_ids)))


def _tokenizer(model: Model) -> Any:
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError("a grammar is over text, and this model has no tokenizer; use a Trie, or a Constraint of your own")
    return tokenizer


def _library_tokenizer(model: Model) -> Any:
    """The model's vocabulary as llguidance's LLTokenizer, built once per model."""
    if model in _library_tokenizers:
        return _library_tokenizers[model]
    library, tokenizer, eos = _library(), _tokenizer(model), sorted(model.eos)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    size = model.vocabulary  # type: ignore[attr-defined]
    source = library.TokenizerWrapper(_Pieces(tokenizer, eos[0], size)) if backend is None else backend.to_str()
    made = _library_tokenizers[model] = library.LLTokenizer(source, n_vocab=size, eos_token=eos)
    return made


class _Pieces:
    """The bytes of every token, in the interface that llguidance expects, for a tokenizer without a `tokenizers` backend."""

    def __init__(self, tokenizer: Any, eos: int, size: int) -> None:
        self.eos_token_id, self.bos_token_id = eos, tokenizer.bos_token_id
        special = set(tokenizer.all_special_ids)
        names = [str(tokenizer.convert_ids_to_tokens(token)) for token in range(size)]
        self.tokens = [b"\xff" + name.encode() if i in special else _token_bytes(name) for i, name in enumerate(names)]
        self.special_token_ids = sorted(special)
        self._ids = {name: i for i, name in enumerate(self.tokens) if i not in special}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: bytes) -> list[int]:
        """Tokens that spell these bytes, greedily by longest match: llguidance does not need the canonical tokenization."""
        tokens, begin = [], 0
        while begin < len(text):
            ends = range(min(len(text), begin + self._longest), begin, -1)
            end = next((end for end in ends if text[begin:end] in self._ids), None)
            if end is None:
                break
            tokens.append(self._ids[text[begin:end]])
            begin = end
        return tokens


def _token_bytes(name: str) -> bytes:
    """The bytes that a sentencepiece piece stands for."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", name):  # sentencepiece's byte fallback
        return bytes([int(name[3:5], 16)])
    return name.replace(SPACE, " ").encode()
