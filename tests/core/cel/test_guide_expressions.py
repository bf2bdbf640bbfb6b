"""Every expression of the user guide is translated, compiled, and evaluated on devices that match
and on devices that do not. Those that the guide warns of are refused."""

import json
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tensorfusion_dra.core.cel.dialect import translate
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.devices import Attribute, Device
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu, gpus
from tests.support.selecting import as_scheduled

NODE = Node(name="node-01", gpupool="production", qos="high")


def scheduled_device(*, of: int = 8, node: Node = NODE, **attributes: str) -> Device:
    """Return the first device of a node; model, vram (GiB) and tflops are those of its card."""
    card: dict[str, Any] = {name: attributes.pop(name) for name in ("model",) if name in attributes}
    if "vram" in attributes:
        card["vram_bytes"] = int(attributes.pop("vram")) * GIB
    if "tflops" in attributes:
        card["milli_tflops"] = int(attributes.pop("tflops")) * 1000
    listed = as_scheduled(published_devices(gpu(**card), *gpus(of)[1:], node=node)[0])
    more = {name: Attribute("string", text) for name, text in attributes.items()}
    return replace(listed, attributes={**listed.attributes, **more})


@dataclass(frozen=True)
class Example:
    """An expression of the guide.

    Attributes:
        where: Its section in the guide.
        matches, others: Arguments of `device` for devices that match, and for some that do not.
    """

    where: str
    text: str
    matches: tuple[dict[str, Any], ...]
    others: tuple[dict[str, Any], ...]


EXAMPLES = [
    Example(
        "4.2.4",
        """
        device.attributes["model"] == "H100" &&
        device.capacity["vram"].AsApproximateFloat64() >= 100 &&
        device.attributes["qos"] == "critical"
        """,
        ({"model": "H100", "node": replace(NODE, qos="critical")},),
        ({"model": "H100"}, {"node": replace(NODE, qos="critical")}),
    ),
    Example(
        "5.5, 1",
        """
        device.attributes["model"] == "A100" &&
        device.attributes["pool_name"] == "production" &&
        device.attributes["phase"] == "Running"
        """,
        ({},),
        ({"model": "H100"}, {"node": replace(NODE, gpupool="test")}, {"phase": "Pending"}),
    ),
    Example(
        "5.5, 2",
        """
        device.capacity["tflops"].AsApproximateFloat64() >= 200 &&
        device.capacity["vram"].AsApproximateFloat64() >= 32000000000
        """,
        ({}, {"tflops": "200", "vram": "30"}),
        ({"tflops": "199"}, {"vram": "29"}),
    ),
    Example(
        "5.5, 3",
        """
        (device.attributes["model"] == "H100" || device.attributes["model"] == "A100") &&
        device.capacity["vram"].AsApproximateFloat64() >= 40000000000 &&
        device.attributes["qos"] == "high"
        """,
        ({}, {"model": "H100"}),
        ({"model": "T4"}, {"vram": "37"}, {"node": replace(NODE, qos="low")}),
    ),
    Example(
        "5.5, 4",
        """
        device.attributes["node_total_gpus"] >= 8 &&
        device.attributes["node_total_tflops"].AsApproximateFloat64() > 2000 &&
        device.attributes["phase"] == "Running"
        """,
        ({}, {"of": 9}),
        ({"of": 7}, {"node_total_tflops": "2000"}, {"phase": "Pending"}),
    ),
    Example(
        "5.5, 5",
        """
        device.attributes["model"] != "V100" &&
        device.attributes["qos"] != "low" &&
        device.attributes["phase"] == "Running"
        """,
        ({}, {"model": "T4"}),
        ({"model": "V100"}, {"node": replace(NODE, qos="low")}, {"phase": "Pending"}),
    ),
    Example(
        "5.6",
        """
        device.attributes["model"] == "A100" &&
        device.attributes["pool_name"] == "prod-pool" &&
        device.capacity["tflops"].AsApproximateFloat64() >= 200 &&
        device.capacity["vram"].AsApproximateFloat64() >= 34359738368 &&
        device.attributes["qos"] == "high" &&
        device.attributes["phase"] == "Running" &&
        device.attributes["used_by"] == ""
        """,
        ({"pool_name": "prod-pool"}, {"pool_name": "prod-pool", "vram": "32"}),
        ({}, {"pool_name": "prod-pool", "vram": "31"}, {"pool_name": "prod-pool", "used_by": "x"}),
    ),
    Example(
        "5.7, status", 'device.attributes["phase"] == "Running"', ({},), ({"phase": "Pending"},)
    ),
    Example(
        "5.7, conversion",
        'device.capacity["tflops"].AsApproximateFloat64() >= 100',
        ({},),
        ({"tflops": "99"},),
    ),
    Example(
        "5.7, complex",
        """
        (device.attributes["model"] == "A100" && device.capacity["tflops"].AsApproximateFloat64() >= 200) ||
        (device.attributes["model"] == "H100" && device.capacity["tflops"].AsApproximateFloat64() >= 400) ||
        (device.attributes["model"] == "V100" && device.capacity["tflops"].AsApproximateFloat64() >= 100 && device.attributes["qos"] == "high")
        """,  # noqa: E501 - lines as the guide has them
        ({}, {"model": "H100", "tflops": "989"}, {"model": "V100", "tflops": "112"}),
        (
            {"model": "H100"},
            {"tflops": "199"},
            {"model": "V100", "node": replace(NODE, qos="low")},
        ),
    ),
    Example(
        "appendix, 2",
        """
        (device.attributes["model"] == "H100" || device.attributes["model"] == "A100") &&
        device.capacity["vram"].AsApproximateFloat64() >= 40000000000 &&
        device.attributes["qos"] != "low" &&
        device.attributes["node_total_gpus"] >= 8 &&
        device.attributes["phase"] == "Running"
        """,
        ({}, {"model": "H100"}),
        ({"of": 7}, {"model": "T4"}, {"vram": "37"}, {"phase": "Pending"}),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.where)
def test_example_selects_the_devices_that_the_guide_describes(example: Example) -> None:
    text = textwrap.dedent(example.text)

    translated = translate(text)

    assert cel_evaluation.check_expression(text) is not None, (
        "the API server accepts the guide's own form"
    )
    assert cel_evaluation.check_expression(translated) is None
    selector = cel_evaluation.selector(translated)
    assert all(selector.matches(scheduled_device(**changes)) for changes in example.matches)
    assert not any(selector.matches(scheduled_device(**changes)) for changes in example.others)


TEXTS = (
    *("model", "pool_name", "pod_namespace", "uuid", "phase", "used_by", "node_name", "qos"),
    *("node_total_tflops", "node_total_vram", "node_virtual_tflops", "node_virtual_vram"),
)
NUMBERS = ("node_total_gpus", "node_managed_gpus")


@pytest.mark.parametrize(
    ("name", "different"),
    [*((name, {name: "other"}) for name in TEXTS), *((name, {"of": 7}) for name in NUMBERS)],
)
def test_every_attribute_of_the_guide_can_be_compared(name: str, different: dict[str, Any]) -> None:
    value = json.dumps(scheduled_device().attributes[name].value)
    selector = cel_evaluation.selector(translate(f'device.attributes["{name}"] == {value}'))

    assert selector.matches(scheduled_device())
    assert not selector.matches(scheduled_device(**different))


@pytest.mark.parametrize("name", ["tflops", "vram", "virtual_tflops", "virtual_vram"])
def test_every_capacity_of_the_guide_can_be_compared(name: str) -> None:
    half_more = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    selector = cel_evaluation.selector(
        translate(f'device.capacity["{name}"].AsApproximateFloat64() > 0')
    )

    assert selector.matches(scheduled_device(node=replace(NODE, oversubscription=half_more)))
    assert selector.matches(scheduled_device()) == (not name.startswith("virtual"))
