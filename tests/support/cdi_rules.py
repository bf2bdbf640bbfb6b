"""Rules of container runtimes for CDI specs (Container Device Interface, SPEC.md, and its loader).

The loader rejects a spec as a whole for any violation. Therefore containerd and CRI-O load a spec
that has none.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError
from tests.support.builders.nodes import ENFORCER

_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*")


def violations(spec: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a runtime would reject the spec; empty if it would not."""
    try:
        cdi_rules.check(spec)
    except CdiError as error:
        return [str(error)]
    return list(_further(spec))


def lowest_version(spec: Mapping[str, Any]) -> str:
    """Return the oldest CDI version with every feature that the spec uses.

    Only features that this driver may use are considered.
    """
    if "annotations" in spec or "." in spec["kind"].partition("/")[2]:
        return "0.6.0"
    return "0.5.0"  # for names that start with a digit, and for device nodes with a hostPath


def _all_edits(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield spec.get("containerEdits", {})
    for device in spec["devices"]:
        yield device["containerEdits"]


def _further(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what this driver never writes, although a runtime may load it."""
    if spec["cdiVersion"] != lowest_version(spec):
        yield f"cdiVersion {spec['cdiVersion']}, expected {lowest_version(spec)}"
    for edits in _all_edits(spec):
        yield from (f"env {entry!r}" for entry in edits.get("env", []) if not _ENV.fullmatch(entry))
        mounts, nodes = edits.get("mounts", []), edits.get("deviceNodes", [])
        paths = [mount[key] for mount in mounts for key in ("hostPath", "containerPath")]
        for path in (*paths, *(node["path"] for node in nodes)):
            if not path.startswith("/"):
                yield f"path {path!r}"


def injected(spec: Mapping[str, Any], ids: list[str]) -> list[Mapping[str, Any]]:
    """Return the edits for a container that requests these qualified names, in their order.

    Names of other kinds are skipped; they are in other files, such as that of NVIDIA's toolkit.

    Raises:
        KeyError: The spec has no such device; a runtime would not start the container.
    """
    by_id = {
        f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]
    }
    ours = [name for name in ids if name.startswith(f"{spec['kind']}=")]
    return [*(by_id[name] for name in ours), spec.get("containerEdits", {})]


def environment(spec: Mapping[str, Any], ids: list[str]) -> dict[str, str]:
    """Return the variables of such a container; for a duplicate name the last value wins."""
    variables = [v for edits in injected(spec, ids) for v in edits.get("env", [])]
    return {name: value for name, _, value in (v.partition("=") for v in variables)}


def spec_of(claim: PreparedClaim) -> dict[str, Any]:
    """Return the claim's CDI spec under the default enforcer."""
    spec = cdi.spec(claim, ENFORCER)
    assert spec is not None
    return spec


def env(claim: PreparedClaim, *requests: str) -> dict[str, str]:
    """Return the variables of a container that uses these requests; with none, all requests."""
    ids = [
        name
        for item, names in zip(claim.shares, cdi.ids_by_share(claim), strict=True)
        for name in names
        if item.request in requests or not requests
    ]
    return environment(spec_of(claim), ids)


def variables_with_prefix(variables: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the variables whose names begin with the prefix."""
    return {name: value for name, value in variables.items() if name.startswith(prefix)}
