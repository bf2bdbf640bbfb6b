"""The status page of a node without its enforcer, and of one with simulated cards."""

from dataclasses import replace

from playwright.sync_api import expect

from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.verdict import Standing
from tests.app.status_page.watched_page import Pages, refresh
from tests.support.status_scenes import scenes, serving


def test_node_without_its_enforcer_says_so_before_the_first_pod(pages: Pages) -> None:
    missing = scenes.broken().enforcer
    assert missing is not None
    alive = Standing(verdict=verdict.enforced("EnforcerAlive", "it answers"), since=missing.since)
    with serving.served(replace(scenes.quiet(), shares=(), enforcer=missing)) as node:
        page = pages.open(node)
        expect(page.locator("#verdict")).to_have_text("1 thing needs attention")
        expect(page.locator("#issues")).to_contain_text("Nothing on this node enforces limits")
        expect(page.locator("#issues")).to_contain_text("every claim for a part of a GPU waits")
        expect(page.locator("#tiles")).to_contain_text("Enforcer: missing")

        node.view = replace(node.view, enforcer=alive)
        refresh(page)

        expect(page.locator("#verdict")).to_have_text("All is well")
        expect(page.locator("#tiles")).to_contain_text("Enforcer: alive")


def test_simulated_cards_are_marked(pages: Pages) -> None:
    real, other = scenes.quiet().cards
    with serving.served(
        replace(scenes.quiet(), cards=(real, replace(other, is_simulated=True)))
    ) as node:
        page = pages.open(node)

        titles = page.locator(".card h3").all_inner_texts()

    name = "NVIDIA A100-SXM4-80GB"
    assert titles == [f"GPU 0: {name}", f"Simulated GPU 1: {name}"]
