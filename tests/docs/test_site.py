"""The site builds without a warning, every public name has an entry and an example that runs, and no internal link is dead."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

import bestfirst

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference.md"
NAMES = sorted(set(dir(bestfirst)) - {"__version__"})


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install 'bestfirst[docs]'")
    pytest.importorskip("mkdocstrings", reason="the reference is made by mkdocstrings: pip install 'bestfirst[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def anchors(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.xdist_group("site")
def test_every_public_name_has_an_entry_in_the_reference(site: Path):
    found = anchors(site / "reference" / "index.html")
    assert [name for name in NAMES if f"bestfirst.{name}" not in found] == []


@pytest.mark.xdist_group("site")
def test_no_internal_link_is_dead(site: Path):
    dead = []
    for page in site.rglob("*.html"):
        if page.name == "404.html" or ("gallery" in page.parts and page.name != "index.html"):
            continue
        text = re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            parts = urlparse(link)
            if parts.scheme or parts.netloc or not link:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target.suffix == ".html" and parts.fragment not in anchors(target)):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


@pytest.mark.xdist_group("site")
def test_docstring_columns_become_lists_and_the_gallery_has_searches(site: Path):
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<li><code>beam</code>: hypotheses of each length to keep</li>", reference)
    assert "<!-- output" not in (site / "own-model" / "index.html").read_text(encoding="utf-8")
    assert len(list((site / "gallery").glob("*.html"))) == 6  # five searches and the page itself


def test_examples_of_the_reference_run_and_print_what_it_shows():
    found = doctest.testfile(str(REFERENCE), module_relative=False)
    assert found.failed == 0
    assert found.attempted > len(NAMES)


def test_every_public_name_has_an_example():
    text = REFERENCE.read_text(encoding="utf-8")
    sections = re.split(r"^::: bestfirst\.(\w+)$", text, flags=re.MULTILINE)
    entries = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert sorted(entries) == NAMES
    assert [name for name, entry in entries.items() if "```pycon\n>>> " not in entry] == []
