"""Cards out of service: the taint that says why and by whom, and the marks on a Node."""

from datetime import UTC, datetime
from typing import Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import cordon
from tensorfusion_dra.core.devices.device import Taint
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpus

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def taint(value: str, effect: str = "NoSchedule", since: datetime = NOW) -> Taint:
    return Taint(key=names.TAINT_CORDONED, value=value, effect=effect, since=since)


@pytest.mark.parametrize(
    ("user", "reason", "value"),
    [
        ("alice", "fan makes noise", "fan-makes-noise_by_alice"),
        ("alice", "", "by_alice"),
        ("alice", "«»", "by_alice"),
        ("", "fan", "fan_by_unknown"),
        (
            "system:serviceaccount:ops:robot",
            "x" * 99,
            f"{'x' * 31}_by_system-serviceaccount-ops-ro",
        ),
    ],
)
def test_value_of_the_taint_is_a_label_value_with_reason_and_user(
    user: str, reason: str, value: str
) -> None:
    found = cordon.taint(user, reason, evicts=False, since=NOW)

    assert found == taint(value)
    assert len(found.value) <= 63


@pytest.mark.parametrize(("evicts", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
def test_node_reads_the_mark_that_was_written(*, evicts: bool, effect: str) -> None:
    made = cordon.taint("alice", "fan", evicts=evicts, since=NOW)

    found = cordon.of_node({f"{names.CORDON_PREFIX}gpu-0": cordon.annotation(made), "a": "b"})

    assert found == {"gpu-0": taint("fan_by_alice", effect)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", taint("", since=EPOCH)),
        (None, taint("None", since=EPOCH)),
        ("a b:Maybe:tomorrow", taint("a-b", since=EPOCH)),
        (f"{'x' * 70}:NoExecute", taint("x" * 63, "NoExecute", EPOCH)),
    ],
)
def test_malformed_mark_keeps_new_claims_away(text: object, expected: Taint) -> None:
    assert cordon.of_node({f"{names.CORDON_PREFIX}gpu-0": text}) == {"gpu-0": expected}


def test_device_has_the_taint_beside_its_others_and_stays_running() -> None:
    first, second = gpus(2)
    (device, *_) = names_of = published_devices(first, second)

    cordoned, other = published_devices(first, second, cordoned={device.name: taint("fan")})

    assert cordoned.taints == (taint("fan"),)
    assert cordoned.attributes == device.attributes
    assert other == names_of[1]
