"""What an API server's feature gates are, by what it keeps of objects on trial."""

import copy
from typing import Any

from tensorfusion_dra.core.doctor import gates
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.kubernetes import slice_rules


def stored_slice(*dropped: str) -> Any:
    stored = copy.deepcopy(dict(gates.trial_slice("node-01")))
    (device,) = stored["spec"]["devices"]
    for field in dropped:
        holder = device["capacity"]["vram"] if field == "requestPolicy" else device
        del holder[field]
    return stored


def test_the_trial_slice_is_one_that_the_api_server_takes() -> None:
    assert slice_rules.slice_violations(gates.trial_slice("node-01")["spec"]) == ()
    assert len(gates.trial_slice("n" * 253)["metadata"]["name"]) <= 253


def test_a_slice_that_is_kept_as_it_is_means_that_every_gate_is_on() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice())

    assert finding.level is Level.OK


def test_without_consumable_capacity_nobody_can_share() -> None:
    stored = stored_slice("allowMultipleAllocations", "requestPolicy")

    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
    assert "kube-scheduler" in finding.cure


def test_without_taints_the_driver_still_works() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice("taints"))

    assert finding.level is Level.NOTE
    assert "DRADeviceTaints is off" in finding.found


def test_two_gates_that_are_off_are_two_findings() -> None:
    stored = stored_slice("taints", "allowMultipleAllocations", "requestPolicy")

    found = list(gates.kept_of_slice(gates.trial_slice("node-01"), stored))

    assert [finding.level for finding in found] == [Level.PROBLEM, Level.NOTE]


def test_what_no_gate_explains_is_somebody_elses_doing() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice("attributes"))

    assert finding.level is Level.WARNING
    assert "webhook" in finding.cure


def test_a_claim_that_is_kept_can_ask_for_a_part() -> None:
    (finding,) = gates.kept_of_claim(gates.trial_claim("default"))

    assert finding.level is Level.OK


def test_a_claim_that_loses_its_capacity_would_get_a_whole_card() -> None:
    stored: Any = copy.deepcopy(dict(gates.trial_claim("default")))
    del stored["spec"]["devices"]["requests"][0]["exactly"]["capacity"]

    (finding,) = gates.kept_of_claim(stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
