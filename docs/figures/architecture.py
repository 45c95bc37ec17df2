"""Traces one sentence through the package, on the CPU and on a GPU, and draws which files were entered.

Writes `architecture.json`, two pictures, and the list in `docs/architecture.md`.

python docs/figures/architecture.py               trace again, draw, and write the list (a minute)
python docs/figures/architecture.py --draw        draw again from architecture.json
python docs/figures/architecture.py --trace NAME  one trace, as JSON: cpu, gpu, first, command

A file is entered when one of its functions is called; running a module or the body of a class on import does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "architecture.md"
SENTENCE = "Guten Morgen!"
NO_FUNCTIONS = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
BEGIN, END = "<!-- made by docs/figures/architecture.py -->", "<!-- end -->"


@dataclass
class Entered:
    """A file, the one that called it most often, and its functions in the order in which they were entered."""

    file: str
    caller: str | None
    functions: list[str] = field(default_factory=list)


@dataclass
class Flow:
    """What one run entered, in order, and how many files it had imported by its end."""

    entered: list[Entered]
    imported: int

    @property
    def files(self) -> list[str]:
        return [each.file for each in self.entered]


# -- tracing a run -------------------------------------------------------------------------------------------------------


def follow(run: Callable[[], Any], package: str = "bestfirst") -> Flow:
    """Run it, and record which functions of the package are called, and from which files."""
    root = f"{Path(str(import_module(package).__file__)).parent}{os.sep}"
    functions: dict[str, dict[str, None]] = {}
    calls: Counter[tuple[str, str]] = Counter()

    def package_file(frame: FrameType) -> str | None:
        code = frame.f_code
        no_function = code.co_name in NO_FUNCTIONS or "__qualname__" in code.co_names  # stored by the body of a class
        return None if no_function or not code.co_filename.startswith(root) else code.co_filename.removeprefix(root)

    def record_call(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (file := package_file(frame)) is None:
            return
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name).split(".<")[0]
        functions.setdefault(file, {}).setdefault(name)
        above = frame.f_back or sys._getframe(1)  # a compiled function has no caller's frame
        while above is not None and (package_file(above) or file) == file:
            above = above.f_back
        if above is not None:
            calls[str(package_file(above)), file] += 1

    sys.setprofile(record_call)
    try:
        run()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    callers = most_frequent(list(functions), calls)
    paths = [str(getattr(module, "__file__", None)) for module in list(sys.modules.values())]
    entered = [Entered(file, callers.get(file), [*own]) for file, own in functions.items()]
    return Flow(entered, sum(path.startswith(root) for path in paths))


def most_frequent(files: list[str], calls: Counter[tuple[str, str]]) -> dict[str, str]:
    """For each file the one that called it most often; where that would close a cycle, the next."""
    callers: dict[str, str] = {}
    for (above, file), _ in calls.most_common():
        if file in callers or file == files[0]:
            continue
        chain = [above]
        while chain[-1] in callers:
            chain.append(callers[chain[-1]])
        if file not in chain:
            callers[file] = above
    return callers


# -- the traced runs -----------------------------------------------------------------------------------------------------


def cpu() -> Flow:
    """A translation with a model that was used before."""
    import bestfirst

    model = bestfirst.load()
    bestfirst.decode(model, [SENTENCE])
    return follow(lambda: bestfirst.decode(model, [SENTENCE]))


def first() -> Flow:
    """The first translation with a model, which chooses its step and number of rows, and loads kernels."""
    import bestfirst

    model = bestfirst.load()
    return follow(lambda: bestfirst.decode(model, [SENTENCE]))


def command() -> Flow:
    """`bestfirst translate` of one line: options, loading and the first translation."""
    from bestfirst.cli import main

    sys.argv = ["bestfirst", "translate"]
    with piped(f"{SENTENCE}\n"):
        return follow(main)


def gpu() -> Flow:
    """The same search by a GPU's kernels, which Triton's interpreter runs here: the first four tokens, with a beam of 2."""
    os.environ["TRITON_INTERPRET"] = "1"
    import bestfirst
    from bestfirst.models.folder import embedded_folder
    from bestfirst.models.transformers import TransformersModel, load_transformers

    TransformersModel.on_gpu = True  # type: ignore[assignment,method-assign]
    model = load_transformers(embedded_folder())
    bestfirst.decode(model, [SENTENCE], beam=2, max_length=4)
    return follow(lambda: bestfirst.decode(model, [SENTENCE], beam=2, max_length=4))


FLOWS = {"cpu": cpu, "gpu": gpu, "first": first, "command": command}


@contextmanager
def piped(text: str) -> Iterator[None]:
    """Standard input contains this text, standard output is discarded."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    kept = os.dup(1)
    os.dup2(reader, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)


def trace(name: str) -> Flow:
    """One flow, traced in a process of its own, where nothing was imported or determined before."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--trace", name]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=one_thread)
    if done.returncode:
        raise RuntimeError(f"the trace {name!r} failed: {done.stderr}")
    return flow_of(json.loads(done.stdout.splitlines()[-1]))


def flow_of(saved: dict[str, Any]) -> Flow:
    return Flow([Entered(**each) for each in saved["entered"]], saved["imported"])


def read() -> dict[str, Flow]:
    saved = json.loads((FOLDER / "architecture.json").read_text(encoding="utf-8"))
    return {name: flow_of(each) for name, each in saved.items()}


# -- the page ------------------------------------------------------------------------------------------------------------


def generated(flows: dict[str, Flow]) -> str:
    """The list for the page: how many files each run enters, and which ones on a CPU."""
    rows = {
        "`bestfirst.decode` of one sentence, CPU": "cpu",
        "the same, the first with this model": "first",
        "`bestfirst.decode` of one sentence, GPU": "gpu",
        "the command `bestfirst translate`, one line": "command",
    }
    table = ["| what runs | files entered | files imported |", "| --- | --: | --: |"]
    table += [f"| {what} | {len(flows[name].files)} | {flows[name].imported} |" for what, name in rows.items()]
    folders: dict[str, list[str]] = {}
    for file in sorted(flows["cpu"].files):
        folders.setdefault(str(Path(file).parent), []).append(f"`{Path(file).name}`")
    names = [f"| `{'bestfirst' if folder == '.' else folder}/` | {', '.join(own)} |" for folder, own in sorted(folders.items())]
    return "\n".join([BEGIN, *table, "", "| folder | entered on a CPU |", "| --- | --- |", *names, END])


def shown() -> str:
    """The list that the page contains."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


# -- the pictures --------------------------------------------------------------------------------------------------------

COLOURS = {
    "engine/device": ("#bf3989", "#db61a2", "the search on a GPU"),
    "engine/steps": ("#1a7f37", "#3fb950", "a step of the model"),
    "engine": ("#0969da", "#4493f8", "engines"),
    "search": ("#bc4c00", "#f0883e", "the paper"),
    "scoring": ("#9a6700", "#d29922", "scores"),
    "models": ("#8250df", "#ab7df8", "models"),
    "": ("#59636e", "#9198a1", "doors and settings"),
}
ROW, WIDTH = 22, 900


def kind(file: str) -> int:
    """The index of a file's colour."""
    return next(i for i, folder in enumerate(COLOURS) if not folder or file.startswith(f"{folder}/"))


def draw(flow: Flow, title: str) -> str:
    """One row per file, under the one that called it, with the functions that were called."""
    below: dict[str | None, list[Entered]] = {}
    for each in flow.entered:
        below.setdefault(each.caller, []).append(each)
    rows: list[tuple[int, Entered]] = []

    def visit(each: Entered, depth: int) -> None:
        rows.append((depth, each))
        for child in below.get(each.file, []):
            visit(child, depth + 1)

    for each in below[None]:
        visit(each, 0)
    top = 84
    height = top + len(rows) * ROW + 12
    light = "".join(f"  .c{i} {{ fill: {colours[0]}; }}\n" for i, colours in enumerate(COLOURS.values()))
    dark = "".join(f"    .c{i} {{ fill: {colours[1]}; }}\n" for i, colours in enumerate(COLOURS.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE % (light, dark)}</style>",
        f'<text class="title" x="20" y="30">{escape(title)}</text>',
    ]
    x = 20
    for i, (_, _, what) in enumerate(COLOURS.values()):
        if not any(kind(each.file) == i for _, each in rows):
            continue
        parts.append(f'<circle class="c{i}" cx="{x + 5}" cy="52" r="5"/><text class="note" x="{x + 15}" y="56">{what}</text>')
        x += 34 + round(6.4 * len(what))
    last: dict[int, int] = {}
    for i, (depth, each) in enumerate(rows):
        x, y = 25 + 22 * depth, top + i * ROW
        if depth:
            parts.append(f'<path class="line" d="M{x - 22} {last[depth - 1] + 6}V{y}H{x - 7}"/>')
        last[depth] = y
        parts.append(f'<circle class="c{kind(each.file)}" cx="{x}" cy="{y}" r="5"/>')
        parts.append(f'<text x="{x + 11}" y="{y + 5}">{each.file}</text>')
        parts.append(f'<text class="note" x="{max(400, x + 30 + 8 * len(each.file))}" y="{y + 5}">{escape(names(each))}</text>')
    return "\n".join([*parts, "</svg>", ""])


def names(each: Entered) -> str:
    """The first of its functions, as many as there is room for."""
    out = ""
    for name in each.functions:
        if len(out) + len(name) > 62:
            return f"{out}, …"
        out = f"{out}, {name}" if out else name
    return out


STYLE = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; }
  .title, .note { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
  .title { font-size: 17px; font-weight: 600; }
  .note { font-size: 12px; fill: #59636e; }
  .line { stroke: #afb8c1; fill: none; }
%s  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .line { stroke: #59636e; }
%s  }
"""
TITLES = {"cpu": "One sentence on a CPU: who calls whom", "gpu": "One sentence on a GPU: who calls whom"}


def main() -> None:
    if "--trace" in sys.argv[1:]:
        flow = FLOWS[sys.argv[-1]]()
        print(json.dumps({"entered": [asdict(each) for each in flow.entered], "imported": flow.imported}))
        return
    if "--draw" not in sys.argv[1:]:
        flows = {name: trace(name) for name in FLOWS}
        saved = {name: {"entered": [asdict(e) for e in flow.entered], "imported": flow.imported} for name, flow in flows.items()}
        (FOLDER / "architecture.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    flows = read()
    for name, title in TITLES.items():
        (FOLDER / f"architecture-{name}.svg").write_text(draw(flows[name], title), encoding="utf-8")
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(shown(), generated(flows)), encoding="utf-8")
    for name, flow in flows.items():
        print(f"{name}: {len(flow.files)} files entered, {flow.imported} imported")
    print("\n".join(flows["cpu"].files))


if __name__ == "__main__":
    main()
