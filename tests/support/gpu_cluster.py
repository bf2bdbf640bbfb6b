"""A simulated cluster with GPUs of this driver, and the verbs that are asked about it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import (
    CLAIMS,
    NODES,
    PODS,
    SLICES,
    Client,
)
from dra_simulator.scheduler import Scheduler
from tensorfusion_dra import cli
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.scheduling import cel_evaluation
from tests.support import objects
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpus
from tests.support.builders.pods import pod_annotations
from tests.support.objects import Json

DRIVER = names.DRIVER
ANNOTATED = pod_annotations(
    dra_enabled="true", tflops_request="100", vram_request="16Gi", gpu_model="A100"
)

UNHEALTHY = {names.ATTR_PHASE: {"string": names.PHASE_UNKNOWN}}


def request(capacity: Json | None = None, **fields: Any) -> Json:
    """A request of this driver's class."""
    return objects.exactly(capacity=capacity, deviceClassName=names.DEVICE_CLASS, **fields)


def device_class() -> Json:
    document = objects.device_class(names.DEVICE_CLASS)
    document["spec"]["selectors"] = objects.expressions(f'device.driver == "{DRIVER}"')
    return document


def template() -> Json:
    """The claim template that the webhook adds to pods."""
    label = {names.LABEL_CLAIM_TEMPLATE: "true"}
    return objects.template(
        objects.exactly("gpu-request", deviceClassName=names.DEVICE_CLASS),
        name=names.CLAIM_TEMPLATE,
        metadata={"labels": label},
    )


class Printed(NamedTuple):
    """What a verb returned and printed."""

    code: int
    out: str
    err: str


class Cluster:
    """A simulated API server with a class and nodes, without scheduler and controllers."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self.server = server
        self.kubeconfig = kubeconfig
        self.client = Client(server.url)

    def add_node(
        self, name: str, *cards: Gpu, taint: str = "", spec: Json | None = None, **labels: str
    ) -> list[str]:
        """Add a node with these cards, the first of them tainted; return the cards' names."""
        made = self.client.create(NODES, {**objects.node(name, **labels), "spec": spec or {}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
        devices = [device.as_api() for device in published_devices(*cards)]
        if taint:
            found = {"key": names.TAINT_UNHEALTHY, "value": taint, "effect": "NoSchedule"}
            attributes = {**as_map(devices[0]["attributes"]), **UNHEALTHY}
            devices[0] = {**devices[0], "attributes": attributes, "taints": [found]}
        if devices:
            self.client.create(
                SLICES,
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"slice-{name}", "ownerReferences": [owner]},
                    "spec": {
                        "driver": DRIVER,
                        "nodeName": name,
                        "pool": {"name": f"p/{name}", "generation": 1, "resourceSliceCount": 1},
                        "devices": devices,
                    },
                },
            )
        return [str(device["name"]) for device in devices]

    def add_pod(self, name: str, *requests: Json, **fields: Any) -> Json:
        """Add a pod with a claim of the same name; without requests, without a claim.

        Its container uses all claims of the pod, unless the fields have other containers.
        """
        if requests:
            self.client.create(CLAIMS, objects.claim(*requests, name=name))
        pod = objects.pod(name, claim_name=name if requests else "")
        pod["metadata"].update(fields.pop("metadata", {}))
        uses = [{"name": each["name"]} for each in fields.get("resourceClaims", ())]
        if uses:
            pod["spec"]["containers"][0]["resources"] = {"claims": uses}
        pod["spec"].update(fields)
        return self.client.create(PODS, pod)

    def schedule_pod(self, name: str, *requests: Json, **fields: Any) -> Json:
        """Add a pod with a claim, schedule all pods that fit, and return the claim."""
        self.add_pod(name, *requests, **fields)
        self.schedule()
        return self.client.get(CLAIMS, name, "default")

    def schedule(self) -> None:
        """Schedule all pods that fit."""
        with Scheduler(self.server.url) as scheduler:
            assert scheduler.catch_up(seconds=60)

    def run(self, capsys: pytest.CaptureFixture[str], verb: str, *arguments: str) -> Printed:
        """Run a verb of the command against the cluster."""
        code = cli.main([verb, "--kubeconfig", str(self.kubeconfig), *arguments])
        printed = capsys.readouterr()
        return Printed(code, printed.out, printed.err)

    def why(
        self, capsys: pytest.CaptureFixture[str], *arguments: str
    ) -> tuple[int, dict[str, Any]]:
        """Return the exit code of `why`, and its answer as JSON."""
        ended = self.run(capsys, "why", "-o", "json", *arguments)
        assert ended.err == "", ended.err
        found: dict[str, Any] = json.loads(ended.out)
        return ended.code, found

    def text(self, capsys: pytest.CaptureFixture[str], verb: str, *arguments: str) -> str:
        """Return what a verb prints, with runs of blanks reduced to one."""
        out = self.run(capsys, verb, *arguments).out
        return "\n".join(" ".join(line.split()) for line in out.splitlines())


def server(release: int = releases.SIMULATED) -> ApiServer:
    """An API server that checks selectors."""
    return ApiServer(check_expression=cel_evaluation.check_expression, release=release)


def two_cards() -> tuple[Gpu, ...]:
    """Two A100 with 80Gi and 312 TFLOPS each."""
    return gpus(2)
