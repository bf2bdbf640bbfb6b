"""Structs of all served API types, by their package in Kubernetes."""

from collections.abc import Mapping
from typing import Final

from dra_simulator.api.schema import Structs
from dra_simulator.api.schema_admission import ADMISSION
from dra_simulator.api.schema_container import CONTAINER
from dra_simulator.api.schema_core import CORE
from dra_simulator.api.schema_custom import CUSTOM
from dra_simulator.api.schema_meta import META
from dra_simulator.api.schema_pod import POD
from dra_simulator.api.schema_resource import RESOURCE
from dra_simulator.api.schema_volumes import VOLUMES

PACKAGES: Final[Mapping[str, Structs]] = {
    "io.k8s.apimachinery.pkg.apis.meta.v1": META,
    "io.k8s.api.core.v1": {**CORE, **POD, **CONTAINER, **VOLUMES},
    "io.k8s.api.resource.v1": RESOURCE,
    "io.k8s.api.admissionregistration.v1": ADMISSION,
    "ai.tensor-fusion.v1": CUSTOM,
}
STRUCTS: Final[Structs] = {
    name: fields for part in PACKAGES.values() for name, fields in part.items()
}
KUBERNETES_NAMES: Final[Mapping[str, str]] = {
    "CoreEvent": "Event",
    "NodeTaint": "Taint",
    "ContainerClaim": "ResourceClaim",
}
"""Kubernetes' names of the structs that are renamed here because two API groups share the name."""
