"""Claims that hack/bench creates, as a scheduler allocates them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmark import subject, target
from benchmark.target import Claims, Target
from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.node.plugin import ClaimRef, PluginError
from dra_simulator.rest import CLAIMS, PODS, SLICES, Client
from tensorfusion_dra.core.errors import RetryableError
from tests.support import objects

CONFLICT = 409
NAMESPACE = "default"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        Client(started.url).create(SLICES, objects.resource_slice({"name": "gpu-0"}))
        yield started


@pytest.fixture
def claims(server: ApiServer, tmp_path: Path) -> Claims:
    api = target.api_of(server.kubeconfig(tmp_path / "kubeconfig"))
    at = Target(socket=tmp_path / "s", driver=objects.DRIVER, device_class="class")
    return Claims(api, at)


def stored(server: ApiServer) -> int:
    """Return the number of claims and pods."""
    client = Client(server.url)
    return sum(len(client.list(kind, namespace=NAMESPACE).items) for kind in (CLAIMS, PODS))


def test_deleted_claims_leave_nothing(server: ApiServer, claims: Claims) -> None:
    refs = claims.create(3)
    assert stored(server) == 6

    claims.delete(refs)

    assert stored(server) == 0


def test_claims_of_a_creation_that_failed_are_deleted_with_the_rest(
    server: ApiServer, claims: Claims
) -> None:
    server.faults.add("update", "resourceclaims/status", Refuse(CONFLICT), times=1)
    with pytest.raises(RetryableError, match="409"):
        claims.create(3)
    assert stored(server) > 0

    claims.delete_rest()

    assert stored(server) == 0


def test_calls_that_fail_are_repeated_and_the_errors_of_the_rest_returned() -> None:
    calls: list[str] = []

    def act(refs: Sequence[ClaimRef]) -> None:
        (ref,) = refs
        calls.append(ref.name)
        if ref.name == "never" or calls.count(ref.name) == 1:
            raise PluginError(f"{ref.name}: refused")

    found = subject.tried(act, [ClaimRef("default", name, name) for name in ("later", "never")])

    assert found == ["never: refused"]
    assert sorted(calls) == ["later", "later", "never", "never", "never"]
