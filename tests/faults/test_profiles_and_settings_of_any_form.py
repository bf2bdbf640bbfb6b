"""Generated profiles and settings that are almost valid: they are used or refused."""

import contextlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api import object_rules
from tensorfusion_dra.app.shared import node_settings, setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.driver.publish import DeviceCatalog
from tests.faults.mutations import ANYTHING, bounded, mutated
from tests.support.builders.devices import NODE
from tests.support.node_flags import node_flags
from tests.support.tally import INPUTS_FUZZED, Tally

pytestmark = pytest.mark.sweep

PROFILE = {
    "driver_version": "550.54.15",
    "driver_missing_for_seconds": 0,
    "gpus": [
        {"product": "A100-SXM4-80GB", "count": 2},
        {"product": "Some Card", "vram": "24Gi", "tflops": "71.2", "fault": None},
        {"product": "T4", "uuid": "GPU-8f3a0000-0000-4000-8000-000000000000"},
    ],
}
SETTINGS = {
    "node-name": "gpu-node-7",
    "gpupool": "shared-a100",
    "qos": "high",
    "tflops-oversell-ratio": 150,
    "poll-seconds": 12.5,
    "read-pods": False,
    "kubelet-root": "/var/lib/kubelet",
    "lending-factor": 8,
}


def test_generated_profile_is_published_or_refused(tmp_path: Path, tally: Tally) -> None:
    file = tmp_path / "gpus.yaml"
    published = []

    @bounded(150, least=80)
    @given(mutated(PROFILE) | ANYTHING)
    def check(document: object) -> None:
        file.write_text(yaml.dump(document), encoding="utf-8", errors="surrogatepass")
        tally[INPUTS_FUZZED] += 1
        with contextlib.suppress(InputError):
            discovery = simulated_discovery.SimulatedDiscovery(str(file), node_name=NODE.name)
            catalog = DeviceCatalog(discovery, NODE)
            # The driver is not loaded yet in some profiles.
            with contextlib.suppress(RetryableError):
                catalog.refresh()
            published.append(count_devices(catalog))

    check()

    assert max(published) > 3


def count_devices(catalog: DeviceCatalog) -> int:
    """Return the number of devices; check that an API server would accept their slices."""
    current = catalog.current()
    if current is None:
        return 0
    for item in slices.wanted(current.listed, NODE, node_uid="uid-of-node"):
        assert not list(object_rules.violations(item["spec"]))
    return len(current.devices)


def test_generated_settings_file_is_used_or_refused(tmp_path: Path, tally: Tally) -> None:
    file = tmp_path / "settings.yaml"
    flags = node_flags("--config", str(file))

    @bounded(150)
    @given(mutated(SETTINGS) | ANYTHING)
    def check(document: object) -> None:
        file.write_text(yaml.dump(document), encoding="utf-8", errors="surrogatepass")
        tally[INPUTS_FUZZED] += 1
        with contextlib.suppress(InputError):
            assert isinstance(node_settings.from_flags(flags, {}), Settings)

    check()


def test_generated_environment_variables_are_used_or_refused(tally: Tally) -> None:
    flags = node_flags()
    variables = [setting_sources.variable(item) for item in fields(Settings)]
    texts = st.text(max_size=300) | ANYTHING.map(str)

    @bounded(150)
    @given(st.dictionaries(st.sampled_from(variables), texts, min_size=1, max_size=3))
    def check(environment: dict[str, Any]) -> None:
        tally[INPUTS_FUZZED] += 1
        with contextlib.suppress(InputError):
            assert isinstance(node_settings.from_flags(flags, environment), Settings)

    check()
