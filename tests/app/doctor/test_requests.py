"""Checks of how pods request GPUs: resources of containers, and templates of claims."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import requests
from tensorfusion_dra.app.doctor.checks import CheckFunction, Context, Place
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core import names
from tensorfusion_dra.core.finding import Level
from tests.app.doctor.here import context
from tests.support import findings
from tests.support.builders.classes import share_class
from tests.support.builders.pods import container_document, pod_document
from tests.support.canned_api import CannedApi, served
from tests.support.findings import Expected

Json = dict[str, Any]
Here = Callable[..., Context]

PODS = "GET /api/v1/pods"
RANGES = "GET /api/v1/limitranges"
CLASSES = "GET /apis/resource.k8s.io/v1/deviceclasses"
TEMPLATES = "GET /apis/resource.k8s.io/v1/resourceclaimtemplates"
WEBHOOKS = "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
ASKING = container_document(resources={"limits": {"tensor-fusion.ai/vram": "16Gi"}})
ASKING_NOTHING = container_document(resources={"limits": {"tensor-fusion.ai/vram": "0"}})
QUARTER = share_class("quarter", requests={"vram": "20Gi"})
FIXED = share_class("quarter", requests={"vram": "20Gi"}, overridable=False)


@pytest.fixture
def canned() -> Iterator[CannedApi]:
    with served({}) as api:
        yield api


@pytest.fixture
def here(canned: CannedApi, tmp_path: Path) -> Here:
    kubeconfig = canned.kubeconfig(tmp_path / "kubeconfig")
    return lambda: context(tmp_path, api=Api(kubeconfig), place=Place.WORKSTATION)


def items(*found: Json) -> Json:
    return {"items": list(found)}


def of_class(name: str, extended: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": extended}}


def limit_range(**defaults: Json) -> Json:
    metadata = {"namespace": "team-a", "name": "defaults"}
    return {"metadata": metadata, "spec": {"limits": [{"type": "Container", **defaults}]}}


def template(metadata: Json | None = None, **exactly: Any) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "quarter", **exactly}}
    return {
        "metadata": {"namespace": "team-a", "name": "share", **(metadata or {})},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


OF_10GI = {"vram": "10Gi"}
FILLED: Json = {"annotations": {names.ANNOTATION_FILLED: "gpu:vram"}}
ADDED: list[Json] = [{"name": names.POD_CLAIM}]
QUEUED = pod_document({}, resourceClaims=ADDED)


@pytest.mark.parametrize(
    ("check", "answers", "expected"),
    [
        (requests.classes, {CLASSES: items(of_class("a", names.RESOURCE_GPU))}, []),
        *(
            (
                requests.classes,
                {CLASSES: items(of_class("a", f"tensor-fusion.ai/{name}"))},
                [
                    (
                        Level.PROBLEM,
                        f"DeviceClass a: extendedResourceName is tensor-fusion.ai/{name}",
                    )
                ],
            )
            for name in ("vram", "tflops", "vram-percent", "compute-percent")
        ),
        (requests.ranges, {RANGES: items(limit_range(default={"cpu": "1"}))}, []),
        *(
            (
                requests.ranges,
                {RANGES: items(limit_range(**{kind: {name: "1"}}))},
                [(Level.WARNING, f"LimitRange team-a/defaults: gives {name} to every container")],
            )
            for kind in ("default", "defaultRequest")
            for name in ("tensor-fusion.ai/vram", names.RESOURCE_GPU)
        ),
        (requests.waiting, {PODS: items(pod_document({}))}, []),
        (requests.waiting, {PODS: items(pod_document({}, ASKING_NOTHING))}, []),
        (
            requests.waiting,
            {PODS: items(pod_document({}, ASKING), pod_document({}))},
            [
                (
                    Level.PROBLEM,
                    "extended resource tensor-fusion.ai/vram: no node has it, and the webhook is "
                    "not installed. These pods wait with Insufficient tensor-fusion.ai/vram: "
                    "team-a/train",
                )
            ],
        ),
        (
            requests.waiting,
            {
                PODS: items(pod_document({}, ASKING)),
                WEBHOOKS: items({"webhooks": [{"name": "pods.dra.tensor-fusion.ai"}]}),
            },
            [(Level.PROBLEM, "the webhook did not replace it by a claim")],
        ),
        (requests.queued, {PODS: items(pod_document({}))}, []),
        # Kueue charges a claim template with amounts as it is.
        (requests.queued, {PODS: items(pod_document({}, resourceClaims=[{"name": "own"}]))}, []),
        (
            requests.queued,
            {PODS: items(pod_document({}, resourceClaims=[{"name": "own"}, *ADDED]))},
            [(Level.WARNING, "team-a/train: Kueue reads tensor-fusion-gpu-template, which names")],
        ),
        (
            requests.queued,
            {PODS: items(QUEUED)},
            [(Level.WARNING, "team-a/train: Kueue reads tensor-fusion-gpu-template, which names")],
        ),
        (requests.templates, {CLASSES: items(QUARTER), TEMPLATES: items()}, []),
        (
            requests.templates,
            {CLASSES: items(QUARTER), TEMPLATES: items(template())},
            [(Level.WARNING, "ResourceClaimTemplate team-a/share: has no longer, or never had")],
        ),
        (
            requests.templates,
            {
                CLASSES: items(QUARTER),
                TEMPLATES: items(template({"labels": {names.LABEL_FILL_AMOUNTS: "false"}})),
            },
            [],
        ),
        (
            requests.templates,
            {
                CLASSES: items(QUARTER),
                TEMPLATES: items(template(FILLED, capacity={"requests": OF_10GI})),
            },
            [
                (
                    Level.WARNING,
                    "the template; 20Gi, which its class has now",
                )
            ],
        ),
        (
            requests.templates,
            {CLASSES: items(), TEMPLATES: items(template(FILLED, capacity={"requests": OF_10GI}))},
            [(Level.WARNING, "request gpu: vram 10Gi. Its claims")],
        ),
        # An amount of the template's own.
        (
            requests.templates,
            {CLASSES: items(QUARTER), TEMPLATES: items(template(capacity={"requests": OF_10GI}))},
            [],
        ),
        (
            requests.templates,
            {
                CLASSES: items(QUARTER),
                TEMPLATES: items(template(capacity={"requests": {"x": "1"}})),
            },
            [(Level.WARNING, "amounts of its class: request gpu: vram none. Its claims")],
        ),
        # An amount of the template's own, which its class does not allow, or no longer.
        (
            requests.templates,
            {CLASSES: items(FIXED), TEMPLATES: items(template(capacity={"requests": OF_10GI}))},
            [(Level.WARNING, "request gpu: found vram: 10Gi, expected 20Gi: DeviceClass quarter")],
        ),
    ],
)
def test_requests(
    canned: CannedApi,
    here: Here,
    check: CheckFunction,
    answers: Json,
    expected: list[Expected],
) -> None:
    canned.answers |= answers

    findings.check(check(here()), expected)


def test_only_pods_that_wait_or_are_queued_are_read(canned: CannedApi, here: Here) -> None:
    canned.answers |= {PODS: items()}

    assert [*requests.waiting(here()), *requests.queued(here())] == []
    asked = [target for target, _ in canned.requests if target.startswith(PODS)]
    assert ["fieldSelector=status.phase%3DPending" in asked[0]] == [True]
    assert ["labelSelector=kueue.x-k8s.io%2Fmanaged%3Dtrue" in asked[1]] == [True]
