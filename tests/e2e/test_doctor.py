"""The doctor finds nothing wrong where everything works."""

import json
import subprocess
import sys
from typing import Any

import pytest

_SECONDS = 60


@pytest.mark.usefixtures("slices", "device_class")
def test_a_cluster_that_works_has_no_problem(kubeconfig: str) -> None:
    found = examined(kubeconfig)

    looked_at = {finding["theme"] for finding in found}
    assert {"kubernetes", "slices", "device class", "rights", "webhook"} <= looked_at
    assert [finding for finding in found if finding["level"] == "problem"] == []


def examined(kubeconfig: str) -> list[dict[str, Any]]:
    """The findings on a workstation."""
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
