"""Devices to evaluate a selector on, from a file or from the cluster."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tensorfusion_dra.app.shared import input_text, kubectl
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.scheduling import devices, usage
from tensorfusion_dra.scheduling.devices import Device
from tensorfusion_dra.scheduling.usage import Usage

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The driver's devices, and their use by allocated claims."""

    devices: tuple[Device, ...]
    usage: Usage


def from_file(file: str) -> Found:
    """Read the ResourceSlices and ResourceClaims of a YAML or JSON file, including Lists.

    Raises:
        InputError: The file cannot be read, or has no ResourceSlice.
    """
    try:
        documents = list(_flat(yaml.safe_load_all(input_text.read(file))))
    except yaml.YAMLError as error:
        raise InputError(f"slices {file}: {' '.join(str(error).split())}") from error
    slices = [item for item in documents if item.get("kind") == "ResourceSlice"]
    if not slices:
        raise InputError(f"slices {file}: found no ResourceSlice, expected one or more")
    claims = [item for item in documents if item.get("kind") == "ResourceClaim"]
    return _found(slices, claims, subject=f"slices {file}")


def from_cluster(kubeconfig: str | None, *, with_claims: bool) -> Found:
    """Read the ResourceSlices from the API server.

    Args:
        kubeconfig: None for $KUBECONFIG, or ~/.kube/config.
        with_claims: Read the ResourceClaims, too; without them no device counts as used.

    Raises:
        InputError: The kubeconfig cannot be used, or the slices are malformed.
        RetryableError: The API server did not answer, or refused the request.
    """
    api = kubectl.api(kubeconfig)
    resource_api = ResourceApi(api)
    selector = {"fieldSelector": f"spec.driver={names.DRIVER}"}
    slices = api.call("GET", resource_api.slices(), query=selector).get("items") or []
    claims = api.call("GET", resource_api.claims()).get("items") or [] if with_claims else []
    return _found(slices, claims, subject="the cluster's slices")


def _flat(documents: Iterable[object]) -> Iterator[Document]:
    for document in documents:
        if isinstance(document, dict):
            yield from (
                _flat(document["items"]) if isinstance(document.get("items"), list) else (document,)
            )


def _found(slices: Iterable[Document], claims: Iterable[Document], *, subject: str) -> Found:
    try:
        of_driver = [
            devices.slice_of(document)
            for document in slices
            if document["spec"]["driver"] == names.DRIVER
        ]
        return Found(devices=tuple(devices.newest(of_driver)), usage=usage.of_claims(claims))
    except (KeyError, TypeError, AttributeError, ValueError, DriverError) as error:
        raise InputError(
            f"{subject}: found {type(error).__name__} {error}, "
            f"expected ResourceSlices as the API server shows them"
        ) from error
