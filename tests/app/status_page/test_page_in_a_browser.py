"""The status page in a browser: what it draws, how it refreshes, and by which means it is used."""

import itertools
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from tensorfusion_dra.app.simulate.cluster import port_of_no_client
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.operation import OperationKind, Stage
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.observed import NodeView, StoreView
from tests.app.status_page.watched_page import (
    DESKTOP,
    PHONE,
    Pages,
    is_wider_than_its_window,
    refresh,
)
from tests.support.status_scenes import builders, scenes, serving

pytestmark = pytest.mark.process


def axe_violations(page: Page, part: str = "html") -> list[str]:
    """Return what axe-core finds in a part of the page: rule and element."""
    found = util.find_spec("axe_playwright_python")
    assert found is not None
    assert found.origin is not None
    page.evaluate(Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    results: Any = page.evaluate("part => axe.run(part, {resultTypes: ['violations']})", part)
    assert results["passes"]
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for violation in results["violations"]
        for node in violation["nodes"]
    ]


def with_one_more_share(view: NodeView) -> NodeView:
    tenant = builders.Tenant(name="aaa/new-pod", tflops=10, gib=4)
    return replace(view, shares=(builders.share(tenant, 0), *view.shares))


@pytest.mark.parametrize(
    ("scene", "looks"),
    [
        ("small", ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"))),
        ("broken", ((PHONE, "dark"),)),
    ],
)
def test_axe_finds_nothing_even_with_open_details(
    pages: Pages,
    scene: str,
    looks: tuple[tuple[tuple[int, int], Literal["light", "dark"]], ...],
) -> None:
    with serving.served(getattr(scenes, scene)()) as node:
        page = pages.open(node, reduced_motion="reduce")
        for row in page.locator(".row").all():
            row.press("Enter")
        for (width, height), scheme in looks:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)

            assert axe_violations(page) == []
            assert not is_wider_than_its_window(page)


def test_each_share_is_in_the_bars_and_in_the_list_with_who_what_and_state(pages: Pages) -> None:
    with serving.served(scenes.typical()) as node:
        page = pages.open(node)
        card = page.get_by_role("article", name="GPU 1: NVIDIA A100-SXM4-80GB")

        expect(page.get_by_role("heading", level=1)).to_have_text("gpu-node-07.example")
        expect(card.get_by_role("img")).to_have_count(2)
        expect(
            card.get_by_role(
                "img",
                name="Memory: 96Gi of 112Gi taken, 16Gi free; the GPU itself has 80Gi",
            )
        ).to_be_visible()
        row = card.get_by_role("button", name="jun")
        expect(row).to_have_accessible_name(
            "jun notebooks requests 78 TFLOPS limit 25 % and 16Gi limit 16Gi , limits: "
            "Not enforced HeartbeatStale"
        )
        expect(card.locator(".part")).to_have_count(6)
        expect(card.get_by_text("3 of 16 taken")).to_be_visible()
        expect(page.get_by_text("example.com/encoder_sessions")).to_have_count(1)


def test_what_needs_attention_is_sorted_and_leads_to_its_place(pages: Pages) -> None:
    with serving.served(scenes.broken()) as node:
        page = pages.open(node)
        kinds = page.locator("#issues .icon").evaluate_all(
            "all => all.map((each) => each.classList.contains('bad'))"
        )
        assert kinds == sorted(kinds, reverse=True)
        assert set(kinds) == {True, False}
        expect(page.locator("#issues")).to_contain_text("2 records of claims damaged")

        node.view = replace(scenes.quiet(), store=StoreView(restored=5))
        refresh(page)

        expect(page.locator("#issues")).to_contain_text(
            "5 records of claims were damaged, and written again"
        )

        node.view = scenes.typical()
        refresh(page)

        for words, card in (("GPU 3 is unhealthy", "GPU 3"), ("limits of one share", "GPU 1")):
            place = page.get_by_role("link", name=words).get_attribute("href")
            expect(page.locator(str(place))).to_contain_text(f"{card}: NVIDIA A100")


def test_keyboard_reaches_every_share_and_enter_shows_its_details(pages: Pages) -> None:
    with serving.served(scenes.quiet()) as node:
        page = pages.open(node)
        row = page.get_by_role("button", name="asr-train-0")

        page.keyboard.press("Tab")
        expect(row).to_be_focused()
        expect(row).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("Enter")

        expect(row).to_have_attribute("aria-expanded", "true")
        expect(page.get_by_text("the limiter's heartbeat is fresh")).to_be_visible()
        expect(page.get_by_text("speech/asr-train-0", exact=True)).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="status.json")).to_be_focused()


def test_refresh_shows_a_new_share_and_keeps_focus_and_open_details(pages: Pages) -> None:
    with serving.served(scenes.quiet()) as node:
        page = pages.open(node)
        row = page.get_by_role("button", name="asr-train-0")
        row.press("Enter")

        node.view = with_one_more_share(node.view)
        refresh(page)

        expect(page.get_by_role("button", name="new-pod")).to_be_visible()
        expect(row).to_be_focused()
        expect(row).to_have_attribute("aria-expanded", "true")

        node.view = scenes.quiet()
        page.get_by_role("button", name="new-pod").focus()
        refresh(page)

        expect(page.get_by_role("button", name="new-pod")).to_have_count(0)
        expect(page.get_by_role("heading", name="GPUs and their shares")).to_be_focused()


def test_unchanged_refresh_moves_nothing_and_says_nothing(pages: Pages) -> None:
    watch = """() => {
        window.seen = {shifts: 0, words: 0};
        new PerformanceObserver((list) => { window.seen.shifts += list.getEntries().length; })
            .observe({type: "layout-shift"});
        new MutationObserver(() => { window.seen.words += 1; })
            .observe(document.getElementById("announce"), {childList: true, subtree: true});
    }"""
    with serving.served(scenes.typical()) as node:
        page = pages.open(node)
        page.evaluate(watch)
        refresh(page)
        refresh(page)

        assert page.evaluate("window.seen") == {"shifts": 0, "words": 0}

        node.view = scenes.quiet()
        refresh(page)

        expect(page.get_by_role("status")).to_have_text("All is well. ")


def test_page_keeps_what_it_knew_while_the_node_is_gone_and_goes_on_when_it_is_back(
    pages: Pages,
) -> None:
    with serving.served(scenes.quiet(), port=port_of_no_client()) as node:
        page = pages.open(node)
        page.locator("footer").scroll_into_view_if_needed()
    refresh(page)

    expect(page.get_by_text("The node does not answer (no connection).")).to_have_count(2)
    expect(page.locator("#stale")).to_be_in_viewport(ratio=1)
    expect(page.locator("#fresh-word")).to_have_text("Stale")
    expect(page.get_by_role("button", name="asr-train-0")).to_be_visible()
    assert axe_violations(page, "#stale, .fresh") == []

    with serving.served(with_one_more_share(node.view), port=node.port):
        refresh(page)

        expect(page.locator("#stale")).to_be_hidden()
        expect(page.locator("#fresh-word")).to_have_text("Live")
        expect(page.get_by_role("button", name="new-pod")).to_be_visible()


def test_names_and_texts_of_others_are_shown_and_never_run(pages: Pages) -> None:
    with serving.served(scenes.hostile()) as node:
        page = pages.open(node, PHONE)
        for row in page.locator(".row").all():
            row.click()

        assert not is_wider_than_its_window(page)
        assert page.evaluate("window.broken === undefined")
        expect(page.locator("img, main script, main style")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=")
        expect(page.get_by_role("button", name="__proto__")).to_be_visible()


def test_node_with_400_shares_shows_those_in_trouble_and_all_on_demand(pages: Pages) -> None:
    with serving.served(scenes.crowded()) as node:
        page = pages.open(node)
        card = page.get_by_role("article", name="GPU 2")

        expect(card.get_by_role("button", name="worker-2-17")).to_be_visible()
        expect(card.locator(".share")).to_have_count(6)
        card.get_by_role("button", name="Show all 50 shares").press("Enter")
        expect(card.locator(".share")).to_have_count(50)
        card.get_by_role("button", name="Show fewer shares").press("Enter")

        # A click on a share in a bar shows its details, although its row is not in view.
        card.locator(".part").last.click()
        expect(card.locator(".share").last.get_by_role("button")).to_be_focused()
        expect(card.locator(".share").last.locator(".facts")).to_be_visible()


def test_shares_of_gpus_that_are_not_known_are_shown_with_their_gpus_uuid(pages: Pages) -> None:
    shares = tuple(
        builders.share(builders.Tenant(name=f"speech/asr-{number}", tflops=6, gib=1), 3)
        for number in range(50)
    )
    with serving.served(replace(scenes.broken(), shares=shares)) as node:
        page = pages.open(node)

        expect(page.locator("#totals")).to_have_text("Shares50 of 50 claims")
        expect(page.locator("#lost .share")).to_have_count(6)
        page.locator("#lost .share").first.get_by_role("button").press("Enter")
        expect(page.locator("#lost .facts:visible")).to_contain_text(builders.uuid(3))
        page.get_by_role("button", name="Show all 50 shares").press("Enter")
        expect(page.locator("#lost .share")).to_have_count(50)


def test_operations_show_their_stages_and_where_they_failed(pages: Pages) -> None:
    with serving.served(scenes.typical()) as node:
        page = pages.open(node)
        failed = page.get_by_role("button", name="ads/rank-3-gpu")
        expect(failed.locator(".course i")).to_have_count(4)
        failed.press("Enter")

        expect(page.get_by_text("refused, in stage admit")).to_be_visible()
        expect(page.locator("dd").get_by_text("ads/rank-3-gpu", exact=True)).to_be_visible()
        expect(page.get_by_text("expected at least its request 8Gi")).to_be_visible()


def test_reader_who_wants_no_motion_gets_none(pages: Pages) -> None:
    duration = "getComputedStyle(document.querySelector('.part')).transitionDuration"
    with serving.served(scenes.quiet()) as node:
        page = pages.open(node, reduced_motion="reduce")
        assert page.evaluate(duration) == "0s"

        page.emulate_media(reduced_motion="no-preference")
        assert page.evaluate(duration) != "0s"


def test_without_a_script_there_is_a_sentence_and_a_link(pages: Pages) -> None:
    with serving.served(scenes.quiet()) as node:
        page = pages.open(node, java_script_enabled=False)

        expect(page.locator("noscript p")).to_be_visible()
        expect(page.locator("noscript p")).to_contain_text("This page is drawn by a script")
        expect(page.locator("noscript a")).to_have_attribute("href", "/status.json")


def test_node_without_its_enforcer_says_so_before_the_first_pod(pages: Pages) -> None:
    missing = scenes.broken().enforcer
    assert missing is not None
    alive = CurrentVerdict(
        verdict=verdicts.enforced("EnforcerAlive", "it answers"), since=missing.since
    )
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
    device = replace(other.device, gpu=replace(other.device.gpu, simulated=True))
    cards = (real, replace(other, device=device))
    with serving.served(replace(scenes.quiet(), cards=cards)) as node:
        page = pages.open(node)

        titles = page.locator(".card h3").all_inner_texts()

    name = "NVIDIA A100-SXM4-80GB"
    assert titles == [f"GPU 0: {name}", f"Simulated GPU 1: {name}"]


def test_share_of_a_simulated_card_is_simulated_and_nothing_else(pages: Pages) -> None:
    quiet = scenes.quiet()
    simulated = CurrentVerdict(
        verdict=verdicts.unknown(verdicts.SIMULATED, "nothing"), since=quiet.observed_at
    )
    shares = tuple(replace(each, enforcement=simulated) for each in quiet.shares)
    with serving.served(replace(quiet, shares=shares)) as node:
        state = pages.open(node).locator(".share .state").first

        expect(state).to_contain_text("Simulated")
        expect(state).not_to_contain_text("SimulatedGPU")


def test_claims_of_operations_are_whole_and_their_namespace_is_shortened(pages: Pages) -> None:
    name = "newcomer-team-with-a-long-name/m21-dep-7d9f8b6c54-x2k4l-tensor-fusion-gpu-claim-9zv8m"
    operation = builders.operation(OperationKind.PREPARE, name, (Stage.ADMIT, 5), seconds_ago=1)
    with serving.served(replace(scenes.quiet(), operations=(operation,))) as node:
        shown = pages.open(node).locator(".run .name")

        expect(shown).to_have_text(f"newcomer-te\u2026/{name.partition('/')[2]}")
        expect(shown).to_have_attribute("title", name)
        assert shown.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_neighbours_of_one_namespace_have_two_shades(pages: Pages) -> None:
    shares = tuple(
        builders.share(builders.Tenant(name=f"speech/asr-{number}", tflops=6, gib=1), 0)
        for number in range(9)
    )
    shade = "parts => parts.map(part => getComputedStyle(part).backgroundColor)"
    with serving.served(replace(scenes.quiet(), shares=shares)) as node:
        meter = pages.open(node).locator(".bar").first
        shades = meter.locator(".part").evaluate_all(shade)

    assert len(shades) == 9
    assert all(one != other for one, other in itertools.pairwise(shades))


def test_of_many_operations_the_last_are_shown_and_all_on_demand(pages: Pages) -> None:
    operations = tuple(
        builders.operation(
            OperationKind.PREPARE, f"team/claim-{number}", (Stage.ADMIT, 5), seconds_ago=number
        )
        for number in range(60)
    )
    with serving.served(replace(scenes.quiet(), operations=operations)) as node:
        page = pages.open(node)

        expect(page.locator(".run")).to_have_count(12)
        expect(page.locator(".run").first).to_contain_text("team/claim-0")
        page.get_by_role("button", name="Show all 60 operations").press("Enter")
        expect(page.locator(".run")).to_have_count(60)
        page.get_by_role("button", name="Show fewer operations").press("Enter")
        expect(page.locator(".run")).to_have_count(12)
