"""A real browser for tests: it opens a page, and what a script in the page finds comes back."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCHEMES = {"dark": 0, "light": 1}  # as Blink numbers them
_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --hide-scrollbars"
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)")


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the browser to its end, with a profile of its own in a folder."""
    command = [str(CHROMIUM), *_QUIET.split(), f"--user-data-dir={folder / 'profile'}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def found_by(page: str, folder: Path, scheme: str) -> Any:
    """Return what a page writes, as JSON, into its body.

    Frames in the page are viewports of their own, and can be narrower than any window that a browser opens.
    """
    file = folder / f"{scheme}.html"
    file.write_text(page, encoding="utf-8")
    ended = run(
        folder,
        "--allow-file-access-from-files",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        "--virtual-time-budget=10000",
        "--dump-dom",
        file.as_uri(),
    )
    body = re.search(r"<body>(.*?)</body>", ended.stdout, re.DOTALL)
    assert body, ended.stderr
    return json.loads(html.unescape(body[1]))
