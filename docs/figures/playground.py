"""Takes the screenshot of the playground in docs/serve.md, from a real server in Chromium. `python docs/figures/playground.py`"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from page.browser import browser  # noqa: E402
from serve.served import Served  # noqa: E402


def main() -> None:
    server = Served()
    try:
        with browser() as chromium:
            page = chromium.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
            page.goto(server.url)
            page.select_option("#beam", "10")
            page.fill("#text", "Wie melkt man eine Kuh?")
            page.click("#go")
            page.wait_for_selector(".bf-panel", timeout=120_000)
            page.wait_for_timeout(500)
            page.screenshot(path=Path(__file__).with_suffix(".png"))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
