"""Login to the API server, from a kubeconfig or a pod's service account.

The Kubernetes client library reads the credentials and renews them, and makes the settings for TLS
and proxies of them.
"""

from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.connections import Connections
from tensorfusion_dra.cluster.credentials import Credentials
from tensorfusion_dra.cluster.tls import Tls
from tensorfusion_dra.cluster.transport import Transport
from tensorfusion_dra.core.errors import InputError, RetryableError

_FAILURES: Final = (
    *(config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError),
    *(AttributeError, LookupError, ArithmeticError, RecursionError),
)
"""On a damaged file the library raises not only its own errors, but any that its code runs into."""


def transport_of(kubeconfig: Path | None, *, user_agent: str) -> Transport:
    """Return a transport with the login; its requests are bounded in time and size.

    Args:
        kubeconfig: None selects the pod's service account.

    Raises:
        InputError: The kubeconfig cannot be read, or the pod has no service account.
    """
    settings = client.Configuration()
    settings.keep_alive = True
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=settings, persist_config=False
            )
        manager = RESTClientObject(settings).pool_manager
        return Transport(
            settings.host,
            Connections(manager, settings.host, _tls(settings)),
            Credentials(lambda: _header(settings)),
            user_agent=user_agent,
        )
    except _FAILURES as error:
        subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise InputError(f"{subject}: {error}") from error


def _tls(settings: Any) -> Tls:
    return Tls(
        authority=settings.ca_cert_data,
        authority_file=settings.ssl_ca_cert,
        certificate_file=settings.cert_file,
        key_file=settings.key_file,
        verifies=settings.verify_ssl,
    )


def _header(settings: Any) -> str | None:
    """Return the value of the header Authorization, of a renewed token if one is due."""
    try:
        found = settings.auth_settings().get("BearerToken")
    except _FAILURES as error:
        raise RetryableError(f"credentials: {error_text.one_line(error)}") from error
    return found["value"] if found else None
