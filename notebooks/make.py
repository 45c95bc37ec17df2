"""Builds the notebooks from the scripts beside them and runs them, so that their outputs are real: python notebooks/make.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
CELL = re.compile(r"^# %%(?: \[(markdown)\])?\n", re.MULTILINE)


def read(source: Path) -> Any:
    """A notebook from a script in which `# %%` begins a cell of code, and `# %% [markdown]` one of text in comments."""
    _, *parts = CELL.split(source.read_text(encoding="utf-8"))
    cells = []
    for number, (kind, text) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        text = text.strip()
        if kind == "markdown":
            cell = nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", text, flags=re.MULTILINE))
        else:
            cell = nbformat.v4.new_code_cell(text)
        cell.id = f"{source.stem}-{number}"
        cells.append(cell)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def run(notebook: Any) -> Any:
    """The notebook, executed, with its outputs."""
    patience = {"timeout": 1200, "startup_timeout": 240, "iopub_timeout": 240}  # seconds: the machine may be busy
    NotebookClient(notebook, kernel_name="python3", record_timing=False, **patience).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # standard error has warnings of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


if __name__ == "__main__":
    for source in sorted(HERE.glob("[0-9]*.py")):
        nbformat.write(run(read(source)), source.with_suffix(".ipynb"))
        print(source.with_suffix(".ipynb").name)
