"""Attributes that other packages add to devices."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import AttributeValue, Device, Node, Version
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.extend import AttributeProvider
from tests.support.attribute_providers import beside_own
from tests.support.builders.devices import NODE
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import simulated_inventory


def devices_with(providers: Mapping[str, AttributeProvider]) -> tuple[Device, ...]:
    reader = DeviceCatalog(
        FixedDiscovery(simulated_inventory()), NODE, providers=beside_own(providers)
    )
    reader.refresh()
    catalog = reader.current()
    assert catalog is not None
    return catalog.devices


def test_provider_gets_one_card_and_the_node() -> None:
    def rack(gpu: Gpu, node: Node) -> Mapping[str, AttributeValue]:
        return {"example.com/rack": f"{node.name}-{gpu.index}", "example.com/fan": Version("1.2.3")}

    first, second = devices_with({"rack": rack})

    assert first.attributes["example.com/rack"] == "node-01-0"
    assert second.as_api()["attributes"]["example.com/rack"] == {"string": "node-01-1"}  # type: ignore[index]
    assert first.as_api()["attributes"]["example.com/fan"] == {"version": "1.2.3"}  # type: ignore[index]


def test_failing_provider_loses_its_attributes_on_that_card_only() -> None:
    def rack(gpu: Gpu, _node: Node) -> Mapping[str, AttributeValue]:
        if gpu.index == 0:
            raise ValueError("no rack")
        return {"example.com/rack": "r1"}

    with capture_logs() as logs:
        first, second = devices_with({"rack": rack})

    assert "example.com/rack" not in first.attributes
    assert second.attributes["example.com/rack"] == "r1"
    assert [line["provider"] for line in logs if line["log_level"] == "warning"] == ["rack"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "H100"),
        ("example.com/too-long", "x" * 65),
        ("example.com/not an identifier", "x"),
        ("example.com/kind", 1.5),
        ("example.com/version", Version("1.2")),
        ("x" * 33, "x"),
    ],
)
def test_unpublishable_attribute_is_the_only_one_left_out(key: str, value: Any) -> None:
    def provider(_gpu: Gpu, _node: Node) -> Mapping[str, AttributeValue]:
        return {key: value, "example.com/fine": True}

    with capture_logs() as logs:
        first, _ = devices_with({"odd": provider})

    assert first.attributes["model"] == "A100"
    assert first.attributes["example.com/fine"] is True
    assert key == "model" or key not in first.attributes
    assert {line["attribute"] for line in logs if line["event"] == "attribute_left_out"} == {key}


def test_device_with_too_many_attributes_is_published_with_the_maximum() -> None:
    def many(_gpu: Gpu, _node: Node) -> Mapping[str, AttributeValue]:
        return {f"example.com/a{number}": number for number in range(40)}

    first, second = devices_with({"many": many})

    for device in (first, second):
        assert len(device.attributes) + len(device.capacity) == 32
