"""Access to a cluster as kubectl has it: its kubeconfig, and the namespace of its context.

In a pod without a kubeconfig it is that of the pod's service account.
"""

import argparse
import os
from pathlib import Path

from tensorfusion_dra.cluster import login
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import minor_version
from tensorfusion_dra.core.kubernetes import releases


def add_flags(
    parser: argparse.ArgumentParser, *, namespace: str = "", of_all: bool = False
) -> None:
    """Add --kubeconfig and --context.

    Args:
        namespace: Meaning of -n; "" adds none.
        of_all: Without -n the answer is of all namespaces, so that -A asks for nothing else.
    """
    if namespace:
        parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help=namespace)
    if of_all:
        parser.add_argument(
            *("-A", "--all-namespaces"),
            dest="namespace",
            action="store_const",
            const=None,
            help="all namespaces, the default",
        )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster; by default kubectl's, or in a pod its service account",
    )
    parser.add_argument("--context", metavar="NAME", help="the kubeconfig's context to use")


def add_release(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --kubernetes.

    Args:
        default: What holds without it.
    """
    names = [f"1.{minor}" for minor in range(releases.OLDEST, releases.NEWEST + 1)]
    parser.add_argument(
        "--kubernetes",
        choices=names,
        help=f"release of Kubernetes whose rules hold; by default {default}",
    )


def release(text: str | None) -> int | None:
    """Return 37 for the flag 1.37; None without it."""
    return minor_version(text) if text else None


def api(kubeconfig: str | None, context: str | None) -> Api:
    """Return a client of the cluster.

    Args:
        kubeconfig: None for $KUBECONFIG, ~/.kube/config, or in a pod its service account.
        context: None for the current one.
    """
    # Unlike Path.expanduser(), it accepts a user without a home.
    path = Path(os.path.expanduser(_path(kubeconfig)))  # noqa: PTH111
    is_chosen = kubeconfig or context or os.environ.get("KUBECONFIG")
    if not is_chosen and "KUBERNETES_SERVICE_HOST" in os.environ and not path.exists():
        return Api(None)
    return Api(path, context=context)


def namespace(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of a context, by default the current one; ``default`` if it has none."""
    return login.namespace(Path(_path(kubeconfig)), context)


def _path(kubeconfig: str | None) -> str:
    return kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
