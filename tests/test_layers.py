"""Imports point down only, including those inside functions, and there are no import cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bestfirst
import bestfirst_bench

ROOT = Path(bestfirst.__file__).parent
LAYERS = (
    *("__main__", "cli", "cluster", "serve", "corpus", "integrations", "explaining", "page", "testing"),  # doors
    *("decoding", "loading", "engine", "settings", "strategies", "drafting"),  # decoding
    *("scoring", "constraints", "models", "search", "durable_files", "errors"),
)
"""From top to bottom: each may import those after it. The package's own `__init__` may import all of them."""


def imports(path: Path, source: str) -> Iterator[tuple[str, ...]]:
    """A module's imports from the package, as dotted names without `bestfirst`."""
    here = path.relative_to(ROOT).with_suffix("").parts
    package = here[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            for alias in node.names:
                yield (*base, *(node.module.split(".") if node.module else ()), alias.name)
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("bestfirst."))


def upward_imports(path: Path, source: str) -> list[str]:
    """The imports of a module that do not point down."""
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    named = {target[0] for target in imports(path, source) if target} & set(LAYERS)
    return sorted(f"{own} imports {other}" for other in named if LAYERS.index(other) < LAYERS.index(own))


MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py" and "hub" not in path.parts]


def test_every_module_has_a_layer():
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES} == set(LAYERS)


def test_imports_point_down():
    assert [line for path in MODULES for line in upward_imports(path, path.read_text(encoding="utf-8"))] == []


def test_only_the_bench_command_imports_the_benchmarks():
    """`bestfirst bench` imports them inside a function; nothing else needs them."""
    naming = [path for path in ROOT.rglob("*.py") if "bestfirst_bench" in path.read_text(encoding="utf-8")]
    assert naming == [ROOT / "cli" / "commands.py"]
    app = ast.parse(naming[0].read_text(encoding="utf-8"))
    loaded = [node for node in ast.walk(app) if isinstance(node, (ast.Import, ast.ImportFrom)) and "bench" in ast.unparse(node)]
    assert len(loaded) == 1
    assert loaded[0] not in app.body


@pytest.mark.parametrize("name", ["HostEngine", "DeviceEngine"])
def test_engines_are_created_only_in_choice_py(name):
    """Other code, the benchmarks included, gets engines from `choice.py`."""
    places = []
    for root in (ROOT, Path(bestfirst_bench.__file__).parent):
        for path in root.rglob("*.py"):
            calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
            places += [path.name for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
    assert places == ["choice.py"]


def test_class_and_module_names_are_unique():
    """Exceptions for modules: a command's options (`corpus`), and the file name that the Hub requires (`generate`)."""
    classes: dict[str, list[str]] = {}
    modules: dict[str, list[str]] = {}
    for root in (ROOT, Path(bestfirst_bench.__file__).parent):
        for path in root.rglob("*.py"):
            modules.setdefault(path.stem, []).append(str(path))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append(str(path))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
    assert {name for name, where in modules.items() if len(where) > 1} <= {"__init__", "generate", "corpus"}


@pytest.mark.parametrize("line", ["from ..decoding import decode", "def f():\n    from ...integrations import generate"])
def test_an_upward_import_is_detected(line):
    path = ROOT / "engine" / ("host.py" if "..." not in line else "device/device_step.py")
    assert len(upward_imports(path, path.read_text(encoding="utf-8") + "\n" + line + "\n")) == 1


def test_there_are_no_import_cycles():
    """Except under `TYPE_CHECKING`."""
    names = {path.relative_to(ROOT).with_suffix("").parts: path for path in MODULES}
    names |= {parts[:-1]: path for parts, path in names.items() if parts[-1] == "__init__"}
    graph: dict[Path, set[Path]] = {}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
        source = ast.unparse(ast.Module([node for node in tree.body if node not in typed], []))
        found = {names.get(target, names.get(target[:-1])) for target in imports(path, source)}
        own = path.parent / "__init__.py"  # a package's `__init__` may import modules that import others through it
        graph[path] = {each for each in found if each is not None and each not in (path, own)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1]))
