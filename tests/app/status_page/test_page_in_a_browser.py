"""The status page in a browser: what it draws, how it refreshes, and by which means it is used."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tensorfusion_dra.app.simulate.cluster import port_of_no_client
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import OperationKind, Stage
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.observed import NodeView, ShareView, StoreView
from tests.support.status_scenes import browser as chromium
from tests.support.status_scenes import builders, scenes, serving
from tests.support.status_scenes.serving import ServedNode
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

DESKTOP = (1280, 900)
PHONE = (390, 844)
Open = Callable[..., tuple[Page, ServedNode]]
OTHER_CLAIM = ClaimRef(namespace="gone", name="claim", uid="uid-gone")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield one Chromium for all tests."""
    path = chromium.executable()
    if path is None:
        pytest.skip("no Chromium on PATH: Debian's package chromium has it (.ci/run installs it)")
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with chromium.started(path) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Yield a function that opens the page of a node, which it serves unless it is served already.

    Checks at the end that no page had an error, or sent a request to another server than its own.
    """
    faults: list[str] = []
    with contextlib.ExitStack() as stack:

        def opened(
            shown: NodeView | ServedNode, size: tuple[int, int] = DESKTOP, **options: Any
        ) -> tuple[Page, ServedNode]:
            node = (
                shown
                if isinstance(shown, ServedNode)
                else stack.enter_context(serving.served(shown))
            )
            width, height = size
            context = browser.new_context(
                viewport={"width": width, "height": height},
                timezone_id="UTC",
                locale="en-GB",
                **options,
            )
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            page = context.new_page()

            def check_request(address: str) -> None:
                if not address.startswith((node.url, "data:")):
                    faults.append(address)

            def check_line(kind: str, text: str) -> None:
                # The browser reports each request that a stopped server does not answer.
                if kind in {"error", "warning"} and "net::ERR_CONNECTION" not in text:
                    faults.append(text)

            page.on("request", lambda request: check_request(request.url))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda message: check_line(message.type, message.text))
            page.goto(node.url)
            if options.get("java_script_enabled", True):
                page.wait_for_selector("html[data-refreshes]")
            return page, node

        yield opened
    assert faults == []


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


def shares_of(count: int, *, card: int, pod: str = "speech/asr") -> tuple[ShareView, ...]:
    """Return shares of pods in one namespace."""
    tenants = (builders.Tenant(name=f"{pod}-{n}", tflops=6, gib=1) for n in range(count))
    return tuple(builders.share(tenant, card) for tenant in tenants)


def with_one_more_share(view: NodeView) -> NodeView:
    return replace(view, shares=(*shares_of(1, card=0, pod="aaa/new-pod"), *view.shares))


@pytest.mark.parametrize(
    ("scene", "looks"),
    [
        ("small", ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"))),
        ("broken", ((PHONE, "dark"),)),
    ],
)
def test_axe_finds_nothing_even_with_open_details(
    open_page: Open,
    scene: str,
    looks: tuple[tuple[tuple[int, int], Literal["light", "dark"]], ...],
) -> None:
    page, _ = open_page(getattr(scenes, scene)(), reduced_motion="reduce")
    for row in page.locator(".row").all():
        row.press("Enter")
    for (width, height), scheme in looks:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)

        assert axe_violations(page) == []
        assert not is_wider_than_its_window(page)


def test_shares_and_operations_have_who_what_and_state(open_page: Open) -> None:
    page, _ = open_page(scenes.typical())
    card = page.get_by_role("article", name="GPU 1: NVIDIA A100-SXM4-80GB")

    expect(page.get_by_role("heading", level=1)).to_have_text("gpu-node-07.example")
    expect(card.get_by_role("img")).to_have_count(2)
    expect(
        card.get_by_role(
            "img",
            name="Memory: 96Gi of 112Gi taken, 16Gi free; the GPU itself has 80Gi",
        )
    ).to_be_visible()
    expect(card.get_by_role("button", name="jun")).to_have_accessible_name(
        "jun notebooks requests 78 TFLOPS limit 25 % and 16Gi limit 16Gi , limits: "
        "Not enforced HeartbeatStale"
    )
    expect(card.locator(".part")).to_have_count(6)
    expect(card.get_by_text("3 of 16 taken")).to_be_visible()
    expect(page.get_by_text("example.com/encoder_sessions")).to_have_count(1)

    failed = page.get_by_role("button", name="ads/rank-3-gpu")
    expect(failed.locator(".course i")).to_have_count(4)
    failed.press("Enter")
    expect(page.get_by_text("refused, in stage admit")).to_be_visible()
    expect(page.locator("dd").get_by_text("ads/rank-3-gpu", exact=True)).to_be_visible()
    expect(page.get_by_text("expected at least its request 8Gi")).to_be_visible()


def test_what_needs_attention_is_sorted_and_leads_to_its_place(open_page: Open) -> None:
    page, node = open_page(scenes.broken())
    is_bad = page.locator("#issues .icon").evaluate_all(
        "all => all.map((each) => each.classList.contains('bad'))"
    )
    assert [each for each, _ in itertools.groupby(is_bad)] == [True, False]
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


def test_card_out_of_service_says_why_and_by_whom(open_page: Open) -> None:
    page, node = open_page(scenes.typical())
    card = page.get_by_role("article", name="GPU 2")
    text = "Out of service: fan_by_alice. "

    expect(card.get_by_text(f"{text}Its pods go on, and no new ones get it.")).to_be_visible()
    expect(page.get_by_text("Out of service")).to_have_count(1)
    expect(card.get_by_text("No shares.", exact=True)).to_be_visible()
    # Its 312 TFLOPS are not free for anybody, as those of the unhealthy card.
    expect(page.locator("#totals")).to_contain_text("160.8 of 780 TFLOPS")
    evicts = {**builders.CORDONED, "effect": "NoExecute"}
    cards = (replace(each, taints=(evicts,) if each.taints else ()) for each in node.view.cards)
    node.view = replace(node.view, cards=tuple(cards))
    refresh(page)

    expect(card.get_by_text(f"{text}Its pods are ended.")).to_be_visible()


def test_keyboard_reaches_every_share_and_enter_shows_its_details(open_page: Open) -> None:
    page, _ = open_page(scenes.quiet())
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


def test_refresh_shows_a_new_share_and_keeps_focus_and_open_details(open_page: Open) -> None:
    page, node = open_page(scenes.quiet())
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


def test_unchanged_refresh_moves_nothing_and_says_nothing(open_page: Open) -> None:
    watch = """() => {
        window.seen = {shifts: 0, words: 0};
        new PerformanceObserver((list) => { window.seen.shifts += list.getEntries().length; })
            .observe({type: "layout-shift"});
        new MutationObserver(() => { window.seen.words += 1; })
            .observe(document.getElementById("announce"), {childList: true, subtree: true});
    }"""
    page, node = open_page(scenes.typical())
    page.evaluate(watch)
    refresh(page)
    refresh(page)

    assert page.evaluate("window.seen") == {"shifts": 0, "words": 0}

    node.view = scenes.quiet()
    refresh(page)

    expect(page.get_by_role("status")).to_have_text("All is well. ")


def test_page_keeps_what_it_knew_while_the_node_is_gone_and_goes_on_when_it_is_back(
    open_page: Open,
) -> None:
    with serving.served(scenes.quiet(), port=port_of_no_client()) as node:
        page, _ = open_page(node)
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


def test_names_and_texts_of_others_are_shown_and_never_run(open_page: Open) -> None:
    page, _ = open_page(scenes.hostile(), PHONE)
    for row in page.locator(".row").all():
        row.click()

    assert not is_wider_than_its_window(page)
    assert page.evaluate("window.broken === undefined")
    expect(page.locator("img, main script, main style")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=")
    expect(page.get_by_role("button", name="__proto__")).to_be_visible()


def test_node_with_400_shares_shows_those_in_trouble_and_all_on_demand(open_page: Open) -> None:
    page, _ = open_page(scenes.crowded())
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


def test_shares_of_gpus_that_are_not_known_are_shown_with_their_gpus_uuid(open_page: Open) -> None:
    page, _ = open_page(replace(scenes.broken(), shares=shares_of(50, card=3)))

    expect(page.locator("#totals")).to_have_text("Shares50 of 50 claims")
    expect(page.locator("#lost .share")).to_have_count(6)
    page.locator("#lost .share").first.get_by_role("button").press("Enter")
    expect(page.locator("#lost .facts:visible")).to_contain_text(builders.uuid(3))
    page.get_by_role("button", name="Show all 50 shares").press("Enter")
    expect(page.locator("#lost .share")).to_have_count(50)


def test_reader_who_wants_no_motion_gets_none(open_page: Open) -> None:
    duration = "getComputedStyle(document.querySelector('.part')).transitionDuration"
    page, _ = open_page(scenes.quiet(), reduced_motion="reduce")
    assert page.evaluate(duration) == "0s"

    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(duration) != "0s"


def test_without_a_script_there_is_a_sentence_and_a_link(open_page: Open) -> None:
    page, _ = open_page(scenes.quiet(), java_script_enabled=False)

    expect(page.locator("noscript p")).to_be_visible()
    expect(page.locator("noscript p")).to_contain_text("This page is drawn by a script")
    expect(page.locator("noscript a")).to_have_attribute("href", "/status.json")


def test_node_without_its_enforcer_says_so_before_the_first_pod(open_page: Open) -> None:
    quiet = scenes.quiet()
    alive = CurrentVerdict(
        verdict=verdicts.enforced("EnforcerAlive", "it answers"), since=quiet.observed_at
    )
    page, node = open_page(replace(quiet, shares=(), enforcer=scenes.broken().enforcer))
    expect(page.locator("#verdict")).to_have_text("1 thing needs attention")
    expect(page.locator("#issues")).to_contain_text("Nothing on this node enforces limits")
    expect(page.locator("#issues")).to_contain_text("every claim for a part of a GPU waits")
    expect(page.locator("#tiles")).to_contain_text("Enforcer: missing")

    node.view = replace(node.view, enforcer=alive)
    refresh(page)

    expect(page.locator("#verdict")).to_have_text("All is well")
    expect(page.locator("#tiles")).to_contain_text("Enforcer: alive")


def test_simulated_cards_and_their_shares_are_marked_as_simulated(open_page: Open) -> None:
    quiet = scenes.quiet()
    real, other = quiet.cards
    device = replace(other.device, gpu=replace(other.device.gpu, simulated=True))
    simulated = CurrentVerdict(
        verdict=verdicts.unknown(verdicts.SIMULATED, "nothing"), since=quiet.observed_at
    )
    shares = tuple(replace(each, enforcement=simulated) for each in quiet.shares)
    cards = (real, replace(other, device=device))
    page, _ = open_page(replace(quiet, cards=cards, shares=shares))

    name = "NVIDIA A100-SXM4-80GB"
    expect(page.locator(".card h3")).to_have_text([f"GPU 0: {name}", f"Simulated GPU 1: {name}"])
    expect(page.locator(".share .state").first).to_contain_text("Simulated")
    expect(page.locator(".share .state").first).not_to_contain_text("SimulatedGPU")


def test_share_that_uses_idle_compute_has_its_present_part_and_its_limit(open_page: Open) -> None:
    tenant = builders.Tenant(name="llm/serve", tflops=78, gib=20, used=(30, 97))
    view = builders.node(builders.Card(tenants=(tenant,)))
    (lent,) = view.shares
    page, _ = open_page(replace(view, shares=(replace(lent, raised_percent=100),)))

    row = page.get_by_role("button", name="serve").last
    expect(row).to_contain_text("now 100 %")
    row.click()

    expect(page.get_by_text("25 % of the GPU, 78 TFLOPS; 100 % while the other")).to_be_visible()


def test_partition_and_its_share_are_named_as_such(open_page: Open) -> None:
    tenant = builders.Tenant(name="llm/serve", tflops=40, gib=9, exclusive=True, used=(6, 0))
    view = builders.node(builders.Card(tenants=(tenant,)), builders.Card())
    (card, other), (whole,) = view.cards, view.shares
    share = replace(whole.share, isolation=Isolation.PARTITIONED)
    device = replace(card.device, name="mig-1", gpu=replace(card.device.gpu, partition="1g.10gb"))
    page, _ = open_page(
        replace(
            view,
            cards=(replace(card, device=device), other),
            shares=(replace(whole, share=share),),
        )
    )

    expect(page.locator(".card h3").first).to_have_text("GPU 0: NVIDIA A100-SXM4-80GB 1g.10gb")
    expect(page.get_by_text("The 1 GPU and 1 partition are healthy")).to_be_visible()
    expect(page.locator("#totals")).to_contain_text("GPUs and partitions")
    row = page.get_by_role("button", name="serve").last
    expect(row).to_contain_text("whole partition")
    row.click()
    expect(page.get_by_text("6Gi, by 2 processes")).to_be_visible()


def test_neighbours_of_one_namespace_have_two_shades(open_page: Open) -> None:
    page, _ = open_page(replace(scenes.quiet(), shares=shares_of(9, card=0)))

    shades = (
        page.locator(".bar")
        .first.locator(".part")
        .evaluate_all("parts => parts.map(part => getComputedStyle(part).backgroundColor)")
    )
    assert len(shades) == 9
    assert all(one != other for one, other in itertools.pairwise(shades))


def test_operation_names_what_kept_the_limits_of_its_claim(open_page: Open) -> None:
    view = scenes.quiet()
    (share,) = view.shares
    stages = (Stage.WRITE, 1), (Stage.REGISTER, 5)
    shown = f"{share.claim.ref.namespace}/{share.claim.ref.name}"
    operations = tuple(
        builders.operation(OperationKind.PREPARE, name, *stages, seconds_ago=9)._replace(
            claim=claim
        )
        for name, claim in ((shown, share.claim.ref), ("gone/claim", OTHER_CLAIM))
    )
    keepers = {share.claim.enforcer: "the sixth daemon"}
    page, _ = open_page(replace(view, operations=operations, keepers=keepers))

    page.get_by_role("button", name=shown).press("Enter")
    expect(page.get_by_text("until the sixth daemon kept the limits")).to_be_visible()
    page.get_by_role("button", name="gone/claim").press("Enter")
    expect(page.get_by_text("until its enforcer kept the limits")).to_be_visible()
    expect(page.locator("#legend").get_by_text("enforcer", exact=True)).to_be_visible()


def test_of_many_operations_the_last_are_shown_and_all_on_demand(open_page: Open) -> None:
    long = "newcomer-team-with-a-long-name/m21-dep-7d9f8b6c54-x2k4l-tensor-fusion-gpu-claim-9zv8m"
    operations = tuple(
        builders.operation(OperationKind.PREPARE, name, (Stage.ADMIT, 5), seconds_ago=number)
        for number, name in enumerate([long, *["team/claim"] * 59])
    )
    page, _ = open_page(replace(scenes.quiet(), operations=operations))
    name = page.locator(".run .name").first

    expect(name).to_have_text("newcomer-te\u2026/m21-dep-7d9f8b6c5\u2026on-gpu-claim-9zv8m")
    expect(name).to_have_attribute("title", long)
    assert name.evaluate("element => element.scrollWidth <= element.clientWidth")
    expect(page.locator(".run")).to_have_count(12)
    page.get_by_role("button", name="Show all 60 operations").press("Enter")
    expect(page.locator(".run")).to_have_count(60)
    page.get_by_role("button", name="Show fewer operations").press("Enter")
    expect(page.locator(".run")).to_have_count(12)
