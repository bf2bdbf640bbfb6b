"""The CustomResourceDefinitions match what the driver reads, and are valid for Kubernetes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpupool import QOS_LEVELS
from tensorfusion_dra.core.errors import InputError
from tests.support import kubernetes_schemas
from tests.support.builders.gpupools import gpupool_document

FOLDER = Path(__file__).parents[2] / "daemonset" / "chart" / "tensor-fusion-crds"
FILES = sorted(path.name for path in FOLDER.iterdir())


def definition(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return loaded


def spec_of(name: str) -> dict[str, Any]:
    (version,) = definition(name)["spec"]["versions"]
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    found: dict[str, Any] = properties["spec"]["properties"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_definition_is_valid_for_kubernetes(name: str) -> None:
    kubernetes_schemas.check(definition(name))


@pytest.mark.parametrize("name", FILES)
def test_definition_is_cluster_scoped_and_in_tensor_fusions_group(name: str) -> None:
    found = definition(name)
    spec = found["spec"]

    assert name == f"{spec['names']['plural']}.yaml"
    assert found["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["group"] == names.TENSOR_FUSION_GROUP
    assert spec["scope"] == "Cluster"
    assert [version["name"] for version in spec["versions"]] == [names.TENSOR_FUSION_VERSION]


def test_ratios_have_the_drivers_defaults_and_ranges() -> None:
    capacity = spec_of("gpupools.yaml")["capacityConfig"]["properties"]
    ratios = capacity["oversubscription"]["properties"]
    defaults = {name: ratio["default"] for name, ratio in ratios.items()}

    assert parsed({}) == parsed(defaults)
    assert len(ratios) == len(Oversubscription.__dataclass_fields__)
    for name, ratio in ratios.items():
        for limit, beyond in (("minimum", -1), ("maximum", 1)):
            assert parsed({name: ratio[limit]}) is not None
            with pytest.raises(InputError, match=name):
                parsed({name: ratio[limit] + beyond})


def parsed(ratios: dict[str, Any]) -> Oversubscription | None:
    pool = gpupool_document("prod", capacityConfig={"oversubscription": ratios})
    return gpupool.parse(pool).oversubscription


def test_qos_levels_are_those_of_the_driver() -> None:
    qos = spec_of("gpupools.yaml")["qosConfig"]["properties"]

    assert tuple(qos["defaultQoS"]["enum"]) == QOS_LEVELS
