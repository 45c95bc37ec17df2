"""`Trie`: a finite set of allowed outputs, as three flat arrays, which the compiled CPU searches and the GPU kernels read, too.
Ten million outputs take seconds to build, and load by memory map."""

from __future__ import annotations

import os
import warnings
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from ..models import Model
from . import Constraint

NO_ITEM = -1


class Trie(Constraint):
    """A set of token sequences without EOS; an output is one of them followed by EOS.

    Nodes are numbered by level, and within a level by parent and token, so the children of a node are a contiguous range:

        tokens (nodes,)      the token on the edge to a node; 0 for the root
        first  (nodes + 1,)  the children of node n are the nodes first[n] to first[n + 1] - 1
        items  (nodes,)      the index of the sequence that ends at a node, -1 for none; of equal sequences, the first

    Trie([[4, 7], [4, 8]])           from lists, or from an array (sequences, tokens)
    Trie.of_texts(model, lines)      from texts, by the model's own tokenizer
    trie.save(path); Trie.load(path) by memory map: processes share it, and only the pages in use are read
    """

    ordered = True
    _absent: frozenset[int] = frozenset()  # tokens known to be in no sequence: EOS tokens that `check` has looked for

    def __init__(self, sequences: Iterable[Sequence[int]] | np.ndarray) -> None:
        flat, ends = _flatten(sequences)
        if not len(ends):
            raise ValueError("a trie needs at least one sequence, got none")
        if len(flat) and (flat.min() < 0 or flat.max() > np.iinfo(np.int32).max):
            odd = flat.min() if flat.min() < 0 else flat.max()
            raise ValueError(f"the tokens of a trie are numbers from 0 on, got {odd}")
        self.tokens, self.first, self.items = _build_arrays(flat, ends)

    def check(self, eos: Collection[int]) -> None:
        """ValueError if a sequence contains an EOS token: an output would end there, inside of the sequence."""
        if not self._absent.issuperset(eos):
            if len(inside := np.flatnonzero(np.isin(self.tokens[1:], sorted(eos)))):
                token = self.tokens[1 + inside[0]]
                raise ValueError(f"token {token} ends an output, and a sequence of the trie has it; leave it out")
            self._absent = frozenset(eos)

    @classmethod
    def of_texts(cls, model: Model, texts: Iterable[str]) -> Trie:
        """A trie of texts, tokenized by the model. Empty texts are left out, and with a warning also those that the model has no
        tokens for; the items of the others are their indices in `texts`."""
        given = list(texts)
        sequences = model.targets(given)
        numbers = [i for i, tokens in enumerate(sequences) if tokens]
        unwritable = [i for i, tokens in enumerate(sequences) if tokens is None]
        if not numbers:
            reason = f": the model cannot write {given[unwritable[0]]!r}" if unwritable else ""
            raise ValueError(f"none of {len(given)} texts can be allowed{reason}")
        if unwritable:
            left_out, example = f"{len(unwritable)} of {len(given)} texts are left out", given[unwritable[0]]
            warnings.warn(f"{left_out}: the model has no tokens for all of {example!r}", stacklevel=2)
        trie = cls([sequences[i] for i in numbers])  # type: ignore[misc]
        trie.items = np.where(trie.items == NO_ITEM, NO_ITEM, np.asarray(numbers, np.int32)[trie.items])
        return trie

    def __len__(self) -> int:
        return int((self.items != NO_ITEM).sum())

    def __repr__(self) -> str:
        return f"Trie({len(self)} sequences, {len(self.tokens)} nodes)"

    @cached_property
    def largest(self) -> int:
        """The largest token id."""
        return int(self.tokens.max())

    @property
    def narrow(self) -> bool:
        """Whether the arrays are contiguous int32, as they are for fewer than 2^31 nodes: what compiled searches require."""
        return all(array.dtype == np.int32 and array.flags.c_contiguous for array in (self.tokens, self.first, self.items))

    @cached_property
    def signature(self) -> str:  # type: ignore[override]
        digest = sha256(self.tokens.tobytes())
        digest.update(self.first.tobytes())
        digest.update(self.items.tobytes())
        return f"trie-{digest.hexdigest()[:16]}"

    # -- the Constraint interface; a state is a node -----------------------------------------------------------------------

    def start(self) -> int:
        return 0

    def advance(self, states: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [self.child(node, token) for node, token in zip(states, tokens, strict=True)]

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview, memoryview]:
        """The three arrays as memoryviews: reading a single element takes a tenth of numpy's time. Not pickled."""
        tokens, first, items = (memoryview(array) for array in (self.tokens, self.first, self.items))  # type: ignore[arg-type]
        return tokens, first, items

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_views"}

    def child(self, node: int, token: int) -> int:
        """The child of a node by its token. ValueError if there is none."""
        tokens, first, _ = self._views
        end = first[node + 1]
        child = bisect_left(tokens, token, first[node], end)
        if child >= end or tokens[child] != token:
            raise ValueError(f"token {token} leads nowhere from node {node} of the trie")
        return child

    def allowed(self, states: Sequence[int], eos: Collection[int]) -> list[np.ndarray]:
        ends = np.asarray(sorted(eos), np.int32)
        _, first, items = self._views
        rows = []
        for node in states:
            begin, end = first[node], first[node + 1]
            tokens = self.tokens[begin:end]
            if items[node] != NO_ITEM:
                tokens = ends if begin == end else np.union1d(tokens, ends).astype(np.int32)
            rows.append(tokens)
        return rows

    def item(self, tokens: Sequence[int]) -> int | None:
        node = 0
        for token in tokens:
            node = self.child(node, token)
        item = self._views[2][node]
        return None if item == NO_ITEM else item

    def __contains__(self, tokens: Sequence[int]) -> bool:
        try:
            return self.item(tokens) is not None
        except ValueError:
            return False

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The sequences in lexicographic order."""
        stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        while stack:
            node, tokens = stack.pop()
            if self.items[node] != NO_ITEM:
                yield tokens
            children = range(int(self.first[node]), int(self.first[node + 1]))
            stack += [(child, (*tokens, int(self.tokens[child]))) for child in reversed(children)]

    # -- in a file ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the three arrays in numpy's format to one file, one after another."""
        with open(path, "wb") as file:
            for array in (self.tokens, self.first, self.items):
                np.lib.format.write_array(file, np.ascontiguousarray(array))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trie:
        """A trie that `save` wrote, by memory map. ValueError, naming the file, for anything else."""
        trie = cls.__new__(cls)
        try:
            with open(path, "rb") as file:
                trie.tokens, trie.first, trie.items = _map_array(file), _map_array(file), _map_array(file)
            trie._check_arrays()
        except (ValueError, TypeError, EOFError) as error:
            raise ValueError(f"{os.fspath(path)!r} is not a trie that was saved here: {error}") from None
        return trie

    def _check_arrays(self) -> None:
        """ValueError if shapes or indices of a loaded file are inconsistent, which could cause reads outside of the arrays."""
        shapes = self.tokens.shape, self.first.shape, self.items.shape
        nodes = len(self.tokens)
        if not nodes or shapes != ((nodes,), (nodes + 1,), (nodes,)):
            raise ValueError(f"its arrays have the shapes {shapes}")
        if self.first[0] != 1 or self.first[-1] != nodes or (np.diff(self.first) < 0).any() or int(self.tokens.min()) < 0:
            raise ValueError("its nodes are not in order")


def read_trie(path: str, model: Model) -> Trie:
    """The trie in a file: a saved one, or a text with one output per line."""
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            return Trie.load(path)
    lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if not any(lines):
        raise ValueError("it has no lines")
    return Trie.of_texts(model, lines)


def _flatten(sequences: Any) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of all sequences, concatenated, and the end offset of each sequence. ValueError for anything but token ids."""
    if isinstance(sequences, np.ndarray) and sequences.ndim == 2:
        if not np.issubdtype(sequences.dtype, np.integer):
            raise ValueError(f"the tokens of a trie are whole numbers, got an array of {sequences.dtype}")
        return sequences.reshape(-1), np.arange(1, len(sequences) + 1, dtype=np.int64) * sequences.shape[1]
    try:
        rows = sequences if isinstance(sequences, (list, tuple)) else list(sequences)
        if any(isinstance(row, str) for row in rows):
            raise ValueError("a trie is made of token ids, got texts; write Trie.of_texts(model, texts)")
        ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), dtype=np.int64)
        return np.fromiter(map(index, chain.from_iterable(rows)), np.int64, int(ends[-1]) if len(ends) else 0), ends
    except (TypeError, OverflowError):
        raise ValueError("a trie is made of sequences of token ids, a list of whole numbers for each item") from None


def _build_arrays(flat: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays (tokens, first, items), level by level: sort the sequences that continue by (node, next token); each distinct
    pair is a node of the next level. After a few levels the input of the stable sort is nearly sorted, which makes it cheap."""
    begins = ends - np.diff(ends, prepend=0)
    alive = np.arange(len(ends), dtype=np.int64)  # sequences that reach this level, in order of their nodes
    node = np.zeros(len(ends), np.int64)  # the node of each
    tokens, children, items = [np.zeros(1, np.int32)], [], []
    nodes, depth = 1, 0
    while True:
        over = ends[alive] - begins[alive] == depth
        here = np.full(len(tokens[-1]), NO_ITEM, np.int32)
        ended = node[over] - (nodes - len(here))
        here[ended[::-1]] = alive[over][::-1]  # reversed: of equal sequences the first is written last and wins
        items.append(here)
        alive, node = alive[~over], node[~over]
        if not len(alive):
            children.append(np.zeros(len(here), np.int64))
            break
        key = (node << 32) | flat[begins[alive] + depth].astype(np.int64)
        order = np.argsort(key, kind="stable")
        key, alive = key[order], alive[order]
        new = np.empty(len(key), bool)
        new[0], new[1:] = True, key[1:] != key[:-1]
        children.append(np.bincount((key[new] >> 32) - (nodes - len(here)), minlength=len(here)))
        tokens.append((key[new] & 0xFFFFFFFF).astype(np.int32))
        node = nodes - 1 + np.cumsum(new)
        nodes += len(tokens[-1])
        depth += 1
    first = np.concatenate([[1], 1 + np.cumsum(np.concatenate(children))])
    return np.concatenate(tokens), first.astype(np.int64 if nodes >= 2**31 else np.int32), np.concatenate(items)


def _map_array(file: Any) -> np.ndarray:
    """Memory-map the integer array at the file's position, and move past it. ValueError if it is not one."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"it has version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind != "i" or len(shape) != 1 or not shape[0]:
        raise ValueError(f"it holds an array of {dtype} and shape {shape}")
    begin = file.tell()
    array = np.memmap(file, dtype, "r", begin, shape)
    file.seek(begin + array.nbytes)
    return array
