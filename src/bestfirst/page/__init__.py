"""The page that shows a search: one HTML file that needs no network, made from recorded traces.

    results = [bestfirst.decode(model, [text], strategy=name, trace=True)[0] for name in ("best-first", "beam")]
    bestfirst.view(*results).save("page.html")          # or leave the page as a notebook cell's value

Every search of a page is a list of events, as `Trace.events` holds them and `bestfirst.search.trace` explains them: plain JSON.

    view(*what) -> Page         of results (decoded with `trace=True`), traces, lists of events, or the path of a JSONL file
    render(*searches) -> str    the whole page, of lists of events
    component() -> str          a <style> and a <script>, for a page of your own

In a page that has the component, from JSON that a server sent (no Python involved):

    const shown = bestfirst.show(element, [events, events], {title, trouble});     // one or more searches of one input
    shown.step(12);                                     // after the twelfth pop; also: play(), pause(), select(search, id)
    shown.remove();                                     // take it out again, listeners included

`show` fills the element and no more: all its style rules begin with `.bf`, its colours are custom properties (`--bf-...`) that a
page may set, and it follows the reader's light or dark theme unless an ancestor says `data-theme="light"` or `"dark"`. Texts are
only ever set as text, so whatever is in them is inert; `embed(value)` writes JSON that may stand inside a <script>.
"""

from .html import Page, component, embed, render, view
from .recorded_tree import RecordedTree
from .trace_file import read

__all__ = ["Page", "RecordedTree", "component", "embed", "read", "render", "view"]
