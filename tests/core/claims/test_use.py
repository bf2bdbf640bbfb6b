"""Whose a process is, and what a share's use says."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import use
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.use import Container, GpuProcess, Used
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share

ID = "4f" * 32
UID = "8b0f8e6a-0a6f-4c39-9f0f-3f3b7a2f6c11"
SLICE_UID = UID.replace("-", "_")
OTHER_ID = "a0" * 32
BURSTABLE = f"kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice"


@pytest.mark.parametrize(
    "cgroups",
    [
        pytest.param(
            f"0::/kubepods.slice/{BURSTABLE}/cri-containerd-{ID}.scope\n", id="containerd, systemd"
        ),
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}\n", id="containerd, cgroupfs"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope\n", id="CRI-O"
        ),
        pytest.param(
            f"0::/kubepods.slice/{BURSTABLE}/crio-{ID}.scope/container\n", id="CRI-O with crun"
        ),
        pytest.param(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope\n",
            id="kind, systemd",
        ),
        pytest.param(
            f"0::/docker/{OTHER_ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}\n",
            id="kind, cgroupfs",
        ),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope\n",
            id="seen from a container's cgroup namespace",
        ),
        pytest.param(
            f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n"
            f"11:memory:/kubepods/burstable/pod{UID}/{ID}\n"
            "1:name=systemd:/user.slice\n",
            id="cgroup v1, cgroupfs",
        ),
        pytest.param(
            "5:devices:/system.slice\n"
            f"4:memory:/kubepods.slice/{BURSTABLE}/cri-containerd-{ID}.scope\n",
            id="cgroup v1, systemd",
        ),
        pytest.param(
            f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{UID[::-1]}/{OTHER_ID}\n",
            id="cgroups that the container made below its own",
        ),
    ],
)
def test_container_of_every_runtime(cgroups: str) -> None:
    assert use.container_of(cgroups) == Container(pod_uid=UID, id=ID)


@pytest.mark.parametrize(
    ("cgroups", "container"),
    [
        (f"0::/kubepods/burstable/pod{'0f' * 16}/{ID}\n", Container(pod_uid="0f" * 16, id=ID)),
        ("", None),
        ("0::/\n", None),
        ("0::/user.slice/user-1000.slice/session-4.scope\n", None),
        ("0::/system.slice/nvidia-persistenced.service\n", None),
        (f"0::/system.slice/docker-{ID}.scope\n", None),
        (f"0::/kubepods/burstable/pod{UID}\n", None),
        (f"0::/kubepods/burstable/podsomething/{ID}\n", None),
    ],
)
def test_static_pod_has_a_hash_and_other_processes_have_no_container(
    cgroups: str, container: Container | None
) -> None:
    assert use.container_of(cgroups) == container


def named(name: str, *shares: PreparedShare, pod: str) -> PreparedClaim:
    ref = ClaimRef(namespace="team-a", name=name, uid=f"uid-{name}")
    return prepared_claim(
        *shares, ref=ref, pods=(PodRef(namespace="team-a", name=pod, uid=f"uid-{pod}"),)
    )


def process(pid: int, pod: str, gib: float, *, percent: int = 0, container: str = ID) -> GpuProcess:
    of = Container(pod_uid=f"uid-{pod}", id=container) if pod else None
    return GpuProcess(
        pid=pid, vram_bytes=int(gib * GIB), sm_percent=percent, container=of, name="python"
    )


def used(gib: float, percent: int = 0, processes: int = 0, **containers: float) -> Used:
    """Return a share's use; containers by ID."""
    return Used(
        vram_bytes=int(gib * GIB),
        sm_percent=percent,
        processes=processes,
        containers={name: int(size * GIB) for name, size in containers.items()},
    )


A = named("a", prepared_share(0, limit(50, 20)), pod="a")
B = named("b", prepared_share(0, limit(50, 20)), pod="b")
ON_TWO_CARDS = named(
    "a", prepared_share(0, limit(50, 20)), prepared_share(1, limit(50, 20)), pod="a"
)
EXACT = {"exact": {("uid-a", "GPU-0"): 5 * GIB, ("uid-a", "GPU-1"): 0}}


@pytest.mark.parametrize(
    ("claims", "cards", "more", "shares"),
    [
        pytest.param(
            [ON_TWO_CARDS, named("b", prepared_share(0, limit(50, 20)), pod="b")],
            {
                "GPU-0": [
                    process(1, "a", 4, percent=10),
                    process(2, "a", 2, percent=5, container=OTHER_ID),
                    process(3, "b", 8),
                ],
                "GPU-1": [process(1, "a", 1)],
            },
            {},
            {
                "uid-a": [
                    used(6, 15, 2, **{ID: 4, OTHER_ID: 2}),
                    used(1, processes=1, **{ID: 1}),
                ],
                "uid-b": [used(8, processes=1, **{ID: 8})],
            },
            id="by pod and card",
        ),
        pytest.param(
            [A],
            {"GPU-0": [process(1, "a", 1), process(2, "late", 2)]},
            {"pods": {"uid-a": {"uid-late"}}},
            {"uid-a": [used(3, processes=2, **{ID: 3})]},
            id="of a pod that came to the claim later",
        ),
        pytest.param(
            [
                named("a", prepared_share(0, limit(20, 4)), pod="a"),
                named("b", prepared_share(0, limit(20, 8)), pod="a"),
            ],
            {"GPU-0": [process(1, "a", 5, percent=30), process(2, "a", 2, percent=5)]},
            {},
            {"uid-a": [used(4, 20, 2, **{ID: 7})], "uid-b": [used(3, 15, 2, **{ID: 7})]},
            id="several shares of one pod on a card are filled in order",
        ),
        pytest.param(
            [ON_TWO_CARDS],
            {"GPU-0": [process(1, "a", 4, percent=10)]},
            EXACT,
            {"uid-a": [used(5, 10, 1, **{ID: 4}), Used()]},
            id="memory that the driver counts by pod",
        ),
        pytest.param(
            [ON_TWO_CARDS], {}, EXACT, {"uid-a": [used(5), Used()]}, id="which needs no processes"
        ),
        pytest.param([A], {"GPU-1": []}, {}, {"uid-a": [None]}, id="of a card that says nothing"),
        pytest.param(
            [A, B],
            {"GPU-0": [process(1, "a", 4, percent=90)]},
            {"raised": {"uid-a": 100}},
            {"uid-a": [replace(used(4, 90, 1, **{ID: 4}), raised_percent=100)], "uid-b": [Used()]},
            id="of idle compute",
        ),
    ],
)
def test_processes_belong_to_the_share_of_their_pod_on_their_card(
    claims: list[PreparedClaim], cards: Any, more: Any, shares: dict[str, list[Used | None]]
) -> None:
    found = use.of_node(claims, cards, **{"pods": {}, **more})

    assert (found.shares, found.foreign) == (shares, {})


def test_what_belongs_to_no_share_is_named_the_largest_first() -> None:
    every = [process(8, "x", 8), *(process(number, "", number) for number in range(1, 8))]

    found = use.of_node([A], {"GPU-0": every, "GPU-1": []}, pods={})

    assert found.shares == {"uid-a": [Used()]}
    foreign = found.foreign["GPU-0"]
    assert (foreign.vram_bytes, foreign.processes) == (36 * GIB, 8)
    assert found.foreign_text == {
        "GPU-0": "process 8 python of pod uid-x uses 8192 MiB, process 7 python uses 7168 MiB, "
        "process 6 python uses 6144 MiB, process 5 python uses 5120 MiB, process 4 python uses "
        "4096 MiB, and 3 more"
    }


@pytest.mark.parametrize(
    ("limit_gib", "used_mib", "exceeds", "is_near"),
    [
        (1, 900, False, False),
        (1, 1000, False, True),
        (1, 1024 + 64, False, True),
        (1, 1024 + 65, True, True),
        (64, 65536 + 2048, False, True),
        (64, 65536 + 2049, True, True),
        (None, 80 * 1024, False, False),
    ],
)
def test_limit_is_exceeded_by_more_than_what_is_rounded(
    limit_gib: int | None, used_mib: int, exceeds: bool, is_near: bool
) -> None:
    used = Used(vram_bytes=used_mib * MIB, processes=1)
    of_share = limit(50, limit_gib) if limit_gib else None

    assert (used.exceeds(of_share), used.is_near(of_share)) == (exceeds, is_near)


@pytest.mark.parametrize(
    ("newer", "is_notable"),
    [
        (Used(vram_bytes=10 * GIB, sm_percent=50), False),
        (Used(vram_bytes=10 * GIB + 511 * MIB, sm_percent=50), False),
        (Used(vram_bytes=10 * GIB + 512 * MIB, sm_percent=50), True),
        (Used(vram_bytes=10 * GIB, sm_percent=74), False),
        (Used(vram_bytes=10 * GIB, sm_percent=75), True),
        (Used(vram_bytes=10 * GIB, sm_percent=50, containers={ID: 0}), True),
        (Used(vram_bytes=10 * GIB, sm_percent=50, raised_percent=100), True),
    ],
)
def test_change_that_a_reader_wants_to_know(newer: Used, is_notable: bool) -> None:
    before = Used(vram_bytes=10 * GIB, sm_percent=50)

    assert newer.differs(before, 8 * GIB) is is_notable


def test_status_has_the_largest_containers_only() -> None:
    used = Used(
        vram_bytes=GIB, processes=30, containers={f"{number:064x}": number for number in range(30)}
    )

    shown = used.as_json()

    assert list(shown["containers"].values()) == list(range(29, 13, -1))
    assert "raisedSmPercent" not in shown
    assert Used(raised_percent=100).as_json()["raisedSmPercent"] == 100
