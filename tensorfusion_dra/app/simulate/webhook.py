"""Webhook of a simulated cluster: the real process, with a certificate of its own."""

import base64
import http.client
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import trustme

import tensorfusion_dra
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.app.simulate.plugin_process import PluginProcess, WaitError
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.webhook.reviews import MUTATE_CLAIMS, MUTATE_TEMPLATES, QUOTAS

Json = dict[str, Any]

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.02
_READY_SECONDS: Final = 5.0
_OF_CLASSES: Final = frozenset({MUTATE_CLAIMS, MUTATE_TEMPLATES, QUOTAS})
"""Paths of the webhooks that are sent claims, or templates, of some classes alone."""
_NAMES: Final = re.compile(r"name in (\[.*?\])")
"""The list of these classes in a match condition."""


class SimulatedWebhook:
    """A webhook process that runs from construction until stopped, on free loopback ports.

    Attributes:
        url: https://127.0.0.1:<port>, without a path.
        health_url: http://127.0.0.1:<port>, for the probes.
    """

    def __init__(self, folder: Path, kubeconfig: Path, flags: Sequence[str] = ()) -> None:
        """Start the process and return once it serves.

        Args:
            folder: Folder for its certificate and its log.
            kubeconfig: Access to the simulated API server.
            flags: Additional flags.

        Raises:
            WaitError: It ended, or does not serve in time.
        """
        self.certificate: Final = folder / "webhook.crt"
        self.key: Final = folder / "webhook.key"
        self.authority: Final = trustme.CA()
        renew(self.authority, self.certificate, self.key)
        self.process: Final = PluginProcess(
            [
                *(sys.executable, "-m", "tensorfusion_dra", "webhook"),
                *("--host", _HOST, "--port", "0"),
                *("--health-address", f"{_HOST}:0", "--metrics-address", f"{_HOST}:0"),
                *("--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key)),
                *("--kubeconfig", str(kubeconfig)),
                *("--drain-seconds", "0"),
                *flags,
            ],
            folder / "webhook.log",
        )
        try:
            serving = self._wait_serving()
        except BaseException:
            self.process.kill()
            raise
        self.url: Final = f"https://{_HOST}:{serving['port']}"
        self.health_url: Final = f"http://{_HOST}:{serving['health_port']}"

    @property
    def ca_bundle(self) -> str:
        """Return the certificate, in PEM, of the CA that its clients have to trust."""
        return self.authority.cert_pem.bytes().decode()

    def is_ready(self) -> bool:
        """Return True if /readyz answers 200; a cluster sends no reviews to it before that."""
        address = urlsplit(self.health_url).netloc
        with closing(http.client.HTTPConnection(address, timeout=_READY_SECONDS)) as probe:
            try:
                probe.request("GET", "/readyz")
                return probe.getresponse().status == http.client.OK
            except OSError:
                return False

    def configurations(self, classes: Iterable[str] = ()) -> Iterator[Json]:
        """Yield the configurations of the manifests, with this process's URL as the target.

        Args:
            classes: DeviceClasses whose claims the webhook fills; the chart's webhook.classes.
        """
        for document in documents("install/webhook.yaml"):
            if not document["kind"].endswith("WebhookConfiguration"):
                continue
            for webhook in document["webhooks"]:
                add_classes(webhook, classes)
                path = webhook["clientConfig"]["service"]["path"]
                bundle = base64.b64encode(self.ca_bundle.encode()).decode()
                webhook["clientConfig"] = {"url": f"{self.url}{path}", "caBundle": bundle}
            yield document

    def logged(self) -> list[Json]:
        """Return all lines of its log."""
        text = self.process.log_file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def _wait_serving(self) -> Mapping[str, Any]:
        """Wait for the log line `serving`, which has the ports, and return it."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            code = self.process.exit_code
            if code is not None:
                raise WaitError(f"webhook: ended with {code}", self.process.problems())
            for line in self.logged():
                if line["event"] == "serving":
                    return line
            time.sleep(_POLL_SECONDS)
        summary = f"webhook: not serving within {_START_SECONDS:g} s"
        raise WaitError(summary, self.process.problems())


def add_classes(webhook: Json, classes: Iterable[str]) -> None:
    """Have the API server send claims of these classes to a webhook of the manifests as well.

    That is what the chart's webhook.classes does. Webhooks for other objects stay as they are.
    """

    def longer(found: re.Match[str]) -> str:
        return f"name in {json.dumps([*json.loads(found[1]), *classes])}"

    is_for_claims = webhook["clientConfig"]["service"]["path"] in _OF_CLASSES
    for condition in webhook["matchConditions"] if is_for_claims else ():
        condition["expression"] = _NAMES.sub(longer, condition["expression"])


def renew(authority: trustme.CA, certificate: Path, key: Path) -> None:
    """Replace certificate and key in the files by new ones for this machine."""
    issued = authority.issue_cert(_HOST, "localhost")
    issued.private_key_pem.write_to_path(str(key))
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))


def documents(name: str) -> list[Json]:
    """Return the objects in a file of the repository's folder daemonset/.

    Raises:
        InputError: There is no such file, as in an installed package, which has no manifests.
    """
    file = Path(tensorfusion_dra.__file__).parents[1] / "daemonset" / name
    try:
        return streams.documents(str(file))
    except InputError as error:
        raise InputError(f"{error}, expected a checkout of the repository") from error
