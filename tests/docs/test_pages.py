"""Every command and snippet in README and docs is run, every link has a target, every output shown is the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.markdown import Block, blocks, links, other_shell_blocks

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md"), *ROOT.glob("src/**/*.md")])
BLOCKS = [block for page in PAGES for block in blocks(page)]


def title(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like the repository's root, in which commands may leave files."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.not_run is None], ids=title)
def test_block_runs_and_prints_what_the_page_shows(block: Block, checkout: Path):
    runner = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    bin_folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = subprocess.run([*runner, block.code], cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    if block.output is not None:
        assert block.prints(done.stdout), f"the page shows\n{block.output}\nbut it prints\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target_and_no_block_escapes_being_run(page: Path):
    made = "gallery/"  # searches that are drawn when the site is built; test_site.py looks for them
    assert [link for link in links(page) if not (page.parent / link).exists() and not link.startswith(made)] == []
    assert other_shell_blocks(page) == []


def test_every_page_is_listed_in_the_table_of_contents():
    listed = set(links(ROOT / "docs" / "README.md"))
    assert [page.name for page in ROOT.glob("docs/*.md") if page.name not in listed | {"README.md"}] == []


def test_every_block_that_is_not_run_has_a_reason():
    assert [title(block) for block in BLOCKS if block.not_run is not None and len(block.not_run) < 10] == []
