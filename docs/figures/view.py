"""Screenshots of the page that `bestfirst view` makes, in both themes.

Needs Chromium, and Playwright and Pillow (the extras dev and bench).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
COMMAND = ["view", "--beam", "10", "Wie melkt man eine Kuh?", "-o"]
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def main() -> None:
    """Make the page with the command of the README, and take its screenshots."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium on this machine; on Debian: apt install chromium")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "bestfirst", *COMMAND, str(page_file)], check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, viewport, scheme, actions in PICTURES:
            context = browser.new_context(
                viewport=viewport, color_scheme=scheme, device_scale_factor=1.5, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(page_file.as_uri())
            page.evaluate(actions)
            page.wait_for_timeout(300)
            picture = FOLDER / f"{name}.png"
            page.screenshot(path=picture)
            Image.open(picture).convert("RGB").quantize(256).save(
                picture, optimize=True
            )  # a quarter of the size, and looks the same
            context.close()
        browser.close()


WHY = "document.querySelectorAll('.bf-panel')[1].querySelectorAll('.bf-fold-pruned')[2].click(); " + (
    "document.querySelectorAll('.bf-panel')[1].querySelector('.bf-node.bf-is-pruned').click()"
)
PICTURES = [
    ("view-light", WIDE, "light", "0"),
    ("view-dark", WIDE, "dark", "0"),
    ("view-replay", WIDE, "light", "shown.step(8), shown.step(9)"),
    ("view-why", WIDE, "dark", WHY),
    ("view-phone", PHONE, "light", "0"),
]

if __name__ == "__main__":
    main()
