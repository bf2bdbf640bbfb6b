"""Login to the API server, from a pod's service account or a kubeconfig.

In a pod, the token and the CA are two files. A kubeconfig may name plugins, identity providers,
certificates and proxies, so the Kubernetes client library reads it, and renews its tokens. That
library takes 20 MB of memory and a fifth of a second to load.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import urllib3

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.connections import MOST_IDLE, Connections, Credentials
from tensorfusion_dra.core.errors import InputError, RetryableError

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts it into each container."""


def log_in(kubeconfig: Path | None, *, user_agent: str) -> Connections:
    """Return the connections to the API server, with the login.

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
) -> Connections:
    """Return the connections of a pod; its token is read for each request, as it is renewed."""
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
    manager = urllib3.PoolManager(maxsize=MOST_IDLE, ca_certs=str(authority))
    return Connections(url, manager, Credentials(read), user_agent=user_agent)


def _of_kubeconfig(path: Path, *, user_agent: str) -> Connections:
    # Read to the last one, so that a file that is too large is found.
    for _ in kubeconfig_texts(path):
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
        manager = client.rest.RESTClientObject(settings).pool_manager
        return Connections(settings.host, manager, Credentials(read), user_agent=user_agent)
    except accidents as error:
        text = "a field has the wrong type or form; compare the file with kubectl config view"
        raise InputError(f"kubeconfig {path}: {text}") from error
    except failures as error:
        raise InputError(f"kubeconfig {path}: {error}") from error


_MOST_KUBECONFIG_BYTES: Final = 4 * 2**20
"""One cluster with its certificates takes 10 KB."""


def kubeconfig_texts(kubeconfig: Path) -> Iterator[bytes]:
    """Yield the text of each file; a file that cannot be opened is left out.

    Args:
        kubeconfig: One path or, as in $KUBECONFIG, several with colons in between.

    Raises:
        InputError: A file has no end, like a device, or is too large.
    """
    for part in filter(None, str(kubeconfig).split(os.pathsep)):
        try:
            file = Path(part).expanduser()
            if not stat.S_ISREG(file.stat().st_mode):
                text = "found no regular file, expected a kubeconfig"
                raise InputError(f"kubeconfig {file}: {text}")
            with file.open("rb") as opened:
                found = opened.read(_MOST_KUBECONFIG_BYTES + 1)
        except (OSError, RuntimeError):
            continue
        if len(found) > _MOST_KUBECONFIG_BYTES:
            text = f"found more than {_MOST_KUBECONFIG_BYTES} bytes, expected a kubeconfig"
            raise InputError(f"kubeconfig {file}: {text}")
        yield found
