"""Login to the API server, from a kubeconfig or a pod's service account.

The Kubernetes client library reads the credentials and renews them, and makes the settings for TLS
and proxies of them.
"""

from pathlib import Path
from typing import Any

from tensorfusion_dra.cluster import client_library, error_text
from tensorfusion_dra.cluster.client_library import Library
from tensorfusion_dra.cluster.connections import Connections
from tensorfusion_dra.cluster.credentials import Credentials
from tensorfusion_dra.cluster.tls import Tls
from tensorfusion_dra.cluster.transport import Transport
from tensorfusion_dra.core.errors import InputError, RetryableError


def transport_of(kubeconfig: Path | None, *, user_agent: str) -> Transport:
    """Return a transport with the login; its requests are bounded in time and size.

    Args:
        kubeconfig: None selects the pod's service account.

    Raises:
        InputError: The kubeconfig cannot be read, or the pod has no service account.
    """
    subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
    library = (
        client_library.for_kubeconfig(kubeconfig)
        if kubeconfig
        else client_library.for_service_account()
    )
    settings = library.configuration()
    settings.keep_alive = True
    try:
        if kubeconfig is None:
            library.load_service_account(client_configuration=settings)
        else:
            library.load_kubeconfig(
                config_file=str(kubeconfig), client_configuration=settings, persist_config=False
            )
        manager = library.rest_client(settings).pool_manager
        return Transport(
            settings.host,
            Connections(manager, settings.host, _tls(settings)),
            Credentials(lambda: _header(library, settings)),
            user_agent=user_agent,
        )
    except client_library.ACCIDENTS as error:
        text = "a field has the wrong type or form; compare the file with kubectl config view"
        raise InputError(f"{subject}: {text}") from error
    except library.failures as error:
        raise InputError(f"{subject}: {error}") from error


def _tls(settings: Any) -> Tls:
    return Tls(
        authority=settings.ca_cert_data,
        authority_file=settings.ssl_ca_cert,
        certificate_file=settings.cert_file,
        key_file=settings.key_file,
        verifies=settings.verify_ssl,
    )


def _header(library: Library, settings: Any) -> str | None:
    """Return the value of the header Authorization, of a renewed token if one is due."""
    try:
        found = settings.auth_settings().get("BearerToken")
    except library.failures as error:
        raise RetryableError(f"credentials: {error_text.one_line(error)}") from error
    return found["value"] if found else None
