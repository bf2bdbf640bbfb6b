"""The services as the kubelet uses them: real gRPC over real unix sockets."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.kubelet.dra import MAX_STREAMS
from tensorfusion_dra.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration_pb
from tensorfusion_dra.kubelet.pb.dra_health_v1_pb2 import HEALTHY, UNHEALTHY
from tensorfusion_dra.state.claim_store import LOCK
from tensorfusion_dra.state.file_lock import FileLock
from tests.kubelet.conftest import Instance
from tests.support.kubelet import DRA_V1, DRA_V1BETA1, PluginClient
from tests.support.logs import capture_logs
from tests.support.prepared_node import GPU_0, GPU_1, put_claim, share_result, simulated_inventory
from tests.support.stores import file_of, set_format
from tests.support.waiting import eventually


@pytest.fixture
def kubelet(instance: Instance) -> Iterator[PluginClient]:
    with PluginClient(instance.paths.dra) as client:
        yield client


def test_registration_announces_every_service_with_v1_first(instance: Instance) -> None:
    with PluginClient(instance.paths.registration) as kubelet, capture_logs() as logs:
        info = kubelet.plugin_info()
        kubelet.notify(registered=False, error="plugin validation failed")
        kubelet.notify(registered=True)

    assert info == registration_pb.PluginInfo(
        type="DRAPlugin",
        name="tensor-fusion.ai.dra-driver",
        endpoint=str(instance.paths.dra),
        supported_versions=[
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ],
    )
    assert [(line["event"], line.get("error")) for line in logs] == [
        ("registration_refused", "plugin validation failed"),
        ("registered", None),
    ]


@pytest.mark.parametrize(("service", "pb"), [(DRA_V1, dra_v1_pb2), (DRA_V1BETA1, dra_v1beta1_pb2)])
def test_each_claim_gets_devices_or_its_own_error(
    instance: Instance, kubelet: PluginClient, service: str, pb: Any
) -> None:
    good = put_claim(instance.setup, "good", share_result(request="gpu/large"))
    bad = ClaimRef(namespace="default", name="missing", uid="uid-missing")

    answer = kubelet.prepare(good, bad, service=service, answer=pb.NodePrepareResourcesResponse)

    assert set(answer.claims) == {good.uid, bad.uid}
    assert (answer.claims[good.uid].error, [*answer.claims[bad.uid].devices]) == ("", [])
    assert "default/missing" in answer.claims[bad.uid].error
    (device,) = answer.claims[good.uid].devices
    assert (device.pool_name, device.device_name) == ("default/node-01", GPU_0)
    assert [*device.request_names] == ["gpu"]
    assert all(cdi_id.startswith(f"{names.CDI_KIND}=") for cdi_id in device.cdi_device_ids)


@pytest.mark.parametrize(
    ("fields", "share_ids"),
    [
        ({}, [True]),
        ({"shareID": None, "consumedCapacity": None}, [False]),
        ({"driver": "another.example.com"}, []),
    ],
    ids=["shared", "exclusive", "without devices of this driver"],
)
def test_device_has_the_share_id_of_its_result_if_there_is_one(
    instance: Instance, kubelet: PluginClient, fields: dict[str, Any], share_ids: list[bool]
) -> None:
    result = {**share_result(), **fields}
    ref = put_claim(instance.setup, "a", result)

    ((uid, answer),) = kubelet.prepare(ref).claims.items()

    assert (uid, answer.error) == (ref.uid, "")
    assert [device.HasField("share_id") for device in answer.devices] == share_ids
    assert all(device.share_id == (result["shareID"] or "") for device in answer.devices)


def test_record_of_a_newer_release_fails_the_call_and_is_fatal(
    instance: Instance,
    kubelet: PluginClient,
) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    folder = instance.setup.folder / "plugin"
    kubelet.prepare(ref)
    set_format(file_of(folder, ref.uid), 2)
    with closing(FileLock(folder / LOCK, wait_seconds=0)) as lock:
        lock.count_change()

    with pytest.raises(grpc.RpcError) as caught:
        kubelet.prepare(ref)

    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert [type(error) for error in instance.fatal] == [FatalError]


@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
def test_health_is_reported_at_once_and_again_when_a_card_vanishes(
    instance: Instance, kubelet: PluginClient, service: str
) -> None:
    stream = kubelet.watch_health(service)
    reports = [next(stream)]
    instance.setup.use_cards(simulated_inventory().gpus[0])
    reports.append(next(stream))
    stream.close()  # type: ignore[attr-defined]

    pool = "default/node-01"
    assert [
        {(d.device.pool_name, d.device.device_name): d.health for d in report.devices}
        for report in reports
    ] == [{(pool, GPU_0): HEALTHY, (pool, GPU_1): health} for health in (HEALTHY, UNHEALTHY)]


def test_excess_stream_is_refused_while_others_and_claims_go_on(
    instance: Instance, kubelet: PluginClient
) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    streams: list[Any] = [kubelet.watch_health() for _ in range(MAX_STREAMS)]
    for stream in streams:
        next(stream)

    refused = refusal(kubelet)

    assert refused is not None
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"found {MAX_STREAMS} open" in str(refused.details())
    assert kubelet.prepare(ref).claims[ref.uid].error == ""
    for stream in streams:
        stream.close()
    assert eventually(lambda: refusal(kubelet) is None)


def refusal(kubelet: PluginClient) -> Any:
    """Open another health stream; return the error, or None if it reports."""
    try:
        next(kubelet.watch_health("v1alpha1.DRAResourceHealth"))
    except grpc.RpcError as error:
        return error
    return None
