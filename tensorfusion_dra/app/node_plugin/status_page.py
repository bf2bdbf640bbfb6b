"""The status page of this node, and the JSON from which it is drawn.

Whoever can read the page learns who uses the node's GPUs. So by default only clients on its pod's
loopback get it, which includes those behind `kubectl port-forward`. Two more rules hold in every
mode. A request has to name a host that no public name server can give out: else a page in an
administrator's browser could point its own name at this address and read the answer (DNS
rebinding). And the answer allows the browser to run this page's own script and style, and to
connect to nothing but this server.
"""

import base64
import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.shared.health_endpoint import Page
from tensorfusion_dra.app.shared.node_settings import LOOPBACK, OFF
from tensorfusion_dra.core import observed
from tensorfusion_dra.core.observed import NodeView
from tensorfusion_dra.runtime.http_server import Request, Response, text_response

_FILE: Final = Path(__file__).with_name("status.html")
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NOTHING: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def pages(mode: str, view: Callable[[], NodeView]) -> Mapping[str, Page]:
    """Return the status page and its JSON by path; none if the mode is OFF.

    Args:
        mode: One of STATUS_PAGES.
        view: Returns the node as it is now.
    """
    if mode == OFF:
        return {}

    is_local = mode == LOOPBACK

    def answer(request: Request) -> Response:
        if is_local and not request.from_loopback:
            return text_response(
                HTTPStatus.FORBIDDEN,
                "the status page answers on loopback only: use kubectl port-forward",
            )
        if not _is_own_host(request.host, is_local=is_local):
            return text_response(
                HTTPStatus.MISDIRECTED_REQUEST,
                "Host: expected localhost or an address of loopback"
                if is_local
                else "Host: expected an address, localhost, or a name of the cluster",
            )
        if request.path == "/":
            body, policy = _page()
            content_type = "text/html; charset=utf-8"
        else:
            body = json.dumps(observed.as_json(view()), separators=(",", ":")).encode()
            policy, content_type = _NOTHING, "application/json"
        return Response(
            body=body,
            content_type=content_type,
            headers={**_HEADERS, "Content-Security-Policy": policy},
        )

    return {"/": answer, "/status.json": answer}


def _is_own_host(host: str, *, is_local: bool) -> bool:
    """Return True if no other server can have made a browser send this Host header.

    Args:
        host: The header, with or without a port.
        is_local: Accept names and addresses of loopback alone.
    """
    name = re.sub(r":[0-9]{0,5}$", "", host).lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        # Names that only a cluster's own name server gives out.
        is_of_cluster = name.endswith((".svc", ".svc.cluster.local"))
        return not is_local and (is_of_cluster or bool(re.fullmatch(r"[a-z0-9-]+", name)))
    return address.is_loopback or not is_local


@cache
def _page() -> tuple[bytes, str]:
    """Return the page and its policy, which has the hashes of its script and style."""
    text = _FILE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = (
        f"{_NOTHING}; connect-src 'self'; img-src data:; "
        f"script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return text.encode(), policy
