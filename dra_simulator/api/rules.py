"""Rules for single fields, as data: required fields, limits and formats of each struct.

Kubernetes writes such rules as tags beside the fields of its types (+k8s:required, +k8s:maxItems,
+k8s:format). Here they are, in short, checked from left to right up to the first that fails:

- ``required``: the field is not empty. ``optional``: the rest is checked only if it is not.
- ``items=32``, ``bytes=64``: most items of a list or map; most bytes of a text.
- ``enum=A|B``: one of these values.
- ``unique``: no item of a list occurs twice; ``unique=a,b``: none has the same values of these
  fields; ``unique=.a``: the error names the field.
- ``label`` or another function of core.kubernetes.name_rules or formats: the format of the value.
  ``each:label`` is the format of a list's items or of a map's keys.

Rules about several fields are in object_rules.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from dra_simulator.api import formats
from dra_simulator.api.formats import duplicate, not_supported, too_many
from dra_simulator.api.schema import Json, Schema
from dra_simulator.api.structs import STRUCTS
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    required,
    too_long,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

SCHEMA: Final = Schema(STRUCTS)

_TAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "ResourceSliceSpec": {
        "driver": "driver",
        "nodeName": "optional subdomain",
        "devices": "unique=name",
        "sharedCounters": "items=8 unique=name",
    },
    "ResourcePool": {"name": "pool"},
    "CounterSet": {"name": "required label", "counters": "required items=32 each:label"},
    "Device": {
        "nodeName": "optional subdomain",
        "consumesCounters": "items=2 unique=counterSet",
        "bindingConditions": "items=4 each:label_key unique",
        "bindingFailureConditions": "items=4 each:label_key unique",
    },
    "DeviceCounterConsumption": {
        "counterSet": "required label",
        "counters": "required items=32 each:label",
    },
    "NodeSelector": {"nodeSelectorTerms": "required"},
    "NodeSelectorRequirement": {
        "operator": "enum=In|NotIn|Exists|DoesNotExist|Gt|Lt",
        "key": "label_key",
    },
    "DeviceClaim": {
        "requests": "items=32 unique=name",
        "constraints": "items=32",
        "config": "items=32",
    },
    "DeviceRequest": {"name": "label", "firstAvailable": "items=8 unique=name"},
    "ExactDeviceRequest": {"deviceClassName": "required subdomain", "selectors": "items=32"},
    "DeviceSubRequest": {
        "name": "label",
        "deviceClassName": "required subdomain",
        "selectors": "items=32",
    },
    "DeviceSelector": {"cel": "required"},
    "CELDeviceSelector": {"expression": "bytes=10240"},
    "DeviceToleration": {
        "key": "optional label_key",
        "operator": "required enum=Equal|Exists",
        "effect": "optional enum=NoExecute|NoSchedule|None",
    },
    "DeviceConstraint": {
        "requests": "items=32 unique",
        "matchAttribute": "optional fully_qualified",
        "distinctAttribute": "optional fully_qualified",
    },
    "DeviceClaimConfiguration": {"requests": "items=32 unique", "opaque": "required"},
    "DeviceClassSpec": {
        "selectors": "items=32",
        "config": "items=32",
        "extendedResourceName": "extended_resource",
    },
    "DeviceClassConfiguration": {"opaque": "required"},
    "OpaqueDeviceConfiguration": {"driver": "driver", "parameters": "required"},
    "ResourceClaimStatus": {
        "reservedFor": "items=256 unique=uid",
        "devices": "unique=driver,pool,device,shareID",
    },
    "ResourceClaimConsumerReference": dict.fromkeys(("resource", "name", "uid"), "required"),
    "DeviceAllocationResult": {"results": "items=32", "config": "items=64"},
    "DeviceAllocationConfiguration": {
        "source": "required enum=FromClaim|FromClass",
        "requests": "items=32 unique",
        "opaque": "required",
    },
    "DeviceRequestAllocationResult": {
        "driver": "driver",
        "pool": "pool",
        "device": "label",
        "shareID": "optional uid",
    },
    "AllocatedDeviceStatus": {
        "driver": "driver",
        "pool": "pool",
        "device": "label",
        "shareID": "optional uid",
        "conditions": "items=8 unique=.type",
    },
    "Condition": {
        "type": "label_key",
        "status": "enum=False|True|Unknown",
        "lastTransitionTime": "required",
        "reason": "required bytes=1024",
        "message": "bytes=32768",
    },
    "NetworkDeviceData": {
        "interfaceName": "bytes=256",
        "hardwareAddress": "bytes=128",
        "ips": "items=16 unique",
    },
    "PodSpec": {"resourceClaims": "unique=.name", "containers": "required"},
    "PodResourceClaim": {
        "name": "required label",
        "resourceClaimName": "optional subdomain",
        "resourceClaimTemplateName": "optional subdomain",
    },
    "Container": {"name": "label", "image": "required"},
}


def errors(struct: str, document: Json, path: str) -> Iterator[FieldError]:
    """Yield the errors in the fields of one object, but not in the objects within it."""
    for name, tags in _TAGS.get(struct, {}).items():
        value = document.get(name)
        for tag in tags.split():
            if tag == "optional" and value in (None, ""):
                break
            found = list(_broken(tag, value, f"{path}.{name}"))
            yield from found
            if found:
                break


def _broken(  # noqa: PLR0912 - one case for each tag
    tag: str, value: object, path: str
) -> Iterator[FieldError]:
    kind, _, limit = tag.partition("=")
    match kind:
        case "required":
            if value in (None, "", []):
                yield required(path)
        case "items":
            if isinstance(value, list | dict) and len(value) > int(limit):
                yield too_many(path, len(value), int(limit))
        case "bytes":
            if len(str(value or "").encode()) > int(limit):
                yield too_long(path, int(limit))
        case "enum":
            if value not in limit.split("|"):
                yield not_supported(path, value or "", limit.split("|"))
        case "unique":
            yield from _repeated(limit, as_list(value), path)
        case "optional":
            pass
        case _:
            name = kind.removeprefix("each:")
            check = getattr(formats, name, None) or getattr(name_rules, name)
            if kind == tag.removeprefix("each:"):
                yield from check(path, value)
            else:
                places = as_list(value) or list(as_map(value))
                for index, item in enumerate(places):
                    where = f"{path}[{index}]" if isinstance(value, list) else path
                    yield from check(where, item)


def _repeated(fields: str, items: list[object], path: str) -> Iterator[FieldError]:
    names = fields.removeprefix(".").split(",") if fields else []
    keys = [[as_map(item).get(name) for name in names] or item for item in items]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            where = f"{path}[{index}]{fields if fields.startswith('.') else ''}"
            yield duplicate(where, key[0] if isinstance(key, list) and len(key) == 1 else key)
