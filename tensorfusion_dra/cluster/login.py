"""Login to the API server, from a kubeconfig or a pod's service account.

The Kubernetes client library does the authentication, TLS and proxies.
"""

import ssl
from pathlib import Path

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client import ApiClient

from tensorfusion_dra.cluster import transport
from tensorfusion_dra.core.errors import InputError


def client_of(kubeconfig: Path | None, *, user_agent: str) -> ApiClient:
    """Return a client whose requests are bounded in time and size; see transport.py.

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
    # On a damaged file the library raises not only its own errors, but any that its code runs into.
    except (
        *(config.ConfigException, yaml.YAMLError, OSError),
        *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError),
    ) as error:
        subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise InputError(f"{subject}: {error}") from error
    api_client = ApiClient(configuration=settings)
    api_client.user_agent = user_agent
    manager = api_client.rest_client.pool_manager
    # From Python 3.13 on, certificates must follow RFC 5280 strictly by default. Cluster CAs need
    # not: every Go client accepts one without key usage, and so does this one. Chain, names and
    # dates are still verified.
    wanted = ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE
    context = urllib3.util.ssl_.create_urllib3_context(cert_reqs=wanted)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    manager.connection_pool_kw["ssl_context"] = context
    transport.limit(manager)
    return api_client


def secrets(api_client: ApiClient) -> frozenset[str]:
    """Return the client's known credentials, which must never appear in a log."""
    settings = api_client.configuration
    tokens = (str(value) for value in settings.api_key.values())
    bare = (token.rpartition(" ")[2] for token in tokens)
    return frozenset(secret for secret in (*bare, settings.password or "") if secret)
