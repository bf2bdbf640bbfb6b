"""Access to a cluster as kubectl has it: its kubeconfig, and the namespace of its context.

In a pod without a kubeconfig it is that of the pod's service account.
"""

import argparse
import os
from pathlib import Path

from tensorfusion_dra.cluster import login
from tensorfusion_dra.cluster.api import Api


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag --kubeconfig."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster; by default kubectl's, or in a pod its service account",
    )


def api(kubeconfig: str | None) -> Api:
    """Return a client of the cluster.

    Args:
        kubeconfig: None for $KUBECONFIG, ~/.kube/config, or in a pod its service account.
    """
    # Unlike Path.expanduser(), it accepts a user without a home.
    path = Path(os.path.expanduser(_path(kubeconfig)))  # noqa: PTH111
    is_chosen = kubeconfig or os.environ.get("KUBECONFIG")
    if not is_chosen and "KUBERNETES_SERVICE_HOST" in os.environ and not path.exists():
        return Api(None)
    return Api(path)


def namespace(kubeconfig: str | None) -> str:
    """Return the namespace of the current context; ``default`` if it has none."""
    return login.namespace(Path(_path(kubeconfig)))


def _path(kubeconfig: str | None) -> str:
    return kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
