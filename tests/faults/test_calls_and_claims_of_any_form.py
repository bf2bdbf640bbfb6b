"""Calls on the sockets and claims from the API server of any form: answered by the protocol."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api.faults import Forge
from dra_simulator.node import plugin
from dra_simulator.rest import CLAIMS
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as health_pb
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as dra_pb
from tensorfusion_dra.kubelet.pb import dra_v1beta1_pb2
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration_pb
from tests.faults import invariants
from tests.faults.mutations import ANYTHING, SCALARS, SEED, bounded, damaged, mutated
from tests.faults.node import CARDS, Node, device, nothing_left_open, published, running
from tests.support import cdi_rules
from tests.support.builders.stored_claims import allocation_result, stored_claim
from tests.support.kubelet import DRA_V1, DRA_V1BETA1, PluginClient
from tests.support.tally import INPUTS_FUZZED, Tally
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.sweep

CLAIM = dra_pb.Claim(namespace="default", name="a", uid="1f0e0000-0000-4000-8000-00000000000a")
PREPARE = dra_pb.NodePrepareResourcesRequest(claims=[CLAIM, CLAIM])
UNPREPARE = dra_pb.NodeUnprepareResourcesRequest(claims=[CLAIM])
NOTIFY = registration_pb.RegistrationStatus(plugin_registered=False, error="why not")

REGISTRATION: Final = "pluginregistration.Registration"
CALLS: Final[dict[str, tuple[Message, type[Message]]]] = {
    f"{REGISTRATION}/GetInfo": (registration_pb.InfoRequest(), registration_pb.PluginInfo),
    f"{REGISTRATION}/NotifyRegistrationStatus": (
        NOTIFY,
        registration_pb.RegistrationStatusResponse,
    ),
    f"{DRA_V1}/NodePrepareResources": (PREPARE, dra_pb.NodePrepareResourcesResponse),
    f"{DRA_V1}/NodeUnprepareResources": (UNPREPARE, dra_pb.NodeUnprepareResourcesResponse),
    f"{DRA_V1BETA1}/NodePrepareResources": (
        PREPARE,
        dra_v1beta1_pb2.NodePrepareResourcesResponse,
    ),
    f"{DRA_V1BETA1}/NodeUnprepareResources": (
        UNPREPARE,
        dra_v1beta1_pb2.NodeUnprepareResourcesResponse,
    ),
}
STREAMS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

NOT_UNDERSTOOD: Final = {grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Codes that gRPC returns for bytes that are no message; UNKNOWN would be our own exception."""


PARAMETERS = {
    "apiVersion": "tensor-fusion.ai/v1alpha1",
    "kind": "GpuShare",
    "limits": {"tflops": "60", "vram": "20Gi"},
    "isolation": "soft",
    "qos": "high",
}
ANNOTATIONS = {
    names.ANNOTATION_TFLOPS_LIMIT: "60",
    names.ANNOTATION_VRAM_LIMIT: "20Gi",
    names.ANNOTATION_QOS: "low",
    names.ANNOTATION_ISOLATION: "hard",
}
TEAM = {"team": "a"}
REF = ClaimRef(namespace="default", name="a", uid="1f0e0000-0000-4000-8000-00000000000a")


def answered(channel: grpc.Channel, method: str, content: bytes) -> bytes | grpc.StatusCode | None:
    """Return the undecoded answer to these bytes, or the error code."""
    call: Callable[..., bytes] = channel.unary_unary(f"/{method}")
    try:
        return call(content, timeout=PATIENCE_SECONDS)
    except grpc.RpcError as error:
        return plugin.rpc_code(error)


def first_message(
    channel: grpc.Channel, service: str, content: bytes
) -> list[str] | grpc.StatusCode | None:
    """Return the devices in the first message of a health stream, or the error code."""
    watch: Callable[..., Any] = channel.unary_stream(f"/{service}/NodeWatchResources")
    stream = watch(content, timeout=PATIENCE_SECONDS)
    try:
        message = health_pb.NodeWatchResourcesResponse.FromString(next(stream))
    except grpc.RpcError as error:
        return plugin.rpc_code(error)
    stream.cancel()
    return sorted(item.device.device_name for item in message.devices)


@pytest.mark.parametrize("method", CALLS)
def test_arbitrary_bytes_get_an_answer_or_a_grpc_error(
    served: Node, tally: Tally, method: str
) -> None:
    request, response = CALLS[method]
    chance = random.Random(SEED)
    contents = [*damaged(request.SerializeToString() or b"\x00", flips=60, cuts=20)]
    contents += [chance.randbytes(chance.randrange(1, 200)) for _ in range(60)]
    is_registration = method.startswith(REGISTRATION)
    socket = served.registration_socket if is_registration else served.dra_socket
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answers = [(content, answered(channel, method, content)) for content in contents]

    for content, answer in answers:
        if isinstance(answer, bytes):
            check_answer(type(request), content, response.FromString(answer))
        else:
            assert answer in NOT_UNDERSTOOD, (content, served.log())
    assert any(isinstance(answer, bytes) for _, answer in answers)
    tally[INPUTS_FUZZED] += len(answers)


def check_answer(request: type[Message], content: bytes, answer: Any) -> None:
    """Check that exactly the claims of the request are answered, and all with an error."""
    if hasattr(answer, "claims"):
        asked: Any = request.FromString(content)
        assert set(answer.claims) == {claim.uid for claim in asked.claims}
    if request is dra_pb.NodePrepareResourcesRequest:
        assert all(entry.error for entry in answer.claims.values())


def test_claims_with_arbitrary_names_are_answered_one_by_one(served: Node, tally: Tally) -> None:
    parts = st.text(max_size=70) | st.sampled_from(["default", "a", "..", "../..", "%2e%2e", "a/b"])
    names = st.builds(ClaimRef, namespace=parts, name=parts, uid=parts)

    @bounded(150)
    @given(st.lists(names, max_size=4))
    def check(refs: list[ClaimRef]) -> None:
        prepared, unprepared = served.prepare(*refs) or {}, served.unprepare(*refs)
        uids = {ref.uid for ref in refs}
        assert prepared.keys() == uids, served.log()
        assert all(isinstance(error, str) and error for error in prepared.values())
        assert unprepared == dict.fromkeys(uids, "")
        tally[INPUTS_FUZZED] += 1

    check()


def test_health_is_streamed_for_arbitrary_requests(served: Node, tally: Tally) -> None:
    chance = random.Random(SEED)
    contents = [b"", *(chance.randbytes(chance.randrange(1, 60)) for _ in range(40))]
    devices = [device(card) for card in range(CARDS)]
    with grpc.insecure_channel(f"unix:{served.dra_socket}") as channel:
        for service, content in itertools.product(STREAMS, contents):
            found = first_message(channel, service, content)
            assert found == devices or found in NOT_UNDERSTOOD, (content, served.log())
            tally[INPUTS_FUZZED] += 1


def stored(parameters: object = PARAMETERS, annotations: object = TEAM) -> dict[str, Any]:
    """Return a claim with two shares, parameters, annotations and a pod."""
    results = [
        allocation_result(device(card), request=f"gpu/{card}", tflops="50", vram="10Gi")
        for card in range(CARDS)
    ]
    claim = stored_claim(REF.name, *results, uid=REF.uid)
    claim["metadata"]["annotations"] = annotations
    opaque = {"driver": names.DRIVER, "parameters": parameters}
    config = {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}
    claim["status"]["allocation"]["devices"]["config"] = [config]
    return claim


@pytest.fixture
def served(node: Node) -> Iterator[Node]:
    """Run a plugin that leaves nothing behind of what a test does with it."""
    with running(node):
        with PluginClient(node.registration_socket) as kubelet, ThreadPoolExecutor(4) as many:
            list(many.map(lambda _: kubelet.plugin_info(), range(40)))
        check_answered(node, stored())
        with nothing_left_open(node):
            yield node
        assert invariants.leftovers(node) == []
        assert eventually(lambda: len(published(node.slices())) == CARDS)


def check_answered(node: Node, claim: object) -> bool:
    """Prepare and unprepare the claim; check both answers; return True if it was prepared."""
    body = json.dumps(claim).encode()
    with node.server.faults.during("get", CLAIMS.plural, Forge(body), name=REF.name):
        answer = node.prepare(REF) or {}
    assert answer.keys() == {REF.uid}, node.log()
    given = answer[REF.uid]
    if isinstance(given, str):
        assert given.startswith(f"claim {REF}: ") or "device node" in given, given
    for file in node.cdi_folder.iterdir():
        assert cdi_rules.violations(json.loads(file.read_text())) == []
    # A claim with devices of other drivers only needs no record here.
    recorded = {REF.uid} if given and not isinstance(given, str) else set()
    assert invariants.records(node.data_folder).keys() == recorded
    assert invariants.violations(node) == []
    assert node.unprepare(REF) == {REF.uid: ""}
    return not isinstance(given, str)


def test_generated_claim_is_prepared_or_refused(served: Node, tally: Tally) -> None:
    outcomes = set()
    annotations = mutated(ANNOTATIONS) | st.dictionaries(st.sampled_from([*ANNOTATIONS]), SCALARS)

    @bounded(600)
    @given(
        mutated(stored())
        | st.builds(stored, mutated(PARAMETERS) | ANYTHING)
        | st.builds(stored, annotations=annotations)
    )
    def check(claim: dict[str, Any]) -> None:
        outcomes.add(check_answered(served, claim))
        tally[INPUTS_FUZZED] += 1

    check()

    assert outcomes == {True, False}


def test_response_that_is_not_a_claim_is_an_error_that_names_what_was_found(
    served: Node, tally: Tally
) -> None:
    for body in (b"", b"{", b"[]", b"null", b"7", b"\xff", b"[" * 5000):
        served.server.faults.add("get", CLAIMS.plural, Forge(body), name=REF.name, times=1)

        answer = served.prepare(REF) or {}

        assert re.match(f"claim {REF}: .*found ", str(answer[REF.uid]), re.DOTALL), served.log()
        tally[INPUTS_FUZZED] += 1
