"""Damaged and generated files and variables that the driver reads: used or refused, never a crash.

The tests for records and the files of claims are elsewhere.
"""

import base64
import contextlib
import json
import re
from collections.abc import Callable
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
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.host import HostDriverFiles
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.driver.publish import CatalogBuilder
from tests.discovery.nvml import nvml_machine
from tests.discovery.nvml.nvml_machine import Machine
from tests.faults.mutations import ANYTHING, bounded, damaged, mutated
from tests.support.builders.devices import NODE
from tests.support.node_flags import node_flags
from tests.support.tally import INPUTS_DAMAGED, INPUTS_FUZZED, Tally

CARD = "GPU-8f3a0000-0000-4000-8000-000000000000"

SETTINGS = """\
# of the node
node-name: gpu-node-7
gpupool: shared-a100
qos: high
tflops-oversell-ratio: 150
poll-seconds: 12.5
read-pods: false
lending-factor: 8
kubelet-root: /var/lib/kubelet
simulated-gpus: 2xA100-SXM4-80GB
"""
PROFILE = """\
driver_version: '550.54.15'
driver_missing_for_seconds: 0.0
gpus:
- {product: A100-SXM4-80GB, count: 2}
- {product: Some Card, vram: 24Gi, tflops: 71.2, uuid: GPU-8f3a0000-0000-4000-8000-000000000000}
- {product: T4, fault: null, appears_after_seconds: 0.0}
"""
MODELS = """\
- {model: A100, fullModelName: NVIDIA A100-SXM4-80GB, vendor: NVIDIA, fp16TFlops: 312}
- model: MI300X
  fullModelName: AMD Instinct MI300X
  vendor: AMD
  fp16TFlops: 1307.4
  costPerHour: 3.5
"""
TOOLKIT = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": CARD, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "all", "containerEdits": {"env": ["A=b"]}},
    ],
    "containerEdits": {"mounts": [{"hostPath": "/usr/lib/a", "containerPath": "/usr/lib/a"}]},
}

Read = Callable[[Path], Any]


def refusal(read: Read, file: Path) -> str | None:
    """Read the file; return the text of the refusal, None if there is none."""
    try:
        read(file)
    except InputError as error:
        return str(error)
    return None


def read_settings(file: Path) -> Settings:
    return node_settings.from_flags(node_flags("--config", str(file)), {})


def read_profile(file: Path) -> object:
    return simulated_discovery.profile_from_text(str(file))


def read_kubeconfig(file: Path) -> object:
    return Api(file).connect()


def read_toolkit_spec(file: Path) -> None:
    files = HostDriverFiles(Path("/nowhere"), cdi_folders=[file.parent])
    assert files.toolkit_device(CARD) in {None, f"nvidia.com/gpu={CARD}"}


def kubeconfig() -> str:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": authority}
    user = {"token": "abc", "client-key-data": authority}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "here", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "current-context": "here",
        }
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("content", "read", "suffix"),
    [
        (SETTINGS, read_settings, "yaml"),
        (PROFILE, read_profile, "yaml"),
        (MODELS, models.rows, "yaml"),
        (kubeconfig(), read_kubeconfig, "yaml"),
        (json.dumps(TOOLKIT), read_toolkit_spec, "json"),
        (yaml.safe_dump(TOOLKIT), read_toolkit_spec, "yaml"),
    ],
    ids=["settings", "profile", "models", "kubeconfig", "toolkit-json", "toolkit-yaml"],
)
def test_damaged_file_is_read_or_refused(
    tmp_path: Path, tally: Tally, content: str, read: Read, suffix: str
) -> None:
    file = tmp_path / f"file.{suffix}"
    file.write_text(content)
    assert refusal(read, file) is None
    for damage in damaged(content.encode()):
        file.write_bytes(damage)
        assert len(refusal(read, file) or "") < 1000, damage
        tally[INPUTS_DAMAGED] += 1


@pytest.mark.parametrize(
    "text",
    [
        "qos: 2026-99-99",
        "poll-seconds: 1e99999",
        "poll-seconds: " + "9" * 5000,
        "gpupool: !!binary '///'",
        "gpupool: !!python/object/apply:os.getpid []",
        "[" * 1200,
        "{a: " * 1200,
        "&a [*a]",
        "? [a, b]\n: c",
        "? {a: b}\n: c",
        "a: &a [x, x]\nb: &b [*a, *a]\nqos: [*b, *b, *b]",
        "- " * 1200,
        "clusters: [{name: here, cluster: [1]}]\ncurrent-context: here",
        "contexts: {name: 1}\nusers: 7\nclusters: []\ncurrent-context: 3",
        "current-context: here\ncontexts: [{name: here}]",
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize(
    "read",
    [
        read_settings,
        read_profile,
        models.rows,
        read_kubeconfig,
        read_toolkit_spec,
    ],
    ids=["settings", "profile", "models", "kubeconfig", "toolkit"],
)
def test_pathological_yaml_is_refused(tmp_path: Path, read: Read, text: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)

    error = refusal(read, file)

    if read is not read_toolkit_spec:
        assert error is not None
        assert str(file) in error or re.match("[a-z-]+: found", error)
        assert len(error) < 1500


@pytest.mark.sweep
def test_damaged_nvml_answers_give_an_inventory_or_a_retryable_error(
    machine: Machine, tally: Tally
) -> None:
    whole = nvml_machine.answers(nvml_machine.card(0), nvml_machine.card(1))
    damages = damaged(whole.encode(), flips=160)
    texts = [damage.decode(errors="replace").replace("\0", "?") for damage in damages]

    printed = machine.run(
        whole, *(step for text in texts for step in (machine.rewrite(text), ["read"]))
    )

    answered = [answer for answer in printed if isinstance(answer, dict)]
    assert len(answered) >= len(texts)
    assert all("gpus" in answer or answer["error"] == "RetryableError" for answer in answered)
    tally[INPUTS_DAMAGED] += len(texts)


def publish(file: Path) -> None:
    """Build the devices of a profile; check that an API server would accept their slices."""
    discovery = simulated_discovery.SimulatedDiscovery(str(file), node_name=NODE.name)
    cards = CatalogBuilder(discovery, NODE)
    # The driver is not loaded yet in some profiles.
    with contextlib.suppress(RetryableError):
        cards.refresh()
    if current := cards.catalog.current():
        for item in slices.wanted(current.devices, NODE, node_uid="uid-of-node"):
            assert not list(object_rules.violations(item["spec"]))


@pytest.mark.sweep
@pytest.mark.parametrize(("content", "read"), [(SETTINGS, read_settings), (PROFILE, publish)])
def test_generated_file_is_used_or_refused(
    tmp_path: Path, tally: Tally, content: str, read: Read
) -> None:
    file = tmp_path / "file.yaml"
    refusals = set()

    @bounded(150, least=80)
    @given(mutated(yaml.safe_load(content)) | ANYTHING)
    def check(document: object) -> None:
        file.write_text(yaml.dump(document), encoding="utf-8", errors="surrogatepass")
        refusals.add(refusal(read, file))
        tally[INPUTS_FUZZED] += 1

    check()

    assert {None} < refusals


@pytest.mark.sweep
def test_generated_environment_variables_are_used_or_refused(tally: Tally) -> None:
    variables = [setting_sources.variable(item) for item in fields(Settings)]
    texts = st.text(max_size=300) | ANYTHING.map(str)

    @bounded(150)
    @given(st.dictionaries(st.sampled_from(variables), texts, min_size=1, max_size=3))
    def check(environment: dict[str, Any]) -> None:
        with contextlib.suppress(InputError):
            node_settings.from_flags(node_flags(), environment)
        tally[INPUTS_FUZZED] += 1

    check()
