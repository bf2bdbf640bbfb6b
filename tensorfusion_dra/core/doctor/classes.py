"""Findings about the DeviceClass and the claim templates through which claims get GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.share_parameters import ParameterError
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map


def device_class(stored: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Judge the DeviceClass; None if there is none."""
    subject = f"DeviceClass {names.DEVICE_CLASS}"
    if stored is None:
        yield problem(
            subject,
            "not found",
            expected="the DeviceClass; until then pods whose claims name it stay Pending",
            cure="install the driver's DeviceClass (docs/install.md)",
        )
        return
    spec = as_map(stored.get("spec"))
    expressions = [
        str(as_map(as_map(selector).get("cel")).get("expression", ""))
        for selector in as_list(spec.get("selectors"))
    ]
    if any(f'"{names.DRIVER}"' in text or f"'{names.DRIVER}'" in text for text in expressions):
        yield ok(subject, f"selects by {' and '.join(expressions)}")
    else:
        yield warning(
            subject,
            f"selectors {expressions or 'none'} do not name this driver",
            expected=f'device.driver == "{names.DRIVER}"',
            cure="install the driver's DeviceClass (docs/install.md)",
        )
    yield from _parameters(subject, spec)


def _parameters(subject: str, spec: Mapping[str, object]) -> Iterator[Finding]:
    for index, config in enumerate(as_list(spec.get("config"))):
        opaque = as_map(as_map(config).get("opaque"))
        if opaque.get("driver") != names.DRIVER:
            continue
        try:
            share_parameters.parse(opaque.get("parameters"), trusted=True)
        except ParameterError as error:
            yield problem(
                f"{subject}, config[{index}]",
                str(error),
                expected="parameters that the node plugin accepts; until then every claim of the "
                "class fails",
                cure=f"kubectl edit deviceclass {names.DEVICE_CLASS}",
            )


def templates(stored: Sequence[Mapping[str, Any]], *, classes: Sequence[str]) -> Iterator[Finding]:
    """Judge the claim templates that the webhook adds to pods.

    Args:
        stored: The ResourceClaimTemplates of that name, in all namespaces.
        classes: Names of the cluster's DeviceClasses.
    """
    subject = f"ResourceClaimTemplate {names.CLAIM_TEMPLATE}"
    if not stored:
        yield note(
            subject,
            "in no namespace",
            expected="in each namespace whose pods request GPUs by annotations, if the webhook is "
            "used",
            cure="kubectl apply -n NAMESPACE -f daemonset/claim-template.yaml",
        )
        return
    for template in stored:
        namespace = template["metadata"].get("namespace", "")
        named = sorted(_classes_named(template) - set(classes))
        if named:
            yield problem(
                f"{subject} in {namespace}",
                f"names DeviceClass {', '.join(named)}, which does not exist",
                expected=f"deviceClassName: {names.DEVICE_CLASS}",
                cure=f"kubectl delete -n {namespace} resourceclaimtemplate "
                f"{names.CLAIM_TEMPLATE}, and apply daemonset/claim-template.yaml there",
            )
        else:
            yield ok(f"{subject} in {namespace}", "names existing classes")


def _classes_named(template: Mapping[str, Any]) -> set[str]:
    devices = as_map(as_map(as_map(template.get("spec")).get("spec")).get("devices"))
    found: set[str] = set()
    for request in map(as_map, as_list(devices.get("requests"))):
        for exact in (request.get("exactly"), *as_list(request.get("firstAvailable"))):
            if exact is not None:
                found.add(str(as_map(exact).get("deviceClassName", "")))
    return found
