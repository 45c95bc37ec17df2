"""A search in the terminal: the tree of what survived, and how many met each fate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .recorded_tree import FATES, Fate, Node, RecordedTree

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

MARKS: dict[Fate, str] = {"expanded": "●", "pending": "○", "pruned": "✕", "evicted": "▽", "finished": "◆", "returned": "★"}
STYLES: dict[Fate, str] = {
    "expanded": "blue", "pending": "dim", "pruned": "red", "evicted": "magenta", "finished": "green", "returned": "bold yellow",
}  # fmt: skip
SHOWN = 3  # of the hypotheses that wait behind one parent, this many are named


def draw(searches: Sequence[RecordedTree]) -> list[RenderableType]:
    """What to print: a tree for each search, then one table for all."""
    return [*(_tree(search) for search in searches), _table(searches)]


def printable(text: str) -> str:
    """A text without what a terminal would obey: line ends, escapes, marks that turn the direction of the rest."""
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
    roots = [y for y in search.nodes.values() if y.parent is None]
    alive = _surviving(search.nodes.values())
    waiting = [(tree, root) for root in roots]
    while waiting:
        above, y = waiting.pop()
        for z, words in _branches(y, alive):
            branch = above.add(words)
            if z is not None:
                waiting.append((branch, z))
    return tree


def _surviving(nodes: Iterable[Node]) -> set[int]:
    """Those that wait or are complete, and all that they grew from."""
    alive: set[int] = set()
    for y in nodes:
        z: Node | None = y if y.fate in ("pending", "finished", "returned") else None
        while z is not None and z.id not in alive:
            alive.add(z.id)
            z = z.parent
    return alive


def _branches(y: Node, alive: set[int]) -> list[tuple[Node | None, Text]]:
    """What grows from `y`: chains that do not branch are one line, those that merely wait are named only if they are few."""
    from rich.text import Text

    grown = sorted((z for z in y.children if z.id in alive), key=lambda z: -z.score)
    waiting = [z for z in grown if z.fate == "pending"]
    hidden = {z.id for z in waiting[SHOWN:]} if len(waiting) > SHOWN + 1 else set()
    branches: list[tuple[Node | None, Text]] = []
    for z in (z for z in grown if z.id not in hidden):
        last, text = z, z.piece
        while len(only := [each for each in last.children if each.id in alive]) == 1:
            last = only[0]
            text += " ⏎" if last.finished else last.piece
        guessed = "≈" if z.drafted else ""
        words = Text(f"{MARKS[last.fate]} {guessed}{printable(text.strip())} ", style=STYLES[last.fate])
        branches.append((last, words.append(f"{last.score:.2f}", style="dim")))
    if hidden:
        branches.append((None, Text(f"{MARKS['pending']} {len(hidden)} more wait", style="dim")))
    return branches


def _table(searches: Sequence[RecordedTree]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("strategy", no_wrap=True)
    table.add_column("calls", justify="right")
    for fate in FATES:
        table.add_column(f"{MARKS[fate]} {fate}", justify="right", no_wrap=True)
    table.add_column("answer", overflow="fold")
    for search in searches:
        counts = search.counts()
        named = search.texts[0] if search.texts else None
        answer = named if named is not None else search.answers[0].text if search.answers else "nothing finished"
        numbers = [str(search.calls), *(str(counts[fate]) for fate in FATES)]
        table.add_row(str(search.about.get("strategy", "")), *numbers, Text(printable(answer)))
    return table
