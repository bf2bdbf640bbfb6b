"""What a prepare, or a reading of the cards, does once, however many shares or cards there are."""

from pathlib import Path

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.driver.publish import CatalogBuilder
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import GPU_0, GPU_1, Setup, put_claim, share_result
from tests.support.profiled import calls


def test_parameters_records_and_limits_of_a_new_claim_are_read_or_computed_once(
    tmp_path: Path,
) -> None:
    setup = Setup(tmp_path)
    ref = put_claim(setup, "a", *map(share_result, (GPU_0, GPU_1)))
    share = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "qos": "low"}
    opaque = {"driver": names.DRIVER, "parameters": share}
    devices = setup.claims.stored[str(ref)]["status"]["allocation"]["devices"]
    devices["config"] = [{"source": "FromClass", "requests": [], "opaque": opaque}]

    found = calls(lambda: setup.prepared(ref))

    once = {
        "core.claims.share_policy.parse": 1,
        "core.claims.admit.record": 1,
        "core.claims.admit.check": 1,
        "core.claims.lending.divided": 1,
        "core.claims.prepared.limits_document": 1,
        "core.claims.cdi.spec": 1,
        "state.claim_store.ClaimStore.damaged": 1,
        # Of each share:
        "core.claims.admit._share": 2,
        "core.claims.lending.percent": 2,
        "core.claims.cdi.share_device": 2,
    }
    assert {name: found[name] for name in once} == once


def test_devices_of_the_driver_are_built_once_and_not_checked_against_the_rules_of_the_api() -> (
    None
):
    cards = CatalogBuilder(FixedDiscovery(Inventory(gpus=gpus(3))), NODE)
    cards.refresh()

    found = calls(cards.refresh)

    assert found["core.devices.device.build_device"] == 3
    assert not [name for name in found if ".as_api" in name or "device_rules" in name]
