"""Context of the checks: where the doctor runs, and what it can reach from there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.options import Options, Place
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import Api, ResourceApi
from tensorfusion_dra.cluster.cluster_lists import ClusterProbe

_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, options and surroundings that the checks read.

    Attributes:
        in_pod: Whether this process runs in a pod, with a service account of its own.
        api: None if there is no kubeconfig.
    """

    settings: Settings
    options: Options
    place: Place
    in_pod: bool
    api: Api | None

    @property
    def probe(self) -> ClusterProbe:
        """Return a reader of the API server; only for checks that need it."""
        return ClusterProbe(self.known_api)

    @property
    def resource_api(self) -> ResourceApi:
        """Return the paths of resource.k8s.io; only for checks that need the API server."""
        return ResourceApi(self.known_api)

    @property
    def known_api(self) -> Api:
        """Return the API server's client; only for checks that need it."""
        assert self.api is not None
        return self.api

    def on_host(self, path: str) -> Path:
        """Return the path under which this process sees a path of the host."""
        return self.options.host_root / path.lstrip("/")

    @property
    def sees_host(self) -> bool:
        """Return True if all paths of the host can be read, not only those mounted in this pod."""
        return not self.in_pod or self.options.host_root != Path("/")


def detect(settings: Settings, options: Options, environment: Mapping[str, str]) -> Context:
    """Return the context of this process.

    Unless the options name the place, a pod or a machine with the kubelet's registration folder
    counts as a node, and any other machine as a workstation.
    """
    in_pod = bool(environment.get(_IN_CLUSTER)) and _TOKEN.exists()
    place = options.place
    if place is None:
        is_node = in_pod or settings.registry_folder.is_dir()
        place = Place.NODE if is_node else Place.WORKSTATION
    return Context(
        settings=settings,
        options=options,
        place=place,
        in_pod=in_pod,
        api=_api(settings, environment, in_pod=in_pod),
    )


def _api(settings: Settings, environment: Mapping[str, str], *, in_pod: bool) -> Api | None:
    """Return a client by the first of these that is there; None if none is.

    The order is --kubeconfig, the pod's service account, KUBECONFIG, ~/.kube/config.
    """
    if settings.kubeconfig:
        return Api(Path(settings.kubeconfig))
    if in_pod:
        return Api(None)
    named = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    if named:
        return Api(Path(named[0]))
    home = environment.get("HOME")
    default = Path(home) / ".kube" / "config" if home else None
    return Api(default) if default and default.exists() else None
