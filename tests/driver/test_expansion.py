"""Memory that a pool adds to its cards from the host, including memory of unknown size."""

from dataclasses import replace

from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.oversubscription import NO_MORE
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tests.support.ports import FixedDiscovery

NODE = Node(name="node-01", gpupool="default", qos="medium")
TO_DISK = replace(NODE, oversubscription=replace(NO_MORE, host_disk_percent=50))
COMPUTE_ONLY = replace(NODE, oversubscription=replace(NO_MORE, tflops_percent=200))


class Sizes:
    """Memory and disk sizes set by a test; None for a size that cannot be read."""

    def __init__(self, *, memory_gib: int | None = None, disk_gib: int | None = None) -> None:
        self.memory_gib = memory_gib
        self.disk_gib = disk_gib
        self.reads: list[str] = []

    def memory_bytes(self) -> int:
        return self._size("memory", self.memory_gib)

    def disk_bytes(self) -> int:
        return self._size("disk", self.disk_gib)

    def _size(self, what: str, gib: int | None) -> int:
        self.reads.append(what)
        if gib is None:
            raise RetryableError(f"{what}: No such file or directory")
        return gib * GIB


def catalog_reader(sizes: Sizes, node: Node | None) -> DeviceCatalog:
    cards = simulated_discovery.from_text("1xA100-SXM4-80GB", node_name="node-01").read()
    return DeviceCatalog(FixedDiscovery(cards), node, host=sizes)


def virtual_vram(catalog: DeviceCatalog) -> list[str]:
    current = catalog.current()
    assert current is not None
    return [str(device.capacity["virtual_vram"].as_api()["value"]) for device in current.devices]


def unexpanded(catalog: DeviceCatalog) -> tuple[str, ...]:
    current = catalog.current()
    assert current is not None
    return current.host_size_errors


def test_sizes_are_not_read_for_a_pool_without_memory_expansion() -> None:
    for node in (NODE, COMPUTE_ONLY):
        sizes = Sizes()
        catalog = catalog_reader(sizes, node)

        catalog.refresh()

        current = catalog.current()
        assert sizes.reads == []
        assert current is not None
        assert (len(current.devices), current.host_size_errors) == (1, ())


def test_unknown_disk_size_disables_its_expansion_but_no_card() -> None:
    sizes = Sizes()
    catalog = catalog_reader(sizes, TO_DISK)

    with capture_logs() as logs:
        catalog.refresh()
        catalog.refresh()

    assert virtual_vram(catalog) == ["80Gi"]
    assert unexpanded(catalog) == ("disk: No such file or directory",)
    assert [line["event"] for line in logs].count("expansion_size_unknown") == 1


def test_disk_that_appears_is_added_at_the_next_reading() -> None:
    sizes = Sizes()
    catalog = catalog_reader(sizes, TO_DISK)
    catalog.refresh()

    sizes.disk_gib = 100
    changed = catalog.refresh()

    assert changed
    assert virtual_vram(catalog) == ["130Gi"]
    assert unexpanded(catalog) == ()


def test_unreadable_disk_keeps_its_last_size() -> None:
    sizes = Sizes(disk_gib=100)
    catalog = catalog_reader(sizes, TO_DISK)
    catalog.refresh()

    sizes.disk_gib = None
    catalog.refresh()

    assert virtual_vram(catalog) == ["130Gi"]
    assert unexpanded(catalog) == ("disk: No such file or directory",)
