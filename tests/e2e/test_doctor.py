"""Findings of the doctor on a cluster where everything works."""

import json
import subprocess
import sys
from typing import Any

import pytest

_SECONDS = 60


@pytest.mark.usefixtures("slices", "device_class")
def test_doctor_finds_no_problem_in_a_working_cluster(kubeconfig: str) -> None:
    found = findings_of(kubeconfig)

    themes = {finding["theme"] for finding in found}
    assert {"kubernetes", "slices", "device class", "rights", "webhook"} <= themes
    assert [finding for finding in found if finding["level"] == "problem"] == []


def findings_of(kubeconfig: str) -> list[dict[str, Any]]:
    """Run the doctor as on a workstation and return its findings."""
    doctor = [sys.executable, "-m", "tensorfusion_dra", "doctor", "--on", "workstation"]
    ended = subprocess.run(
        [*doctor, "--kubeconfig", kubeconfig, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ended.stdout, ended.stderr
    findings: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return findings
