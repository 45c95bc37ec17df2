"""Every notebook runs, and its saved outputs are those that it prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are read by nbformat")
pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
HERE = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(HERE.glob("[0-9]*.py"))


@pytest.fixture(scope="module")
def make() -> Any:
    spec = importlib.util.spec_from_file_location("make_notebooks", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(notebook: Any) -> list[str]:
    """What cells print or show; for an HTML page, only that there is one."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell]
    # a kernel may send what a cell prints in one piece or in several
    shown = ["".join(output.get("text") or output["data"].get("text/plain", "") for output in cell) for cell in cells]
    return shown + ["a page" for output in outputs if "text/html" in output.get("data", {})]


def test_there_are_four_notebooks():
    assert len(SOURCES) == 4


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_its_saved_outputs(source: Path, make: Any):
    """To update the outputs: python notebooks/make.py"""
    saved = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    fresh = make.read(source)
    assert [(cell.cell_type, cell.source) for cell in saved.cells] == [(cell.cell_type, cell.source) for cell in fresh.cells]
    assert printed(make.run(fresh)) == printed(saved)
