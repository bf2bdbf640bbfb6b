"""Findings about feature gates, by the fields that a dry run keeps."""

import copy
from typing import Any

from dra_simulator.api import slice_rules
from tensorfusion_dra.core.doctor import gates
from tensorfusion_dra.core.doctor.finding import Level


def stored_slice(*dropped: str) -> Any:
    stored = copy.deepcopy(dict(gates.trial_slice("node-01")))
    (device,) = stored["spec"]["devices"]
    for field in dropped:
        holder = device["capacity"]["vram"] if field == "requestPolicy" else device
        del holder[field]
    return stored


def test_trial_slice_is_valid() -> None:
    assert slice_rules.violations(gates.trial_slice("node-01")["spec"]) == ()
    assert len(gates.trial_slice("n" * 253)["metadata"]["name"]) <= 253


def test_unchanged_slice_means_that_every_gate_is_on() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice())

    assert finding.level is Level.OK


def test_missing_consumable_capacity_is_a_problem() -> None:
    stored = stored_slice("allowMultipleAllocations", "requestPolicy")

    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
    assert "kube-scheduler" in finding.cure


def test_missing_device_taints_is_only_a_note() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice("taints"))

    assert finding.level is Level.NOTE
    assert "DRADeviceTaints is off" in finding.found


def test_each_gate_that_is_off_is_a_finding() -> None:
    stored = stored_slice("taints", "allowMultipleAllocations", "requestPolicy")

    found = list(gates.kept_of_slice(gates.trial_slice("node-01"), stored))

    assert [finding.level for finding in found] == [Level.PROBLEM, Level.NOTE]


def test_change_that_no_gate_explains_points_to_a_webhook() -> None:
    (finding,) = gates.kept_of_slice(gates.trial_slice("node-01"), stored_slice("attributes"))

    assert finding.level is Level.WARNING
    assert "webhook" in finding.cure


def test_unchanged_claim_is_fine() -> None:
    (finding,) = gates.kept_of_claim(gates.trial_claim("default"))

    assert finding.level is Level.OK


def test_claim_that_loses_its_capacity_is_a_problem() -> None:
    stored: Any = copy.deepcopy(dict(gates.trial_claim("default")))
    del stored["spec"]["devices"]["requests"][0]["exactly"]["capacity"]

    (finding,) = gates.kept_of_claim(stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
