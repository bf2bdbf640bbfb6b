"""An API server accepts the certificate that hack/webhook-cert creates."""

import base64
import copy
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support import helm, installation, yaml_text
from tests.support.helm import ROOT, Document
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

SCRIPT = ROOT / "hack" / "webhook-cert"
OF_CERTIFICATES = {"Secret", "Issuer", "Certificate"}
HOST = "tensorfusion-dra-webhook.tensorfusion-dra.svc"


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """The objects that the script prints."""
    ended = subprocess.run(
        [SCRIPT], check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, text=True
    )
    return yaml_text.load_all(ended.stdout)


def test_only_the_certificate_differs_from_the_static_manifest(documents: list[Document]) -> None:
    def without_certificate(found: list[Document]) -> list[Document]:
        kept = copy.deepcopy([item for item in found if item["kind"] not in OF_CERTIFICATES])
        for item in kept:
            item["metadata"].pop("annotations", None)
            for webhook in item.get("webhooks", []):
                webhook["clientConfig"].pop("caBundle", None)
        return kept

    assert without_certificate(documents) == without_certificate(installation.documents("webhook"))
    assert "cert-manager" not in str(documents)


def test_client_that_trusts_the_authority_accepts_the_service_certificate(
    documents: list[Document], tmp_path: Path
) -> None:
    secret = helm.one(documents, "Secret", "tensorfusion-dra-webhook-tls")
    for name, content in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    (authority,) = {
        webhook["clientConfig"]["caBundle"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in helm.one(documents, kind)["webhooks"]
    }
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


def handshaken(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_days_that_are_no_number_are_refused() -> None:
    ended = subprocess.run(
        [SCRIPT, "a year"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "DAYS: found a year, expected a number" in ended.stderr
