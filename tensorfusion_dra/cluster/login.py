"""Login to the API server, from a pod's service account or a kubeconfig.

In a pod, the token and the CA are two files. A kubeconfig may name plugins, identity providers,
certificates and proxies, so the Kubernetes client library reads it, and renews its tokens. That
library takes 20 MB of memory and a fifth of a second to load. The image does without it.
"""

import os
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.core.errors import InputError, RetryableError

_PORTS: Final = {"http": 80, "https": 443}
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Path at which Kubernetes mounts it into each container."""


class Login:
    """One way to reach an API server: its address, and the Authorization header of requests.

    Attributes:
        server: The server's URL, which may end with a path.
        host, port: To connect to; those of the proxy, if there is one.
        tunnel_to: Host and port to ask the proxy for; None without a proxy.
        tls: Creates a TLS context, from the files as they are now; None without TLS.
        tls_name: The name in the server's certificate.
        idle: Connections with this login that wait for a request; None once the server has
            rejected it.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[], str | None],
        tls: Callable[[], ssl.SSLContext],
        *,
        tls_name: str = "",
        proxy: str = "",
    ) -> None:
        """Leave the token to be read by the first request.

        Args:
            read: Returns the header's value, None if requests carry no credentials. It may renew a
                token, and take its time for it.
            tls_name: "" for the name in the URL.
            proxy: URL of an HTTP proxy, which is asked for a tunnel; "" for none.

        Raises:
            ValueError: A URL is malformed.
        """
        server, first = urlsplit(url), urlsplit(proxy or url)
        if server.scheme not in _PORTS or not server.hostname:
            raise ValueError(f"server: found {url!r}, expected an http or https URL")
        if proxy and (first.scheme != "http" or not first.hostname):
            # Without the rest of the URL, which may have a password.
            raise ValueError(f"proxy: found {first.scheme!r}, expected http://HOST:PORT")
        self.server: Final = server
        self.host: Final = str(first.hostname)
        self.port: Final = first.port or _PORTS[first.scheme]
        self.tunnel_to: Final = (
            (server.hostname, server.port or _PORTS[server.scheme]) if proxy else None
        )
        self.tls: Final = tls if server.scheme == "https" else None
        self.tls_name: Final = tls_name or server.hostname
        self.idle: list[Any] | None = []
        self._read = read
        self._reading = Lock()  # guards _seen, and calls of _read
        self._seen: deque[str] = deque(maxlen=2)

    def header(self, *, wait_seconds: float) -> dict[str, str]:
        """Return the Authorization header; empty if requests carry no credentials.

        Args:
            wait_seconds: While another thread renews the token.

        Raises:
            TimeoutError: The other thread was not ready within the time.
            RetryableError: The token cannot be read or renewed.
            ValueError: The token has characters that no token has.
        """
        if not self._reading.acquire(timeout=wait_seconds):
            raise TimeoutError
        try:
            value = (self._read() or "").strip()
            if value and value not in self._seen:
                self._seen.append(value)
        finally:
            self._reading.release()
        if not value.isprintable():
            raise ValueError("credentials: found a control character in the token")
        return {"Authorization": value} if value else {}

    def secrets(self) -> frozenset[str]:
        """Return the latest credentials, which must never appear in a log."""
        return frozenset(value.rpartition(" ")[2] for value in tuple(self._seen))


def log_in(kubeconfig: Path | None, context: str | None = None) -> Login:
    """Return the login at the API server.

    Args:
        kubeconfig: None selects the pod's service account.
        context: Of the kubeconfig; None for the current one.

    Raises:
        InputError: The kubeconfig cannot be read, or the pod has no service account.
    """
    if kubeconfig is None:
        return of_service_account()
    # Imported here, because a login in a pod does without them.
    try:
        import kubernetes  # noqa: PLC0415
        import yaml  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(
            f"kubeconfig {kubeconfig}: found no Python package {error.name}, expected it for a "
            "kubeconfig (pip install tensorfusion-dra); the image has none: leave --kubeconfig out "
            "there, and the pod's service account is used"
        ) from error
    config: Any = kubernetes.config
    # On a damaged file the library raises not only its own errors, but any that its code runs into.
    accidents = (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
    failures = (config.ConfigException, yaml.YAMLError, OSError, ValueError, *accidents)
    settings: Any = kubernetes.client.Configuration()

    def read() -> str | None:
        try:
            found = settings.auth_settings().get("BearerToken")
        except failures as error:
            raise RetryableError(f"credentials: {error_text.one_line(error)}") from error
        return found["value"] if found else None

    try:
        config.load_kube_config(
            config_file=str(kubeconfig),
            context=context,
            client_configuration=settings,
            persist_config=False,
        )
        is_direct = kubernetes.client.rest.should_bypass_proxies(
            settings.host, settings.no_proxy or ""
        )
        return Login(
            settings.host,
            read,
            partial(
                _tls_context,
                settings.ssl_ca_cert,
                settings.cert_file,
                settings.key_file,
                is_verified=settings.verify_ssl,
            ),
            tls_name=settings.tls_server_name or "",
            proxy="" if is_direct else settings.proxy or "",
        )
    except accidents as error:
        raise InputError(
            f"kubeconfig {kubeconfig}: a field has the wrong type or form; compare the file with "
            "kubectl config view"
        ) from error
    except failures as error:
        raise InputError(f"kubeconfig {kubeconfig}: {error}") from error


def of_service_account(*, folder: Path = _SERVICE_ACCOUNT, scheme: str = "https") -> Login:
    """Return the login of a pod; its token is read for each request, as it is renewed."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    token, authority = folder / "token", folder / "ca.crt"
    if not (host and port and token.is_file() and authority.is_file()):
        raise InputError(
            "in-cluster configuration: found no API server in the environment, or no files in "
            f"{folder}; expected those of a pod, or a kubeconfig"
        )

    def read() -> str:
        try:
            text = token.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise RetryableError(f"credentials: {error_text.cause(error)}") from error
        if not text:
            raise RetryableError(f"credentials: found no token in {token}")
        return f"Bearer {text}"

    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    return Login(url, read, partial(_tls_context, str(authority)))


def _tls_context(
    authority: str | None,
    certificate: str | None = None,
    key: str | None = None,
    *,
    is_verified: bool = True,
) -> ssl.SSLContext:
    """Return a new TLS context of these files; without an authority, with the system's.

    Raises:
        OSError: A file cannot be read, or certificate and key do not belong together.
    """

    def refuse() -> str:
        raise OSError("client key is encrypted, password is required")

    context = ssl.create_default_context(cafile=authority)
    # From Python 3.13 on, certificates must follow RFC 5280 strictly by default. Cluster CAs need
    # not: every Go client accepts one without key usage, and so does this one. Chain, names and
    # dates are still verified.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key, password=refuse)
    return context


def namespace(kubeconfig: Path, context: str | None = None) -> str:
    """Return the namespace of a context, by default the current one; ``default`` if it has none.

    A kubeconfig that cannot be read has none: the first request reports its error.
    """
    try:
        import kubernetes  # noqa: PLC0415 - as in log_in()

        every, active = kubernetes.config.list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
        chosen = next(each for each in every if each["name"] == (context or active["name"]))
        return str(chosen["context"].get("namespace") or "default")
    except Exception:  # noqa: BLE001 - on a damaged file the library raises any error
        return "default"
