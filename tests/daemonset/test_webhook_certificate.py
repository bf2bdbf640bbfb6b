"""An API server accepts the certificate that hack/webhook-cert creates."""

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import kustomize
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
HOST = "tensorfusion-dra-webhook.tensorfusion-dra.svc"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rendered objects of the kustomization that the script creates."""
    folder = tmp_path_factory.mktemp("webhook") / "made"
    subprocess.run([ROOT / "hack" / "webhook-cert", folder], check=True, timeout=PATIENCE_SECONDS)
    assert folder.stat().st_mode & 0o777 == 0o700
    return kustomize.render(folder)


def trusted(documents: list[dict[str, Any]]) -> set[str]:
    configurations = [item for item in documents if item["kind"].endswith("WebhookConfiguration")]
    webhooks = [webhook for item in configurations for webhook in item["webhooks"]]
    assert webhooks
    return {webhook["clientConfig"]["caBundle"] for webhook in webhooks}


def test_all_webhooks_trust_the_same_authority(documents: list[dict[str, Any]]) -> None:
    assert len(trusted(documents)) == 1


def test_client_that_trusts_the_authority_accepts_the_service_certificate(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    (secret,) = [item for item in documents if item["kind"] == "Secret"]
    for name, content in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    (authority,) = trusted(documents)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    # Go clients do not require this, but Python 3.13 does by default.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    )

    finished = [handshaken(end) for end in ends * 3]

    assert finished[-2:] == [True, True]
    assert secret["type"] == "kubernetes.io/tls"
    assert secret["metadata"]["name"] == "tensorfusion-dra-webhook-tls"


def handshaken(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
