"""Claims written for other DRA drivers of NVIDIA's GPUs, converted to this driver's names.

A claim names its driver by a DeviceClass, and that driver's attributes and capacities by the
driver's name:

    deviceClassName: gpu.nvidia.com                        deviceClassName: tensor-fusion.ai
    selectors:                                             selectors:
    - cel: {expression: >-                                 - cel: {expression: >-
        device.attributes["gpu.nvidia.com"]                    device.attributes["tensor-fus..."]
        .productName == "NVIDIA A100-SXM4-80GB"}               .product_name == "NVIDIA A100-..."}
    capacity: {requests: {memory: 10Gi}}                   capacity: {requests: {vram: 10Gi}}

Both drivers that are known here have NVIDIA's names of attributes and of the capacity `memory`.
What has no counterpart stays and is named: percentages of cores, parameters of the other driver,
and attributes that this driver does not have.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

CLASSES: Final = ("gpu.nvidia.com", "hami-core-gpu.project-hami.io")
"""DeviceClasses of NVIDIA's driver and of HAMi's, each with the name of its driver."""
_WITHOUT_COUNTERPART: Final = {
    "mig.nvidia.com": "MIG devices",
    "vfio.gpu.nvidia.com": "virtual machines",
}
"""What other DeviceClasses of NVIDIA's driver are for."""
ATTRIBUTES: Final = {
    "architecture": names.ATTR_ARCHITECTURE,
    "cudaComputeCapability": names.ATTR_COMPUTE_CAPABILITY,
    "driverVersion": names.ATTR_DRIVER_VERSION,
    "productName": names.ATTR_PRODUCT_NAME,
    "uuid": names.ATTR_UUID,
}
_MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A name of another driver in a claim: a DeviceClass, an attribute or a capacity.

    Attributes:
        holder: The mapping that contains it.
        key: Its entry there.
        new: The replacement of the value, or of the key; "" if there is none.
        is_key: True if the key is replaced, False if its value is.
        text: What it becomes, or why nothing can replace it.
    """

    holder: Any
    key: str
    text: str
    new: str = ""
    is_key: bool = False


def words(devices: object, classes: Collection[str]) -> Iterator[Word]:
    """Yield the names of these classes' drivers in a claim's `spec.devices`."""
    found = as_map(devices)
    for request in map(as_map, as_list(found.get("requests"))):
        choices = [request, request.get("exactly"), *as_list(request.get("firstAvailable"))]
        for choice in map(as_map, choices):
            driver = choice.get("deviceClassName")
            if isinstance(driver, str) and driver in classes:
                yield from _choice(choice, driver)
            elif CLASSES[0] in classes and (what := _WITHOUT_COUNTERPART.get(str(driver))):
                text = (
                    f"{driver}: found {what}, which this driver does not have, expected "
                    f"{names.DEVICE_CLASS} and amounts of tflops and vram"
                )
                yield Word(holder=choice, key="deviceClassName", text=text)
    for constraint in map(as_map, as_list(found.get("constraints"))):
        for key in ("matchAttribute", "distinctAttribute"):
            value = constraint.get(key)
            driver, _, name = value.partition("/") if isinstance(value, str) else ("", "", "")
            if driver in classes:
                yield _attribute(constraint, key, name)
    for config in map(as_map, as_list(found.get("config"))):
        opaque = as_map(config.get("opaque"))
        if (driver := opaque.get("driver")) in classes:
            yield Word(
                holder=opaque,
                key="driver",
                text=f"parameters of {driver} have no effect here: remove them, or write a "
                "GpuShare",
            )


def _choice(choice: Mapping[str, object], driver: str) -> Iterator[Word]:
    """Yield the names in a device request: `exactly`, or an entry of `firstAvailable`."""
    text = f"{driver} becomes {names.DEVICE_CLASS}"
    yield Word(holder=choice, key="deviceClassName", text=text, new=names.DEVICE_CLASS)
    for selector in map(as_map, as_list(choice.get("selectors"))):
        cel = as_map(selector.get("cel"))
        if isinstance(expression := cel.get("expression"), str) and driver in expression:
            yield _expression(cel, expression, driver)
    requests = as_map(as_map(choice.get("capacity")).get("requests"))
    for key in requests:
        name = str(key).removeprefix(f"{driver}/")
        if name == _MEMORY:
            text = f"{key} becomes vram; name tflops too, or the claim takes all compute of a card"
            yield Word(holder=requests, key=key, text=text, new=names.CAPACITY_VRAM, is_key=True)
        elif name not in names.CAPACITIES:
            text = f"{key}: expected an amount of {names.CAPACITY_TFLOPS}, not a part of a card"
            yield Word(holder=requests, key=key, text=text)


def _attribute(constraint: object, key: str, name: str) -> Word:
    if name not in ATTRIBUTES:
        return Word(holder=constraint, key=key, text=_unknown(name))
    new = f"{names.DRIVER}/{ATTRIBUTES[name]}"
    return Word(holder=constraint, key=key, text=f"{name} becomes {new}", new=new)


def _expression(cel: object, expression: str, driver: str) -> Word:
    """Return an expression with this driver's names, or the first name that it does not have."""
    quoted = rf"(?P<quote>[\"']){re.escape(driver)}(?P=quote)"
    lookup = re.compile(
        rf"device\.(?P<kind>attributes|capacity)\[\s*{quoted}\s*\]"
        r"(?:\.(?P<optional>\??)(?P<name>\w+)|\[\s*(?P<mark>[\"'])(?P<key>\w+)(?P=mark)\s*\])"
    )
    unknown = []

    def renamed(found: re.Match[str]) -> str:
        known = ATTRIBUTES if found["kind"] == "attributes" else {_MEMORY: names.CAPACITY_VRAM}
        name = found["name"] or found["key"]
        if name not in known:
            unknown.append(name)
        new = known.get(name, name)
        return f'device.{found["kind"]}["{names.DRIVER}"].{found["optional"] or ""}{new}'

    new = lookup.sub(renamed, expression)
    new = re.sub(rf"(device\.driver\s*==\s*){quoted}", rf'\1"{names.DRIVER}"', new)
    if unknown or driver in new:
        text = _unknown(unknown[0]) if unknown else f"expected attributes of {names.DRIVER}"
        return Word(holder=cel, key="expression", text=text)
    text = f"attributes of {driver} become those of {names.DRIVER}"
    return Word(holder=cel, key="expression", text=text, new=new)


def _unknown(name: str) -> str:
    return f"{name}: found no such attribute or capacity of {names.DRIVER}"
