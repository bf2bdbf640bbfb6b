"""Pages of a browser whose errors and requests are watched."""

from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.status_scenes.serving import ServedNode
from tests.support.waiting import PATIENCE_SECONDS

DESKTOP = (1280, 900)
PHONE = (390, 844)


class Pages:
    """Opener of pages.

    Attributes:
        errors: Errors of scripts, and what the browser refused or warned of.
        requests_elsewhere: Addresses of requests to another server than the page's.
    """

    def __init__(self, browser: Browser) -> None:
        self.errors: list[str] = []
        self.requests_elsewhere: list[str] = []
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(self, node: ServedNode, size: tuple[int, int] = DESKTOP, **options: Any) -> Page:
        """Open the node's page in a profile of its own, and return it once it is drawn."""
        width, height = size
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            timezone_id="UTC",
            locale="en-GB",
            **options,
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        page = context.new_page()

        def check(address: str) -> None:
            if not address.startswith((node.url, "data:")):
                self.requests_elsewhere.append(address)

        page.on("request", lambda request: check(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.goto(node.url)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-refreshes]")
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()

    def _note(self, kind: str, text: str) -> None:
        # The browser reports each request that a stopped server does not answer.
        if kind in {"error", "warning"} and "net::ERR_CONNECTION" not in text:
            self.errors.append(text)


def refresh(page: Page) -> None:
    """Have the page ask its server now, and return once it has drawn the answer."""
    before = int(page.evaluate("document.documentElement.dataset.refreshes"))
    page.evaluate("window.dispatchEvent(new Event('online'))")
    page.wait_for_function(
        "before => Number(document.documentElement.dataset.refreshes) > before", arg=before
    )


def is_wider_than_its_window(page: Page) -> bool:
    """Return True if a reader would have to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))
