"""Limits of processes that have exactly what the CDI spec of their claim gives to a container.

The stand-in for a limiter (limiter.c) is installed in the place of HAMi-core's library, on cards of
the stand-in for CUDA. It reads what HAMi-core reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from stand_ins import libraries
from stand_ins.libraries import Card, Machine
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.enforcers.preload import PreloadMethod
from tests.support import cdi_rules, contained
from tests.support.compiler import compiler
from tests.support.contained import Contained
from tests.support.enforced_node import EnforcedNode
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    put_claim,
    share_result,
    simulated_inventory,
)

pytestmark = pytest.mark.process

OUT_OF_MEMORY: Final = 2


@dataclass(frozen=True, kw_only=True)
class Built:
    """Compiled libraries and programs."""

    libraries: Path
    tenant: Path
    limiter: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    compiler("the stand-in libraries")
    root = tmp_path_factory.mktemp("built")
    folder, limiter = libraries.build_driver(root), root / "libvgpu.so.1"
    libraries.compile_c(limiter, ["limiter.c"], ["-shared", "-fPIC", "-ldl"])
    tenant = libraries.build_tenant(root / "bin", folder)
    return Built(libraries=folder, tenant=tenant, limiter=limiter)


class Tenant:
    """The program `tenant` as a container with all requests of one claim would run it."""

    def __init__(self, node: EnforcedNode, built: Built, claim: PreparedClaim) -> None:
        spec = node.spec_of(claim.ref)
        ids = [name for names in cdi.ids_by_share(claim) for name in names]
        # Without CUDA_DEVICE_ORDER, CUDA would list the second card first.
        cards = [
            Card(
                uuid=gpu.uuid,
                pci_bus_id=gpu.pci_bus_id or "",
                minor=gpu.index,
                multiprocessors=100 + gpu.index,
            )
            for gpu in simulated_inventory().gpus
        ]
        self.program = built.tenant
        self.process = Contained(
            env=cdi_rules.environment(spec, ids),
            mounts=contained.mounts(cdi_rules.injected(spec, ids)),
            libraries=built.libraries,
            cards=Machine(cards=cards).write(node.folder / "gpus"),
        )

    def results(self, *words: str, **entrypoint: str) -> list[int]:
        return [each["result"] for each in self.process.run(self.program, *words, **entrypoint)]


Prepare = Callable[..., Tenant]


@pytest.fixture
def prepare(built: Built, tmp_path: Path) -> Prepare:
    def prepared(*results: Any, way: PreloadMethod = PreloadMethod.FILE) -> Tenant:
        node = EnforcedNode(tmp_path / way.value, "hami-core", method=way)
        (node.root / "libvgpu.so.1").write_bytes(built.limiter.read_bytes())
        ref = put_claim(node, "a", *(results or [share_result(vram="2Gi")]))
        return Tenant(node, built, node.prepared(ref))

    return prepared


@pytest.mark.parametrize("way", list(PreloadMethod))
def test_memory_up_to_the_limit_is_allocated_and_no_more_and_compute_has_a_limit_too(
    prepare: Prepare, way: PreloadMethod
) -> None:
    tenant = prepare(share_result(tflops="78", vram="2Gi"), way=way)

    assert tenant.results("alloc", "0", "2048", "alloc", "0", "1") == [0, OUT_OF_MEMORY]
    (launched,) = tenant.process.run(tenant.program, "launch", "0", "0.01", "100")
    assert (launched["result"], launched["count"] > 0) == (0, True)


def test_processes_of_a_container_share_its_limit(prepare: Prepare) -> None:
    tenant = prepare()

    with tenant.process.waiting(tenant.program, "alloc", "0", "1500"):
        results = tenant.results("alloc", "0", "549", "alloc", "0", "548")

    assert results == [OUT_OF_MEMORY, 0]


def test_each_card_has_its_own_limit_in_the_order_of_the_pci_bus(prepare: Prepare) -> None:
    tenant = prepare(share_result(GPU_1, vram="4Gi"), share_result(GPU_0, vram="2Gi"))

    results = tenant.results(
        *("alloc", "0", "2049", "alloc", "0", "2048"),
        *("alloc", "1", "4097", "alloc", "1", "4096"),
    )

    assert results == [OUT_OF_MEMORY, 0, OUT_OF_MEMORY, 0]


@pytest.mark.parametrize(
    ("way", "result"), [(PreloadMethod.FILE, OUT_OF_MEMORY), (PreloadMethod.ENV, 0)]
)
def test_an_entrypoint_that_sets_ld_preload_keeps_a_limiter_that_a_file_loads(
    prepare: Prepare, way: PreloadMethod, result: int
) -> None:

    assert prepare(way=way).results("alloc", "0", "2049", LD_PRELOAD="libm.so.6") == [result]


@pytest.mark.parametrize("switch", ["CUDA_REDIRECT", "CUDA_DISABLE_CONTROL"])
def test_an_image_cannot_turn_the_limiter_off(prepare: Prepare, switch: str) -> None:
    tenant = prepare()

    tenant.process.image_env[switch] = "1"

    assert tenant.results("alloc", "0", "2049") == [OUT_OF_MEMORY]
