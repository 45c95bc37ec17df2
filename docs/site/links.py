"""A page may link to any file of the repository: on the site, what is not a page leads to the repository, or is plain text."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]+)\)")
COMMENT = re.compile(r"^<!-- (?:not run: .*|continues|output.*|printed|made by .*|end) -->\n", re.MULTILINE)
ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """What leaves docs/ is looked for in the repository; comments for the tests are taken out."""
    repository = (config.repo_url or "").rstrip("/")

    def resolved(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = normpath(f"docs/{page.file.src_uri}/../{target.partition('#')[0]}")
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_uri}: no {target}")
        return f"[{text}]({repository}/blob/main/{path})" if repository else text

    return COMMENT.sub("", LINK.sub(resolved, markdown))
