"""State of the cluster after a failed test, written to files."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tests.e2e.cluster import Cluster, Json, shown
from tests.e2e.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Callable


def gather(folder: Path, cluster: Cluster, *, namespace: str, driver: Driver | None) -> None:
    """Write objects and logs to a folder; a file that cannot be filled has the error instead.

    Args:
        folder: Created if it does not exist.
        cluster: Cluster under test.
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
    for pod in _pods(cluster, namespace):
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            log = partial(cluster.log, name, namespace=namespace, container=container["name"])
            sources[f"{name}-{container['name']}.log"] = log
    for name, read in sources.items():
        try:
            found = read()
        except (RetryableError, AssertionError) as error:
            found = f"cannot be read: {error}"
        text = found if isinstance(found, str) else shown(found)
        (folder / name).write_text(text, encoding="utf-8")


def _pods(cluster: Cluster, namespace: str) -> list[Json]:
    try:
        return cluster.objects("Pod", namespace=namespace) if namespace else []
    except RetryableError:
        return []


def _events(cluster: Cluster, namespace: str) -> str:
    events = cluster.objects("Event", namespace=namespace)
    lines = (
        f"{event['involvedObject'].get('kind')}/{event['involvedObject'].get('name')} "
        f"{event.get('reason')} ({event.get('count') or 1}): {event.get('message')}"
        for event in events
    )
    return "\n".join(lines)
