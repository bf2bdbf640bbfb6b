"""End-to-end tests on the cluster that KUBECONFIG names: `make e2e`, or pytest tests/e2e.

Every wait prints its subject and duration. When a test fails, the state of the cluster (pods,
claims, slices, events, logs) is written to a folder with the name of the test.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tests.e2e.cluster import Cluster, Json, Slices, results_of
from tests.e2e.drivers import LABEL_NAME, Driver, HostProcess, InstalledDaemonSet
from tests.e2e.tenants import Tenants
from tests.support.builders.documents import class_document

NodeCommand = Callable[[str], None]
Typed = Callable[..., tuple[int, str]]
_TEMPLATE = Path(__file__).parents[2] / "daemonset" / "claim-template.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("e2e")
    group.addoption("--driver", choices=("daemonset", "host"), default="daemonset")
    group.addoption("--gpus", default="2xA100-SXM4-80GB", help="simulated, for --driver host")
    group.addoption(
        "--node", default="", help="the node under test; by default the first that publishes slices"
    )
    group.addoption(
        "--node-command",
        default=os.environ.get("E2E_NODE_COMMAND", ""),
        help="command to run with restart-kubelet, stop-kubelet, start-kubelet or reboot appended",
    )
    group.addoption("--image", default=os.environ.get("E2E_IMAGE", "busybox:1.37"))
    group.addoption("--pull-policy", default=os.environ.get("E2E_PULL_POLICY", "IfNotPresent"))
    group.addoption("--evidence", type=Path, default=Path("dist/e2e"))


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "node_command: restarts the kubelet or the node",
        "webhook: needs the admission webhook",
        "documents: installs and uninstalls the driver, on a cluster without it",
        "upgrade: installs an earlier version, on a cluster without the driver",
        "extended_resource: needs the gate DRAExtendedResource",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.process)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    fixtures: dict[str, Any] = getattr(item, "funcargs", {})
    if report.failed and "cluster" in fixtures:
        folder: Path = item.config.getoption("--evidence") / f"{item.name}-{call.when}"
        tenants: Tenants | None = fixtures.get("tenants")
        gather(
            folder,
            fixtures["cluster"],
            namespace=tenants.namespace if tenants else "",
            driver=fixtures.get("driver"),
        )
        files = ", ".join(sorted(path.name for path in folder.iterdir()))
        report.sections.append(("evidence", f"{folder}: {files}"))
    return report  # type: ignore[return-value]


def gather(folder: Path, cluster: Cluster, *, namespace: str, driver: Driver | None) -> None:
    """Write the cluster's state to a folder; a file that cannot be filled has the error instead.

    Args:
        folder: Created if it does not exist.
        namespace: Namespace of the test; "" for none.
        driver: Node plugin under test; None if none was started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    selector = f"spec.driver={names.DRIVER}"
    sources: dict[str, Callable[[], object]] = {
        "nodes.json": partial(cluster.objects, "Node"),
        "slices.json": partial(cluster.objects, "ResourceSlice", fieldSelector=selector),
        "pods.json": partial(cluster.objects, "Pod", namespace=namespace),
        "claims.json": partial(cluster.objects, "ResourceClaim", namespace=namespace),
        "templates.json": partial(cluster.objects, "ResourceClaimTemplate", namespace=namespace),
        "events.txt": partial(_events, cluster, namespace),
    }
    if driver is not None:
        sources["node-plugin.log"] = driver.log
    with suppress(RetryableError):
        for pod in cluster.objects("Pod", namespace=namespace) if namespace else ():
            name = pod["metadata"]["name"]
            for each in pod["spec"]["containers"]:
                log = partial(cluster.log, name, namespace=namespace, container=each["name"])
                sources[f"{name}-{each['name']}.log"] = log
    for name, read in sources.items():
        try:
            found = read()
        except (RetryableError, AssertionError) as error:
            found = f"cannot be read: {error}"
        text = found if isinstance(found, str) else json.dumps(found, indent=2, sort_keys=True)
        (folder / name).write_text(text, encoding="utf-8")


def _events(cluster: Cluster, namespace: str) -> str:
    return "\n".join(
        f"{event['involvedObject'].get('kind')}/{event['involvedObject'].get('name')} "
        f"{event.get('reason')} ({event.get('count') or 1}): {event.get('message')}"
        for event in cluster.objects("Event", namespace=namespace)
    )


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    named = os.environ.get("KUBECONFIG", "")
    assert named, "KUBECONFIG: expected the file of a cluster to test on"
    return named


@pytest.fixture(scope="session")
def cluster(kubeconfig: str) -> Cluster:
    return Cluster(Api(Path(kubeconfig)))


@pytest.fixture
def bare_cluster(
    cluster: Cluster, request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> Cluster:
    """A cluster without the driver; on another one the test is skipped, unless it was asked for."""
    if cluster.objects("DaemonSet", labelSelector=LABEL_NAME):
        why = "the cluster has the driver already, which the test installs"
        asked = pytestconfig.getoption("markexpr")
        assert not [mark for mark in request.node.iter_markers() if mark.name in asked], why
        pytest.skip(why)
    return cluster


@pytest.fixture(scope="session")
def node_name(cluster: Cluster, pytestconfig: pytest.Config) -> str:
    """Name of the node under test."""
    named: str = pytestconfig.getoption("--node")
    if named:
        return named
    selector = f"spec.driver={names.DRIVER}"
    published = cluster.objects("ResourceSlice", fieldSelector=selector)
    if published:
        return str(published[0]["spec"]["nodeName"])
    nodes = cluster.objects("Node")
    assert len(nodes) == 1, (
        f"nodes: found {len(nodes)} and no slices, expected one node; choose one with --node"
    )
    return str(nodes[0]["metadata"]["name"])


@pytest.fixture(scope="session")
def driver(
    cluster: Cluster, node_name: str, kubeconfig: str, pytestconfig: pytest.Config
) -> Iterator[Driver]:
    """Node plugin under test; the fixture `slices` starts it."""
    if pytestconfig.getoption("--driver") == "daemonset":
        yield InstalledDaemonSet(cluster, node_name=node_name)
        return
    log = pytestconfig.getoption("--evidence") / "node-plugin.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    process = HostProcess(
        node_name=node_name,
        kubeconfig=kubeconfig,
        gpus=pytestconfig.getoption("--gpus"),
        log_file=log,
    )
    yield process
    process.uninstall()


@pytest.fixture(scope="session")
def device_class(cluster: Cluster) -> None:
    """Create the DeviceClass that claims name, as in the manifests, unless it exists."""
    if cluster.find("DeviceClass", names.DEVICE_CLASS) is None:
        cluster.create(class_document())


@pytest.fixture
def slices(cluster: Cluster, node_name: str, driver: Driver) -> Slices:
    """Start the driver, wait for the node's slices and return a function that lists them."""
    selector = f"spec.driver={names.DRIVER},spec.nodeName={node_name}"

    def stored() -> list[Json]:
        found = cluster.objects("ResourceSlice", fieldSelector=selector)
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    driver.start()
    cluster.until("the node's slices", stored, seconds=60)
    return stored


@pytest.fixture
def tenants(
    cluster: Cluster,
    node_name: str,
    slices: Slices,
    device_class: None,
    pytestconfig: pytest.Config,
) -> Iterator[Tenants]:
    """Namespace for the pods of the test, deleted with them afterwards."""
    namespace = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    cluster.until(
        "the namespace's service account",
        lambda: cluster.find("ServiceAccount", "default", namespace=namespace),
        seconds=30,
    )
    yield Tenants(
        cluster,
        namespace=namespace,
        node_name=node_name,
        image=pytestconfig.getoption("--image"),
        pull_policy=pytestconfig.getoption("--pull-policy"),
    )
    cluster.delete("Namespace", namespace)
    cluster.until(
        "the namespace to be gone",
        lambda: cluster.find("Namespace", namespace) is None,
        seconds=120,
    )


@pytest.fixture
def team(tenants: Tenants, cluster: Cluster) -> Tenants:
    """Namespace with the claim template of the webhook's pods."""
    template = yaml.safe_load(_TEMPLATE.read_text())
    template["metadata"]["namespace"] = tenants.namespace
    cluster.create(template)
    return tenants


@pytest.fixture(scope="session")
def typed(kubeconfig: str) -> Typed:
    """The command line: returns a verb's exit code, and all that it printed."""

    def run(verb: str, *arguments: str) -> tuple[int, str]:
        words = [verb, *arguments, "--kubeconfig", kubeconfig]
        ended = subprocess.run(
            [sys.executable, "-m", "tensorfusion_dra", *words],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        print(words, ended.returncode, ended.stdout, ended.stderr)
        return ended.returncode, ended.stdout + ended.stderr

    return run


@pytest.fixture(scope="session")
def node_command(pytestconfig: pytest.Config) -> NodeCommand:
    """Return a function that runs the node command with one argument, such as reboot."""
    named: str = pytestconfig.getoption("--node-command")
    assert named, (
        "--node-command: expected a command, such as the one that hack/cluster-up prints; "
        "without one deselect these tests with -m 'not node_command'"
    )

    def run(what: str) -> None:
        started = time.monotonic()
        ended = subprocess.run(
            [*shlex.split(named), what],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        print(f"{what} took {time.monotonic() - started:.1f} s")
        assert ended.returncode == 0, f"{what}: {ended.stdout}{ended.stderr}"

    return run


@pytest.fixture
def idle_node(cluster: Cluster, slices: Slices) -> None:
    """Wait until no claim has a GPU of the node, so that the test can count free capacity."""
    pools = {item["spec"]["pool"]["name"] for item in slices()}

    def allocated_claims() -> list[str]:
        return [
            f"claim {claim['metadata']['namespace']}/{claim['metadata']['name']}"
            for claim in cluster.objects("ResourceClaim")
            if any(result["pool"] in pools for result in results_of(claim))
        ]

    cluster.until(
        "no claim to have a GPU of the node",
        lambda: not allocated_claims(),
        seconds=120,
        diagnose=lambda: "\n".join(allocated_claims()),
    )
