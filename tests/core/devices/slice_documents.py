"""Slices and devices as the driver writes them, for tests that make them invalid."""

from typing import Any

Json = dict[str, Any]


def plain_device(name: str = "gpu-0", **fields: object) -> Json:
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"model": {"string": "A100"}},
        "capacity": {"vram": {"value": "40Gi"}},
        **fields,
    }


def slice_spec(**fields: object) -> Json:
    return {
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": {"name": "pool-a/node-a", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-a",
        "devices": [plain_device()],
        **fields,
    }


def spec_with_pool(**fields: object) -> Json:
    return slice_spec(pool={"name": "p", "generation": 0, "resourceSliceCount": 1, **fields})


def device_with_policy(value: str = "100", **policy: object) -> Json:
    return plain_device(capacity={"vram": {"value": value, "requestPolicy": policy}})


def device_with_range(default: str = "10", **valid_range: str) -> Json:
    return device_with_policy(default=default, validRange=valid_range)


def int_attributes(count: int) -> Json:
    return {f"a{index}": {"int": index} for index in range(count)}


def counters(count: int = 1) -> Json:
    return {f"c{index}": {"value": "1"} for index in range(count)}


def taint(**fields: object) -> Json:
    return {"key": "example.com/unhealthy", "effect": "NoSchedule", **fields}


def term(**fields: object) -> Json:
    return {"nodeSelectorTerms": [fields]}
