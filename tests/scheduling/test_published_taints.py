"""Claims that tolerate one taint of a published device are kept away by the others."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Enforcement
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.other_users import OtherUser
from tensorfusion_dra.scheduling.allocation import NoFitError
from tests.scheduling.allocating import allocate
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu
from tests.support.objects import CLASS, claim, exactly, expressions
from tests.support.objects import NODE as ON

SINCE: Final = datetime(2026, 3, 1, tzinfo=UTC)
PROBLEM: Final = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")
KEYS: Final = (names.TAINT_UNHEALTHY, names.TAINT_USED_BY, names.TAINT_ENFORCER_MISSING)
SUBSETS: Final = [subset for size in range(4) for subset in combinations(KEYS, size)]


@pytest.mark.parametrize("taints", SUBSETS)
def test_claim_gets_a_device_only_if_it_tolerates_each_of_its_taints(
    taints: tuple[str, ...],
) -> None:
    card = gpu()
    user = OtherUser(name="nvidia-device-plugin", holds=False, since=SINCE)
    unhealthy = Unhealthy(worst=PROBLEM, since=SINCE)
    (device,) = published_devices(
        card,
        unhealthy={card.uuid.lower(): unhealthy} if names.TAINT_UNHEALTHY in taints else {},
        users={card.uuid: user} if names.TAINT_USED_BY in taints else {},
        enforcement=Enforcement(
            given_up_since=SINCE if names.TAINT_ENFORCER_MISSING in taints else None
        ),
    )
    ours = f'device.driver == "{names.DRIVER}"'
    classes = [{"metadata": {"name": CLASS}, "spec": {"selectors": expressions(ours)}}]
    planned = slices.plan(
        slices.wanted([device.as_api()], replace(NODE, name=ON), node_uid="uid"), []
    ).create
    stored = [dict(item) for item in planned]

    for tolerated in SUBSETS:
        tolerations = [{"key": key, "operator": "Exists"} for key in tolerated]
        wanted = claim(exactly(tolerations=tolerations) if tolerations else exactly())
        if set(taints) <= set(tolerated):
            assert allocate(wanted, slices=stored, classes=classes)
        else:
            with pytest.raises(NoFitError):
                allocate(wanted, slices=stored, classes=classes)
