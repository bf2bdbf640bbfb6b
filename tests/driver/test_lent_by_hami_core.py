"""Claims under HAMi-core from prepare to unprepare: what their containers get, and are lent."""

import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_status, lending
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.enforcer import NodeAccess
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tensorfusion_dra.enforcers.hami_core.lending import ClaimFolders, LendingLoop, may_borrow
from tests.support import enforcer_files
from tests.support.builders.nodes import RULES
from tests.support.builders.prepared_claims import limit
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import PodsInMemory
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    Setup,
    share_result,
    use_real_cards,
)
from tests.support.stores import file_of
from tests.support.worker_node import WorkerPodsInMemory

MEMORY_LIMITS: Final = slice(1_600, 1_728)
USED: Final = 1_856 + 8 + 32
POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
COMPUTE: Final = "CUDA_DEVICE_SM_LIMIT"


class Node(Setup):
    """A node with HAMi-core on real cards, whose containers a test starts."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder, **{"enforcer": HAMI_CORE, **changes})
        use_real_cards(self)

    @property
    def folders(self) -> ClaimFolders:
        return ClaimFolders(str(self.folder / "hami-core"))

    def round(self) -> None:
        """Do a round of the loop that the node plugin runs."""
        access = NodeAccess(
            self.store.claims, PodsInMemory(), WorkerPodsInMemory(), damaged=self.store.damaged
        )
        LendingLoop(self.folders, access).check()

    def put(self, name: str, vram: str, *devices: str, **annotations: str) -> ClaimRef:
        """Store a claim of a quarter of each of these cards, or of the first one."""
        results = [
            share_result(device, tflops="78", vram=vram, request=f"gpu-{number}")
            for number, device in enumerate(devices or [GPU_0])
        ]
        ref = self.claims.put(stored_claim(name, *results))
        self.annotate(ref, **annotations)
        return ref

    def environment(self, ref: ClaimRef, request: str = "gpu-0") -> dict[str, str]:
        """Return the variables that a container with a request of the claim gets by it."""
        devices = {device["name"]: device for device in self.spec_of(ref)["devices"]}
        edits = devices[f"{ref.uid}-{request}:limits"]["containerEdits"]
        return dict(line.split("=", 1) for line in edits["env"])

    def path(self, ref: ClaimRef, request: str = "gpu-0") -> Path:
        return Path(self.folders.claims) / ref.uid / f"{request}.cache"

    def start(self, ref: ClaimRef) -> None:
        """Start a process in a container of the claim's first request."""
        given = self.environment(ref)
        found = limit(int(given[COMPUTE]), 0)
        found = replace(found, vram_bytes=int(given[MEMORY].removesuffix("m")) * MIB)
        self.path(ref).parent.mkdir(parents=True)
        self.path(ref).write_bytes(enforcer_files.hami_cache([found] * 16))

    def use_memory(self, ref: ClaimRef, gib: int) -> None:
        with self.path(ref).open("r+b") as file:
            file.seek(USED)
            file.write(struct.pack("<Q", gib * GIB))

    def gib(self, ref: ClaimRef) -> float:
        """Return the memory limit of the first card in the claim's file."""
        content = self.path(ref).read_bytes()[MEMORY_LIMITS]
        return float(struct.unpack("<16Q", content)[0]) / GIB

    def again(self, **changes: Any) -> "Node":
        """Return the node after a restart of the node plugin."""
        self.store.close()
        return Node(self.folder, claims=self.claims, **changes)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_environment_has_the_request_and_the_file_what_is_lent(node: Node) -> None:
    a = node.put("a", "20Gi", vram_limit="60Gi", tflops_limit="312")
    node.prepared(a)
    node.start(a)

    assert {key: node.environment(a)[key] for key in (MEMORY, f"{MEMORY}_0", COMPUTE, POLICY)} == {
        MEMORY: "20480m",
        f"{MEMORY}_0": "20480m",
        COMPUTE: "25",
        POLICY: "",
    }
    assert node.gib(a) == 20
    node.round()
    assert node.gib(a) == 60


def test_later_pod_waits_until_the_memory_that_was_lent_is_free(node: Node) -> None:
    a, b = node.put("a", "20Gi", vram_limit="60Gi"), node.put("b", "30Gi")
    node.prepared(a)
    node.start(a)
    node.round()
    before = node.environment(a)
    node.use_memory(a, 55)

    assert "found claim default/a using more memory than its limit" in node.refused(b)
    assert node.gib(a) == 55

    node.use_memory(a, 50)
    node.prepared(b)
    assert node.gib(a) == 50
    assert node.environment(a) == before

    node.unprepare(b)
    node.round()
    assert node.gib(a) == 60


def test_new_file_has_its_limits_after_the_next_round(node: Node) -> None:
    a = node.put("a", "20Gi", vram_limit="60Gi")
    node.prepared(a)
    node.start(a)
    node.round()
    node.path(a).unlink()
    node.path(a).parent.rmdir()
    node.start(a)
    assert node.gib(a) == 20

    node.round()
    assert node.gib(a) == 60


def test_requests_of_a_claim_may_be_lent_memory_of_cards_that_have_different_amounts(
    node: Node,
) -> None:
    a = node.put("a", "20Gi", GPU_0, GPU_1, vram_limit="60Gi")
    node.prepared(node.put("b", "50Gi", GPU_1))
    record = node.prepared(a)
    node.start(a)
    node.round()

    assert [share.limit and share.limit.vram_bytes // GIB for share in record.shares] == [60, 30]
    assert node.gib(a) == 30
    assert {node.environment(a, name)[MEMORY] for name in ("gpu-0", "gpu-1")} == {"20480m"}


def test_overcommitted_limits_are_in_the_file_and_nobody_waits(tmp_path: Path) -> None:
    node = Node(tmp_path, overcommit_limits=True)
    a, b = (node.put(name, "20Gi", vram_limit="60Gi") for name in "ab")
    node.prepared(a)
    node.start(a)
    node.round()
    node.use_memory(a, 60)

    node.prepared(b)
    node.start(b)
    node.round()

    assert (node.gib(a), node.gib(b)) == (60, 60)


@pytest.mark.parametrize("change", [{}, {"enforcer": MPS}])
def test_rebuilt_record_keeps_environment_and_file(node: Node, change: dict[str, Any]) -> None:
    a = node.put("a", "20Gi", vram_limit="60Gi", tflops_limit="312")
    before = node.prepared(a)
    environment = node.environment(a)
    node.start(a)
    node.round()
    record = file_of(node.folder / "plugin", a.uid)
    record.write_bytes(record.read_bytes().replace(b"default", b"defau1t"))

    after = node.again(**change)
    after.round()
    assert after.gib(a) == 60  # it is not known what the claim has
    rebuilt = after.prepared(a)
    after.round()

    # Its containers may have been started with `force`, so compute is not lent to them.
    assert rebuilt.shares == tuple(replace(each, idle_compute=False) for each in before.shares)
    assert rebuilt.enforcer == "hami-core"
    assert after.environment(a) == {**environment, POLICY: "force"}
    assert after.gib(a) == 60


def test_claim_keeps_what_it_was_started_with_when_the_nodes_enforcer_changes(node: Node) -> None:
    a = node.put("a", "20Gi", vram_limit="60Gi", tflops_limit="312")
    node.prepared(a)
    node.start(a)
    before = node.environment(a)

    after = node.again(enforcer=MPS)
    after.prepared(after.put("b", "30Gi", GPU_0))
    after.round()

    assert after.environment(a) == before
    assert after.gib(a) == 50


def test_claim_borrows_compute_only_if_all_of_its_shares_may(node: Node) -> None:
    """A container may use all of them, and has its compute limits lifted as a whole."""
    results = [
        share_result(device, tflops="78", vram="20Gi", request=request)
        for device, request in ((GPU_0, "above"), (GPU_1, "at-request"))
    ]
    stored = stored_claim("a", *results)
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "limits": {"tflops": "156"},
    }
    stored["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClaim",
            "requests": ["above"],
            "opaque": {"driver": names.DRIVER, "parameters": parameters},
        }
    ]
    record = node.prepared(node.claims.put(stored))

    above, _ = record.shares
    assert above.compute_clamped
    assert not may_borrow(record)
    assert [node.environment(record.ref, name)[POLICY] for name in ("above", "at-request")] == [
        "force"
    ] * 2
    ready = dict.fromkeys((GPU_0, GPU_1), Readiness(since=datetime.fromtimestamp(0, UTC)))
    entries = device_status.status(record, ready)
    assert len(entries) == 2
    assert "idle" not in json.dumps(entries)


def old_records() -> list[dict[str, Any]]:
    """Return claims of records that a build wrote which lent nothing under HAMi-core."""
    folder = Path(__file__).parents[1] / "state" / "format_1"
    found = [json.loads(path.read_text())["claim"] for path in folder.iterdir()]
    (old,) = [claim for claim in found if claim["enforcer"] == "hami-core"]
    (share,) = old["shares"]
    above = {**share, "wantedSmPercent": 100}
    return [old, {**old, "shares": [above]}]


@pytest.mark.parametrize("old", old_records(), ids=["memory", "memory and compute"])
def test_old_record_keeps_its_environment_and_borrows_nothing(old: dict[str, Any]) -> None:
    """Its containers have `force`, so no switch lifts their limits."""
    assert not {"dividesMemory", "idleCompute"} & old["shares"][0].keys()
    assert old["shares"][0]["granted"] == {"smPercent": 3, "vramBytes": 20 * GIB}
    assert old["shares"][0]["wantedVramBytes"] == 60 * GIB

    (claim,) = lending.divided([PreparedClaim.from_json(old)], RULES)

    assert json.dumps(claim.as_json()) == json.dumps(old)
    assert claim.shares[0].limit == limit(3, 20)
    assert not may_borrow(claim)
    env = HAMI_CORE.edits(claim, claim.shares).env
    assert (env[POLICY], env[MEMORY], env[COMPUTE]) == ("force", "20480m", "3")


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [
        ({}, "force"),
        ({"vram_limit": "60Gi"}, "force"),
        ({"tflops_limit": "78"}, "force"),
        ({"tflops_limit": "79"}, ""),
        ({"tflops_limit": "312"}, ""),
    ],
)
def test_image_cannot_lift_limits_of_a_share_without_a_compute_limit_above_its_request(
    node: Node, annotations: dict[str, str], policy: str
) -> None:
    a = node.put("a", "20Gi", **annotations)
    record = node.prepared(a)

    assert node.environment(a)[POLICY] == policy
    assert may_borrow(record) is (policy == "")
    assert node.environment(a)[COMPUTE] == "25"
    assert node.record(a) == record
    assert node.again().record(a) == record
