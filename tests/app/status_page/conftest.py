"""One Chromium for all tests of the status page, and a page that has to stay without errors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.app.status_page.watched_page import Pages
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import expect

    from tests.support.status_scenes import browser

    path = browser.executable()
    if path is None:
        pytest.skip("no Chromium on PATH: Debian's package chromium has it (.ci/run installs it)")
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with browser.started(path) as running:
        yield running


@pytest.fixture
def pages(browser: "Browser") -> Iterator[Pages]:
    """Opener of pages; checks at the end that they made no error and no request elsewhere."""
    opener = Pages(browser)
    yield opener
    opener.close()
    assert opener.errors == []
    assert opener.requests_elsewhere == []
