"""Who gets the status page, and what its answers allow a browser to do."""

import base64
import hashlib
import html.parser
import json
import re
from http import HTTPStatus
from urllib.request import urlopen

import pytest

from tensorfusion_dra.app.node_plugin import status_page
from tensorfusion_dra.app.shared.node_settings import LOOPBACK, OFF, ON
from tensorfusion_dra.runtime.http_server import Request, Response
from tests.support.status_scenes import builders, scenes, serving
from tests.support.waiting import PATIENCE_SECONDS

PATHS = ("/", "/status.json")
OWN_HOSTS = (
    "localhost",
    "localhost:8080",
    "LOCALHOST:8080",
    "localhost.:8080",
    "127.0.0.1:8080",
    "127.8.8.8",
    "[::1]:8080",
    "[::1]",
)
CLUSTER_HOSTS = (
    "10.0.0.7:8080",
    "[fd00::7]:8080",
    "gpu-node-07",
    "gpu-node-07:8080",
    "driver.gpu-system.svc",
    "driver.gpu-system.svc.cluster.local:8080",
)
FOREIGN_HOSTS = (
    "",
    "attacker.example",
    "attacker.example:8080",
    "localhost.attacker.example",
    "127.0.0.1.attacker.example",
    "driver.svc.attacker.example",
    "localhost:8080:80",
    "local host",
    "user@localhost",
    "[::1",
)


def answer(mode: str, path: str = "/", *, host: str = "localhost", local: bool = True) -> Response:
    pages = status_page.pages(mode, scenes.typical)
    return pages[path](Request(path=path, host=host, from_loopback=local))


@pytest.mark.parametrize("path", PATHS)
def test_page_is_for_nobody_for_loopback_or_for_the_pod_network_by_its_mode(path: str) -> None:
    refused = answer(LOOPBACK, path, local=False)

    assert refused.status == HTTPStatus.FORBIDDEN
    assert b"gpu-node" not in refused.body
    assert answer(ON, path, local=False).status == HTTPStatus.OK
    assert status_page.pages(OFF, scenes.typical) == {}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("host", "modes"),
    [
        *((host, {LOOPBACK, ON}) for host in OWN_HOSTS),
        *((host, {ON}) for host in CLUSTER_HOSTS),
        *((host, set()) for host in FOREIGN_HOSTS),
    ],
)
def test_hosts_that_a_public_name_server_may_give_out_are_refused(
    path: str, host: str, modes: set[str]
) -> None:
    for mode in (LOOPBACK, ON):
        found = answer(mode, path, host=host)

        assert found.status == (HTTPStatus.OK if mode in modes else HTTPStatus.MISDIRECTED_REQUEST)
        assert (b"gpu-node" in found.body) == (mode in modes and path == "/status.json")


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_neither_stored_nor_framed_nor_sniffed(path: str) -> None:
    headers = answer(LOOPBACK, path).headers

    assert (
        headers.items()
        >= {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items()
    )
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers


def test_policy_allows_the_pages_own_script_and_style_and_its_own_server_alone() -> None:
    found = answer(LOOPBACK)
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in found.headers["Content-Security-Policy"].split(";")
    )
    text = found.body.decode()

    assert "unsafe" not in found.headers["Content-Security-Policy"]
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        ((begin, end),) = [
            (match.end(), text.index(f"</{kind}>", match.end()))
            for match in re.finditer(rf"<{kind}\b[^>]*>", text)
        ]
        digest = hashlib.sha256(text[begin:end].encode()).digest()
        assert policy[f"{kind}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"


def test_markup_refers_to_nothing_outside_and_has_no_inline_handlers() -> None:
    found: list[tuple[str, str, str | None]] = []

    class References(html.parser.HTMLParser):
        """Collects what a page would load or run from its markup."""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            loading = {"src", "href", "srcset", "action", "style"}
            found.extend(
                (tag, name, value)
                for name, value in attrs
                if (name in loading or name.startswith("on"))
                and not (value or "").startswith("data:")
            )

    References().feed(answer(LOOPBACK).body.decode())

    assert set(found) == {("a", "href", "/status.json")}


MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "url(")
OF_THE_HOST = ("/var/lib", "/dev/", "deviceNodes", "driverMounts", "token", "kubeconfig")


@pytest.mark.parametrize(("path", "words"), [("/", MARKUP), ("/status.json", OF_THE_HOST)])
def test_script_makes_no_markup_from_texts_and_json_has_nothing_of_the_host(
    path: str, words: tuple[str, ...]
) -> None:
    text = answer(LOOPBACK, path).body.decode()

    assert [word for word in words if word in text] == []


@pytest.mark.parametrize("mode", [LOOPBACK, ON])
def test_endpoint_serves_page_and_json_to_a_client_on_loopback(mode: str) -> None:
    with (
        serving.served(scenes.typical(), mode=mode) as node,
        urlopen(f"{node.url}status.json", timeout=PATIENCE_SECONDS) as answered,
    ):
        assert answered.headers["Content-Type"] == "application/json"
        assert json.load(answered)["node"]["name"] == builders.NODE
