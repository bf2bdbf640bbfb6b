"""A headless Chromium that asks nobody but the page's own server."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, sync_playwright

_COMMANDS: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    # Chromium's own sandbox needs rights that a container rarely gives.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # All pages are of one server, so one process draws them.
    "--renderer-process-limit=1",
)


def executable() -> str | None:
    """Return the path of Chromium: of the variable CHROMIUM, else on PATH; None without one."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, _COMMANDS)), None)


@contextmanager
def started(path: str) -> Iterator[Browser]:
    """Run a browser with a fresh profile during the block.

    Args:
        path: From executable().
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()
