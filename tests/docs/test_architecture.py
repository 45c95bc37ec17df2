"""The page on the architecture shows what a translation really calls."""

from __future__ import annotations

import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILES = 30  # files that a translation on a CPU may enter


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "figures" / "architecture.py")
    module = sys.modules["architecture"] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_pictures_show_the_saved_trace(architecture):
    flows = architecture.read()
    assert architecture.shown() == architecture.generated(flows)
    for name, title in architecture.TITLES.items():
        picture = ROOT / "docs" / "figures" / f"architecture-{name}.svg"
        assert picture.read_text(encoding="utf-8") == architecture.draw(flows[name], title)


@pytest.mark.parametrize(("name", "needs"), [("cpu", "numba"), ("gpu", "triton")])
def test_a_translation_enters_the_files_that_the_page_names(architecture, name, needs):
    """To update the page: python docs/figures/architecture.py"""
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    assert sorted(architecture.trace(name).files) == sorted(architecture.read()[name].files)


def test_a_translation_enters_few_files(architecture):
    files = architecture.read()["cpu"].files
    assert len(files) <= MAX_FILES, files


def test_running_a_module_or_a_class_body_does_not_enter_a_file(architecture, tmp_path, monkeypatch):
    """Functions count, whatever calls them; a file is drawn under the one that called it most."""
    package = tmp_path / "followed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loaded.py").write_text("class Loaded:\n    x = [i for i in range(3)]\n")
    (package / "below.py").write_text("def below():\n    pass\n")
    (package / "above.py").write_text("from .below import below\nfrom . import loaded\ndef above():\n    below()\n    below()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    flow = architecture.follow(lambda: importlib.import_module("followed.above").above(), "followed")
    assert [(each.file, each.caller, each.functions) for each in flow.entered] == [
        ("above.py", None, ["above"]),
        ("below.py", "above.py", ["below"]),
    ]
    assert flow.imported == 4
