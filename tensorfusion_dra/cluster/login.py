"""Login to the API server, from a pod's service account or a kubeconfig.

In a pod, the token and the CA are two files. A kubeconfig may name plugins, identity providers,
certificates and proxies, so the Kubernetes client library reads it, and renews its tokens. That
library takes 20 MB of memory and a fifth of a second to load.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

import urllib3

from tensorfusion_dra.cluster import error_text, kubeconfig_files
from tensorfusion_dra.cluster.connections import MOST_IDLE, Answer, Connections, Tls
from tensorfusion_dra.core.errors import InputError, RetryableError

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts it into each container."""


class Login:
    """Connections to one API server with the credentials of one login. Any thread may send."""

    def __init__(self, connections: Connections, read: Callable[[], str | None]) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            read: Returns the value of the header Authorization, None if requests carry no
                credentials. It may renew a token, and take its time for it.
        """
        self._connections = connections
        self._read = read
        self._reading = Lock()  # guards _seen, and calls of _read
        self._seen: deque[str] = deque(maxlen=2)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> Answer:
        """Send a request with the credentials; see Connections.send.

        Raises:
            RetryableError: The token cannot be read or renewed.
        """
        authorization = self.authorization(wait_seconds=seconds)
        return self._connections.send(
            method,
            path,
            query=query,
            content=content,
            headers={**headers, **authorization},
            seconds=seconds,
        )

    def authorization(self, *, wait_seconds: float) -> dict[str, str]:
        """Return the header with the credentials; empty if requests carry none.

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

    def close(self) -> None:
        """Close the idle connections, and each other one when its answer is closed."""
        self._connections.close()


def log_in(kubeconfig: Path | None, *, user_agent: str) -> Login:
    """Return a login, whose requests are bounded in time and size.

    Args:
        kubeconfig: None selects the pod's service account.

    Raises:
        InputError: The kubeconfig cannot be read, or the pod has no service account.
    """
    if kubeconfig is None:
        return of_service_account(user_agent=user_agent)
    return _of_kubeconfig(kubeconfig, user_agent=user_agent)


def of_service_account(
    *, user_agent: str, folder: Path = _SERVICE_ACCOUNT, scheme: str = "https"
) -> Login:
    """Return the login of a pod. Its token is read for each request, since Kubernetes renews it."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    token, authority = folder / "token", folder / "ca.crt"
    if not (host and port and token.is_file() and authority.is_file()):
        raise InputError(
            f"service account: found no API server in the environment or no files in {folder}, "
            "expected those of a pod, or a kubeconfig"
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
    manager = urllib3.PoolManager(maxsize=MOST_IDLE)
    tls = Tls(authority_file=str(authority))
    return Login(Connections(url, manager, tls, user_agent=user_agent), read)


def _of_kubeconfig(path: Path, *, user_agent: str) -> Login:
    # Read to the last one, so that a file that is too large is found.
    for _ in kubeconfig_files.texts(path):
        pass
    # Imported here, because a login in a pod does without them.
    import yaml  # noqa: PLC0415
    from kubernetes import client  # noqa: PLC0415
    from kubernetes import config as untyped_config  # noqa: PLC0415

    config: Any = untyped_config

    # On a damaged file the library raises not only its own errors, but any that its code runs into.
    accidents = (TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
    failures = (config.ConfigException, yaml.YAMLError, OSError, ValueError, *accidents)
    settings: Any = client.Configuration()
    settings.keep_alive = True
    settings.connection_pool_maxsize = MOST_IDLE

    def read() -> str | None:
        try:
            found = settings.auth_settings().get("BearerToken")
        except failures as error:
            raise RetryableError(f"credentials: {error_text.one_line(error)}") from error
        return found["value"] if found else None

    try:
        config.load_kube_config(
            config_file=str(path), client_configuration=settings, persist_config=False
        )
        tls = Tls(
            authority_file=settings.ssl_ca_cert,
            certificate_file=settings.cert_file,
            key_file=settings.key_file,
            verifies=settings.verify_ssl,
        )
        manager = client.rest.RESTClientObject(settings).pool_manager
        return Login(Connections(settings.host, manager, tls, user_agent=user_agent), read)
    except accidents as error:
        text = "a field has the wrong type or form; compare the file with kubectl config view"
        raise InputError(f"kubeconfig {path}: {text}") from error
    except failures as error:
        raise InputError(f"kubeconfig {path}: {error}") from error
