"""Trie: the outputs there are, as three arrays. Ten million of them take seconds to build and nothing to load."""

from __future__ import annotations

import os
import warnings
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any

import numpy as np

from ..models import Model
from . import Constraint

NO_ITEM = -1


class Trie(Constraint):
    """Sequences of tokens, without EOS; an output is one of them, and then EOS.

    Nodes are numbered level by level, and within a level by parent and token, so the children of a node are a slice:

        tokens (nodes,)      the token that leads to a node; of the root, 0
        first  (nodes + 1,)  the children of node n are the nodes first[n] to first[n + 1]
        items  (nodes,)      the number of the sequence that ends here; -1: none does. Of equals, the first

    Trie([[4, 7], [4, 8]])           from lists, or from an array (sequences, tokens)
    Trie.of_texts(model, lines)      from texts, by the model's own tokenizer
    trie.save(path); Trie.load(path) by memory map: processes share it, and only what is looked at is read
    """

    ordered = True
    _without: frozenset[int] = frozenset()  # tokens that are known to be in no sequence

    def __init__(self, sequences: Iterable[Sequence[int]] | np.ndarray) -> None:
        flat, ends = _flattened(sequences)
        if not len(ends):
            raise ValueError("a trie needs at least one sequence, got none")
        if len(flat) and (flat.min() < 0 or flat.max() > np.iinfo(np.int32).max):
            odd = flat.min() if flat.min() < 0 else flat.max()
            raise ValueError(f"the tokens of a trie are numbers from 0 on, got {odd}")
        self.tokens, self.first, self.items = _built(flat, ends)

    def check(self, eos: Collection[int]) -> None:
        """An output that ends inside a sequence would be none of them."""
        if not self._without.issuperset(eos):
            if len(inside := np.flatnonzero(np.isin(self.tokens[1:], sorted(eos)))):
                found = self.tokens[1 + inside[0]]
                raise ValueError(f"token {found} ends an output, and a sequence of the trie has it; leave it out")
            self._without = frozenset(eos)

    @classmethod
    def of_texts(cls, model: Model, texts: Iterable[str]) -> Trie:
        """Texts as the model writes them. Empty ones are left out, and what it has no tokens for, with a warning; the others keep
        their numbers."""
        given = list(texts)
        found = model.targets(given)
        numbers = [i for i, tokens in enumerate(found) if tokens]
        unwritable = [i for i, tokens in enumerate(found) if tokens is None]
        if not numbers:
            reason = f": the model cannot write {given[unwritable[0]]!r}" if unwritable else ""
            raise ValueError(f"none of {len(given)} texts can be allowed{reason}")
        if unwritable:
            left_out, example = f"{len(unwritable)} of {len(given)} texts are left out", given[unwritable[0]]
            warnings.warn(f"{left_out}: the model has no tokens for all of {example!r}", stacklevel=2)
        trie = cls([found[i] for i in numbers])  # type: ignore[misc]
        trie.items = np.where(trie.items == NO_ITEM, NO_ITEM, np.asarray(numbers, np.int32)[trie.items])
        return trie

    def __len__(self) -> int:
        return int((self.items != NO_ITEM).sum())

    def __repr__(self) -> str:
        return f"Trie({len(self)} sequences, {len(self.tokens)} nodes)"

    @cached_property
    def largest(self) -> int:
        return int(self.tokens.max())

    @property
    def narrow(self) -> bool:
        """Whether its numbers have 32 bits, as those of fewer than two thousand million nodes do."""
        return all(array.dtype == np.int32 and array.flags.c_contiguous for array in (self.tokens, self.first, self.items))

    @cached_property
    def signature(self) -> str:  # type: ignore[override]
        digest = sha256(self.tokens.tobytes())
        digest.update(self.first.tobytes())
        digest.update(self.items.tobytes())
        return f"trie-{digest.hexdigest()[:16]}"

    # -- as a constraint ---------------------------------------------------------------------------------------------------

    def start(self) -> int:
        return 0

    def advance(self, states: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [self.child(node, token) for node, token in zip(states, tokens, strict=True)]

    @cached_property
    def _looked_up(self) -> tuple[memoryview, memoryview, memoryview]:
        """The arrays for those who look at single numbers, which are found in a tenth of the time."""
        tokens, first, items = (memoryview(array) for array in (self.tokens, self.first, self.items))  # type: ignore[arg-type]
        return tokens, first, items

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_looked_up"}

    def child(self, node: int, token: int) -> int:
        """The node that a token leads to. ValueError where it leads nowhere."""
        tokens, first, _ = self._looked_up
        end = first[node + 1]
        found = bisect_left(tokens, token, first[node], end)
        if found >= end or tokens[found] != token:
            raise ValueError(f"token {token} leads nowhere from node {node} of the trie")
        return found

    def allowed(self, states: Sequence[int], eos: Collection[int]) -> list[np.ndarray]:
        ends = np.asarray(sorted(eos), np.int32)
        _, first, items = self._looked_up
        found = []
        for node in states:
            begin, end = first[node], first[node + 1]
            tokens = self.tokens[begin:end]
            if items[node] != NO_ITEM:
                tokens = ends if begin == end else np.union1d(tokens, ends).astype(np.int32)
            found.append(tokens)
        return found

    def item(self, tokens: Sequence[int]) -> int | None:
        node = 0
        for token in tokens:
            node = self.child(node, token)
        item = self._looked_up[2][node]
        return None if item == NO_ITEM else item

    def __contains__(self, tokens: Sequence[int]) -> bool:
        try:
            return self.item(tokens) is not None
        except ValueError:
            return False

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The sequences, in order of their tokens."""
        waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        while waiting:
            node, tokens = waiting.pop()
            if self.items[node] != NO_ITEM:
                yield tokens
            children = range(int(self.first[node]), int(self.first[node + 1]))
            waiting += [(child, (*tokens, int(self.tokens[child]))) for child in reversed(children)]

    # -- in a file ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Three arrays in numpy's format, one behind the other."""
        with open(path, "wb") as file:
            for array in (self.tokens, self.first, self.items):
                np.lib.format.write_array(file, np.ascontiguousarray(array))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trie:
        """What `save` wrote. ValueError, naming the file, for anything else."""
        trie = cls.__new__(cls)
        try:
            with open(path, "rb") as file:
                trie.tokens, trie.first, trie.items = _mapped(file), _mapped(file), _mapped(file)
            trie._check()
        except (ValueError, TypeError, EOFError) as error:
            raise ValueError(f"{os.fspath(path)!r} is not a trie that was saved here: {error}") from None
        return trie

    def _check(self) -> None:
        """What a damaged file could break outside of its own arrays."""
        shapes = self.tokens.shape, self.first.shape, self.items.shape
        nodes = len(self.tokens)
        if not nodes or shapes != ((nodes,), (nodes + 1,), (nodes,)):
            raise ValueError(f"its arrays have the shapes {shapes}")
        if self.first[0] != 1 or self.first[-1] != nodes or (np.diff(self.first) < 0).any() or int(self.tokens.min()) < 0:
            raise ValueError("its nodes are not in order")


def read_trie(path: str, model: Model) -> Trie:
    """A saved trie, or a text, one output a line."""
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            return Trie.load(path)
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\r\n") for line in file]
    if not any(lines):
        raise ValueError("it has no lines")
    return Trie.of_texts(model, lines)


def _flattened(sequences: Any) -> tuple[np.ndarray, np.ndarray]:
    """All tokens one after another, and where each sequence ends."""
    if isinstance(sequences, np.ndarray) and sequences.ndim == 2:
        if not np.issubdtype(sequences.dtype, np.integer):
            raise ValueError(f"the tokens of a trie are whole numbers, got an array of {sequences.dtype}")
        return sequences.reshape(-1), np.arange(1, len(sequences) + 1, dtype=np.int64) * sequences.shape[1]
    rows = sequences if isinstance(sequences, (list, tuple)) else list(sequences)
    if any(isinstance(row, str) for row in rows):
        raise ValueError("a trie is made of token ids, got texts; write Trie.of_texts(model, texts)")
    try:
        ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), dtype=np.int64)
        return np.fromiter(chain.from_iterable(rows), np.int64, int(ends[-1]) if len(ends) else 0), ends
    except (TypeError, OverflowError):
        raise ValueError("a trie is made of sequences of token ids, a list of whole numbers for each item") from None


def _built(flat: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Level by level: sort the sequences that go on by node and next token; each different pair is a node of the next level.

    The sort is stable and what was sorted stays so: after a few levels it has next to nothing left to do.
    """
    begins = ends - np.diff(ends, prepend=0)
    alive = np.arange(len(ends), dtype=np.int64)  # in order of their nodes
    node = np.zeros(len(ends), np.int64)
    tokens, children, items = [np.zeros(1, np.int32)], [], []
    nodes, depth = 1, 0
    while True:
        over = ends[alive] - begins[alive] == depth
        here = np.full(len(tokens[-1]), NO_ITEM, np.int32)
        ended = node[over] - (nodes - len(here))
        here[ended[::-1]] = alive[over][::-1]  # of equals the first, which is written last
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


def _mapped(file: Any) -> np.ndarray:
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
