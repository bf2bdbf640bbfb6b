"""The Kubernetes client's own part: authentication, TLS, proxies, from a kubeconfig or a pod."""

import ssl
from pathlib import Path

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client import ApiClient

from tensorfusion_dra.cluster import transport
from tensorfusion_dra.core.errors import InputError


def client_of(kubeconfig: Path | None, *, user_agent: str) -> ApiClient:
    """A client whose requests are bounded as transport.py says.

    Args:
        kubeconfig: None stands for the pod's service account.

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
    # Beside its own errors the library lets out whatever its way through a damaged file meets.
    except (
        *(config.ConfigException, yaml.YAMLError, OSError),
        *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError),
    ) as error:
        subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise InputError(f"{subject}: {error}") from error
    api_client = ApiClient(configuration=settings)
    api_client.user_agent = user_agent
    manager = api_client.rest_client.pool_manager
    # From Python 3.13 on, certificates are held to RFC 5280 to the letter by default. Authorities
    # of clusters need not be: every client in Go takes one without key usage, and so does this.
    # What is verified stays: chain, names, dates.
    wanted = ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE
    context = urllib3.util.ssl_.create_urllib3_context(cert_reqs=wanted)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    manager.connection_pool_kw["ssl_context"] = context
    transport.limit(manager)
    return api_client


def secrets(api_client: ApiClient) -> frozenset[str]:
    """Texts that must never be seen in a log, as far as they are known."""
    settings = api_client.configuration
    tokens = (str(value) for value in settings.api_key.values())
    bare = (token.rpartition(" ")[2] for token in tokens)
    return frozenset(secret for secret in (*bare, settings.password or "") if secret)
