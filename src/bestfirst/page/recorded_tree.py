"""RecordedTree: the search tree at the end of a trace, with the fate of every hypothesis and its reason; and its drawing for a
terminal. The page computes the same in the browser, pop by pop (`assets/recording.js`); `tests/page` compares the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree


Fate = Literal["expanded", "pending", "pruned", "evicted", "finished", "returned"]
FATES: tuple[Fate, ...] = get_args(Fate)
"""expanded: scored, its children were pushed; pending: on the agenda; pruned: fell off its beam, or never got onto it; evicted:
the queue was over capacity; finished: complete, but not among the n best; returned: one of the answers."""


@dataclass
class Node:
    """A hypothesis: the values it was pushed with, and its fate at the end of the trace."""

    id: int
    parent: Node | None
    piece: str  # its last token
    length: int
    score: float
    logprob: float
    finished: bool
    fate: Fate = "pending"
    why: dict[str, Any] = field(default_factory=dict)  # if pruned: why, at, better; if evicted: capacity
    popped: int | None = None  # the number of its pop, from 1
    drafted: bool = False  # scored as a draft, in one forward pass with its parent
    children: list[Node] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All its tokens: their texts, or their ids where the trace has no texts."""
        pieces: list[str] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            if not node.finished:
                pieces.append(node.piece)
            node = node.parent
        return "".join(reversed(pieces)).strip()


class RecordedTree:
    """One search: its settings (`about`, the `begin` event), its hypotheses by id, and its result."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.about: dict[str, Any] = {}
        self.nodes: dict[int, Node] = {}
        self.result: dict[str, Any] | None = None  # the `result` event; None if the trace is cut off
        self.texts: list[str | None] = []
        self.rows = 0
        self.drafted = 0  # rows that were scored as drafts, accepted or not
        for event in events:
            self._read(event)
        for y in self.nodes.values():
            if y.fate == "pending" and y.length == self.about.get("max_length"):
                y.fate, y.why = "pruned", {"why": "limit", "at": y.length}

    def _read(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "begin":
            self.about = dict(event)
        elif kind == "result":
            self.result = dict(event)
            for y in self.nodes.values():
                if y.fate == "returned":
                    y.fate = "finished"
            for number in event["answers"]:
                self.nodes[number].fate = "returned"
        elif kind == "text":
            self.texts = list(event["texts"])
            self.drafted = int(event.get("drafted", 0))
        else:
            self._change(kind, event)

    def _change(self, kind: str, event: Mapping[str, Any]) -> None:
        y = self._node(event)
        if kind == "push":
            y.fate, y.why = "pending" if y.popped is None else "expanded", {}
        elif kind == "pop":
            self.rows += 1
            y.popped = self.rows
            if y.fate == "pending":
                y.fate = "expanded"
        elif kind == "draft":
            y.drafted = True
        elif kind == "finish":
            y.fate = "finished"
            y.finished = True
        else:
            y.fate = "evicted" if kind == "evict" else "pruned"
            y.why = {name: event[name] for name in ("why", "at", "better", "capacity") if name in event}

    def _node(self, event: Mapping[str, Any]) -> Node:
        """The hypothesis of an event, which is created by the first event that names it."""
        number = event["id"]
        if number not in self.nodes:
            parent = None if event["parent"] is None else self.nodes[event["parent"]]
            values = {name: event[name] for name in ("id", "length", "score", "logprob")}
            self.nodes[number] = y = Node(parent=parent, piece=piece(event), finished=bool(event.get("finished")), **values)
            if parent is not None:
                parent.children.append(y)
        return self.nodes[number]

    @property
    def calls(self) -> int:
        """The calls of the result; if the trace is cut off, the number of pops in it."""
        return self.rows if self.result is None else int(self.result["calls"])

    @property
    def answers(self) -> list[Node]:
        """Best first."""
        return [] if self.result is None else [self.nodes[number] for number in self.result["answers"]]

    def counts(self) -> dict[Fate, int]:
        counts = Counter(y.fate for y in self.nodes.values())
        return {fate: counts[fate] for fate in FATES}


def piece(event: Mapping[str, Any]) -> str:
    """The text of an event's token, or its id, after a blank, if the trace has no text for it."""
    text = event.get("piece")
    return str(text) if text is not None else "" if event.get("token") is None else f" {event['token']}"


MARKS: dict[Fate, str] = {"expanded": "●", "pending": "○", "pruned": "✕", "evicted": "▽", "finished": "◆", "returned": "★"}
STYLES: dict[Fate, str] = {
    "expanded": "blue", "pending": "dim", "pruned": "red", "evicted": "magenta", "finished": "green", "returned": "bold yellow",
}  # fmt: skip
MOST_PENDING = 3  # children of one parent that are drawn; the others are counted


def draw(searches: Sequence[RecordedTree]) -> list[RenderableType]:
    """What to print in a terminal, with rich: a tree for each search, then a table of all."""
    return [*(_tree(search) for search in searches), _table(searches)]


def printable(text: str) -> str:
    """A text with its control characters replaced: line ends, terminal escapes, changes of the writing direction."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _tree(search: RecordedTree) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    about = search.about
    k = f"k = {about['beam']}" if about.get("beam") else "nothing pruned"
    calls = f"{search.calls} calls" if search.result is not None else f"{search.rows} rows, then the trace is cut off"
    if search.drafted:
        used = sum(y.drafted for y in search.nodes.values())
        calls += f", {used} of {search.drafted} guessed rows used"
    tree = Tree(Text(f"{about.get('strategy', 'a search')}, {k}: {calls}", style="bold"))
    alive = _surviving(search.nodes.values())
    waiting = [(tree, y) for y in search.nodes.values() if y.parent is None]
    while waiting:
        above, y = waiting.pop()
        for z, words in _branches(y, alive):
            branch = above.add(words)
            if z is not None:
                waiting.append((branch, z))
    return tree


def _surviving(nodes: Iterable[Node]) -> set[int]:
    """The ids of all pending and complete hypotheses and of their ancestors."""
    alive: set[int] = set()
    for y in nodes:
        z: Node | None = y if y.fate in ("pending", "finished", "returned") else None
        while z is not None and z.id not in alive:
            alive.add(z.id)
            z = z.parent
    return alive


def _branches(y: Node, alive: set[int]) -> list[tuple[Node | None, Text]]:
    """The lines below `y`, each as (last hypothesis, text): a chain that does not branch is one line, and of many pending
    hypotheses only the best are drawn."""
    from rich.text import Text

    grown = sorted((z for z in y.children if z.id in alive), key=lambda z: -z.score)
    waiting = [z for z in grown if z.fate == "pending"]
    hidden = {z.id for z in waiting[MOST_PENDING:]} if len(waiting) > MOST_PENDING + 1 else set()
    branches: list[tuple[Node | None, Text]] = []
    for z in (z for z in grown if z.id not in hidden):
        last, text = z, z.piece
        while len(only := [each for each in last.children if each.id in alive]) == 1:
            last = only[0]
            text += " ⏎" if last.finished else last.piece
        guessed = "≈" if z.drafted else ""
        words = Text(f"{MARKS[last.fate]} {guessed}{printable(text.strip()) or '␣'} ", style=STYLES[last.fate])
        branches.append((last, words.append(f"{last.score:.2f}", style="dim")))
    if hidden:
        branches.append((None, Text(f"{MARKS['pending']} {len(hidden)} more wait", style="dim")))
    return branches


def _table(searches: Sequence[RecordedTree]) -> RenderableType:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    headings = ("calls", *(f"{MARKS[fate]} {fate}" for fate in FATES))
    numbers = [Column(heading, justify="right", no_wrap=True) for heading in headings]
    table = Table(Column("strategy", no_wrap=True), *numbers, Column("answer", overflow="fold"), box=box.SIMPLE_HEAD)
    for search in searches:
        counts = search.counts()
        named = search.texts[0] if search.texts else None
        answer = named if named is not None else search.answers[0].text if search.answers else "nothing finished"
        counted = (str(number) for number in (search.calls, *counts.values()))
        table.add_row(str(search.about.get("strategy", "")), *counted, Text(printable(answer)))
    return table
