"""Settings: default < file < environment < flag, and a clear error for every wrong value."""

import argparse
import re
import socket
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.shared import node_parts, node_settings, setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.devices.health import HealthRules
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion

NAMED = {"NODE_NAME": "node-01"}
TAINTS = ("NoSchedule", "NoExecute", "none")

AUTO = ("nvidia", "tensor-fusion", "hami-core", "mps")
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"


def given(*flags: str, env: Mapping[str, str] = NAMED) -> Settings:
    parser = argparse.ArgumentParser()
    setting_sources.add_flags(parser, Settings)
    return node_settings.from_flags(parser.parse_args(flags), env)


def refusal(*flags: str, env: Mapping[str, str] = NAMED) -> str:
    with pytest.raises(InputError) as caught:
        given(*flags, env=env)
    return str(caught.value)


def config(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return f"--config={path}"


@pytest.mark.parametrize("env", [{}, {"NODE_NAME": ""}])
def test_the_node_name_defaults_to_the_host_name(
    env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU-Host.Example.com")

    assert given(env=env).node_name == "gpu-host.example.com"
    assert given("--node-name=", env=env).node_name == "gpu-host.example.com"
    assert given(config(tmp_path, "node-name: ''"), env=env).node_name == "gpu-host.example.com"


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = config(tmp_path, "gpupool: from-file\nqos: low\ncdi-dir: /file\n")
    variables = {"GPUPOOL": "from-env", "QOS": "high", "CDI_DIR": ""}  # empty counts as not set
    env = {**NAMED, **{f"TENSORFUSION_DRA_{name}": text for name, text in variables.items()}}

    chosen = given(file, "--gpupool=from-flag", env=env)

    assert (chosen.gpupool, chosen.qos) == ("from-flag", "high")
    assert (chosen.cdi_dir, chosen.driver_root) == ("/file", "/")

    by_variable = tmp_path / "variable.yaml"
    by_variable.write_text("qos: low\ncdi-dir: /variable")
    env = {**env, "TENSORFUSION_DRA_CONFIG": str(by_variable)}
    assert [given(env=env).cdi_dir, given(file, env=env).cdi_dir] == ["/variable", "/file"]


def test_every_setting_has_a_flag_a_variable_and_a_key_in_the_file(tmp_path: Path) -> None:
    special = {
        "data_dir": "/x",
        "pool_source": "object",
        "qos": "high",
        "log_level": "debug",
        "log_format": "console",
        "tflops_oversell_ratio": "150",
        "isolation": "hard",
        # The only named one with which every other setting can have another than its default.
        "enforcer": "tensor-fusion",
        "hypervisor_address": "10.0.0.7:1",
        "preload": "env",
        "observe_use": "true",
        "release_driver": "false",
        "overcommit_limits": "true",
        "status_page": "false",
        "require_enforcement": "true",
        "read_pods": "false",
        "dev_dir": "/x",
        "driver_root_on_host": "/x",
        "hypervisor_sockets": "/x",
        "nvml_library": "/x",
        "health_events": "false",
        "health_taint": "NoExecute",
        "device_metadata": "true",
        "default_compute_limit": "card",
        "resize": "false",
        "health_address": ":1",
        "metrics_address": "127.0.0.1:1",
    }
    folders = {item.name: "/x" for item in fields(Settings) if str(item.default).startswith("/")}
    values = {item.name: {**special, **folders}.get(item.name, "7") for item in fields(Settings)}
    by_flag = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    by_variable = {setting_sources.variable(item): values[item.name] for item in fields(Settings)}
    by_file = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in values.items())

    chosen = given(*by_flag, env={})

    assert chosen == given(env=by_variable) == given(config(tmp_path, by_file), env={})
    defaults = Settings(node_name="node-01")
    assert [name for name in values if getattr(chosen, name) == getattr(defaults, name)] == []


def test_help_lists_each_flag_with_its_default_and_variable() -> None:
    parser = argparse.ArgumentParser()
    setting_sources.add_flags(parser, Settings)

    text = " ".join(parser.format_help().split())

    for item in fields(Settings):
        flag = "--" + item.name.replace("_", "-")
        help_text = re.search(rf"{flag} [A-Z]+ (.*?)Variable: (\w+)\.", text)
        assert help_text is not None
        assert help_text[2] == setting_sources.variable(item)
        default = setting_sources.default_text(item)
        assert not default or f"Default: {default}." in help_text[1]


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        *((f"poll-seconds: {text}", "poll_seconds", float(text)) for text in ("12.5", "12", "1e1")),
        *((f"gpupool: {text}", "gpupool", text.strip("'")) for text in ("2024", "1.5", "'2024'")),
        *((f"status-page: {text}", "status_page_mode", text) for text in ("off", "on", "loopback")),
        ("status-page: 'on'", "status_page_mode", "on"),
    ],
)
def test_a_value_in_the_file_may_have_any_type_of_yaml_that_shows_it(
    tmp_path: Path, line: str, name: str, expected: object
) -> None:
    assert getattr(given(config(tmp_path, line)), name) == expected


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--qos=best", "qos: found 'best', expected one of low, medium, high, critical"),
        ("--log-level=verbose", "log-level: found 'verbose', expected one of debug, info"),
        ("--log-format=xml", "log-format: found 'xml', expected one of json, console"),
        ("--node-name=Node_1", "node-name: found 'Node_1', expected a DNS subdomain"),
        ("--node-name=a\n", "node-name: found 'a\\n', expected a DNS subdomain"),
        ("--node-name=a..b", "node-name: found 'a..b', expected a DNS subdomain"),
        ("--gpupool=a/b", "gpupool: found 'a/b', expected a DNS subdomain"),
        ("--gpupool=" + "p" * 250, "gpupool/node-name: 258 characters, expected at most 253"),
        ("--pod-uid=a/b", "pod-uid: found 'a/b', expected letters, digits, dashes"),
        ("--pod-uid=" + "a" * 64, "pod-uid: found"),
        ("--kubelet-root=var", "kubelet-root: found 'var', expected an absolute path"),
        ("--cdi-dir=", "cdi-dir: found '', expected an absolute path"),
        ("--dev-dir=./dev", "dev-dir: found './dev', expected an absolute path"),
        ("--driver-root=~", "driver-root: found '~', expected an absolute path"),
        ("--hami-core-library=a.so", "hami-core-library: found 'a.so', expected an absolute path"),
        ("--mps-root=mps", "mps-root: found 'mps', expected an absolute path"),
        ("--mps-root=", "mps-root: found '', expected an absolute path"),
        *(
            (f"--health-address={text}", f"health-address: found {text!r}, expected an address")
            for text in ("8081", "127.0.0.1", "::1:8081", "a b:80", ":x", ":65536", ":70000")
        ),
        ("--hypervisor-address=10.0.0.7", "hypervisor-address: found '10.0.0.7', expected an addr"),
        ("--nvml-library=a.so", "nvml-library: found 'a.so', expected an absolute path"),
        ("--poll-seconds=soon", "poll-seconds: found 'soon', expected a number"),
        ("--poll-seconds=", "poll-seconds: found '', expected a number"),
        ("--poll-seconds=0", "poll-seconds: found 0.0, expected 0.1 to 86400"),
        ("--poll-seconds=nan", "poll-seconds: found nan, expected"),
        ("--poll-seconds=inf", "poll-seconds: found inf, expected"),
        ("--drain-seconds=601", "drain-seconds: found 601.0, expected 0 to 600"),
        ("--drain-seconds=nan", "drain-seconds: found nan, expected"),
        ("--nvml-wait-seconds=0", "nvml-wait-seconds: found 0.0, expected 0.1 to 600"),
        ("--health-quiet-seconds=-1", "health-quiet-seconds: found -1.0, expected 0 to 86400"),
        ("--metrics-shares=x", "metrics-shares: found 'x', expected a whole number"),
        ("--health-xid-clear-seconds=nan", "health-xid-clear-seconds: found nan, expected"),
        ("--health-ignored-xids=13,", "health-ignored-xids: found '13,', expected numbers"),
        ("--health-critical-xids=all", "health-critical-xids: found 'all', expected numbers"),
        ("--status-page=yes", "status-page: found 'yes', expected one of off, loopback, on"),
        ("--health-taint=None", "health-taint: found 'None', expected one of NoSchedule"),
        *(
            (f"--disable-provider={value}", f"disable-provider: found {value!r}, expected names")
            for value in ("rack;row", "rack,", "Rack", "a b")
        ),
        ("--health-events=no", "health-events: found 'no', expected one of true, false"),
    ],
)
def test_a_wrong_value_is_an_error_with_flag_found_and_expected(flag: str, text: str) -> None:
    assert refusal(flag).startswith(text)


@pytest.mark.parametrize("text", ["", ":8081", "127.0.0.1:8081", "localhost:0", "[::1]:65535"])
def test_pages_are_served_at_an_address_of_one_machine_or_all_or_nowhere(text: str) -> None:
    assert given(f"--health-address={text}").health_address == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1: low", "found 1, expected the name of a setting .--help lists them"),
        ("qos: [low]", "qos: found a list of 1, expected text or a number"),
        ("qos: {a: b}", "qos: found a dict of 1, expected text or a number"),
        ("qos: !!int many", "line 1: invalid literal.*, expected YAML"),
        ("qos: null", "qos: found None, expected text or a number"),
        ("- qos", "found list, expected a mapping"),
        ("", "found NoneType, expected a mapping"),
        ("qos: [", ".*line 1"),
        ("qos: a: b", ".*line 1"),
        ("!!python/object/apply:os.getpid []", ".*could not determine a constructor"),
        ("? [a]\n: b", ".*found unhashable key"),
    ],
)
def test_a_wrong_file_is_a_one_line_error(tmp_path: Path, text: str, expected: str) -> None:
    flag = config(tmp_path, text)

    error = refusal(flag)

    assert "\n" not in error
    assert re.match(f"config {tmp_path}/settings.yaml: {expected}", error)


def test_an_unreadable_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"qos: \xe9")

    assert refusal(f"--config={tmp_path}/missing.yaml").endswith(
        "No such file or directory, expected a readable YAML file"
    )
    assert "Is a directory" in refusal(f"--config={tmp_path}")
    assert "unexpected end of data" in refusal(f"--config={tmp_path}/latin.yaml")


def test_health_rules_follow_from_the_settings() -> None:
    chosen = given(
        *("--health-ignored-xids", "79,119", "--health-critical-xids", "13"),
        *("--health-quiet-seconds", "60"),
    )

    rules = node_parts.health_rules(chosen)

    assert node_parts.health_rules(given()) == HealthRules()
    effects = [node_parts.taint_effect(given(f"--health-taint={each}")) for each in TAINTS]
    assert effects == ["NoSchedule", "NoExecute", ""]
    assert rules.quiet_seconds == 60.0
    assert [code for code in (13, 31, 48, 79, 119) if rules.xids.marks_card(code)] == [13, 48]


@pytest.mark.parametrize("enforcer", ["hami-core", "mps"])
@pytest.mark.parametrize("expansion", ["--vram-expand-to-host-mem", "--vram-expand-to-host-disk"])
def test_memory_expansion_is_refused_for_enforcers_that_cannot_expand(
    enforcer: str, expansion: str
) -> None:
    expected = f"enforcer: found {enforcer}, which cannot expand a GPU's memory, expected tensor-f"

    assert refusal(f"--enforcer={enforcer}", f"{expansion}=1").startswith(expected)
    for flags in (
        ("--enforcer=tensor-fusion", f"{expansion}=1"),
        (f"--enforcer={enforcer}", "--tflops-oversell-ratio=200"),
    ):
        assert given(*flags).oversubscription is not None


def test_the_data_disk_defaults_to_the_kubelets() -> None:
    assert str(given("--kubelet-root=/k").disk_folder) == "/k"
    assert str(given("--kubelet-root=/k", "--data-dir=/big").disk_folder) == "/big"


def test_device_nodes_of_a_folder_and_of_a_driver_container_have_their_paths_on_the_host(
    tmp_path: Path,
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    root, folder = given(f"--driver-root={tmp_path}"), given(f"--dev-dir={tmp_path}/dev")
    root = replace(root, driver_root_on_host="/run/nvidia/driver")

    assert node_parts.device_nodes(root).of_card(0) == ("/run/nvidia/driver/dev/nvidia0",)
    assert node_parts.device_nodes(folder).of_card(0) == (f"{tmp_path}/dev/nvidia0",)


@pytest.mark.parametrize(
    ("given", "candidates", "bridge"),
    [
        ({"enforcer": "none"}, ("none",), ""),
        ({}, AUTO, DEVICE_PLUGINS),
        ({"kubelet_root": "/k"}, AUTO, "/k/device-plugins"),
        ({"enforcer": "mps,hami-core"}, ("mps", "hami-core"), ""),
        ({"enforcer": "mps,tensor-fusion"}, ("mps", "tensor-fusion"), DEVICE_PLUGINS),
        ({"enforcer": "tensor-fusion"}, ("tensor-fusion",), ""),
        ({"enforcer": "tensor-fusion", "hypervisor_sockets": "/s"}, ("tensor-fusion",), "/s"),
        (
            {"enforcer": "mps,auto"},
            ("mps", *(each for each in AUTO if each != "mps")),
            DEVICE_PLUGINS,
        ),
        ({"simulated_gpus": "1xT4"}, ("tensor-fusion",), ""),
        ({"simulated_gpus": "1xT4", "enforcer": "mps"}, ("mps",), ""),
    ],
)
def test_candidates_and_the_bridge_to_the_hypervisor_follow_from_the_enforcer(
    given: dict[str, Any], candidates: tuple[str, ...], bridge: str
) -> None:
    settings = Settings(node_name="node-01", **given)
    hypervisor = node_parts.enforcers(settings)["tensor-fusion"]

    assert isinstance(hypervisor, TensorFusion)
    assert (settings.candidates, hypervisor.bridge) == (candidates, bridge)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"enforcer": ""}, "enforcer: found '', expected names with commas"),
        ({"enforcer": "mps,mpss"}, "enforcer: found 'mpss', expected one of"),
        ({"enforcer": "mps,none"}, "enforcer: found mps,none, expected none to be alone"),
        (
            {"enforcer": "none", "require_enforcement": True},
            "require-enforcement: found true and enforcer none, expected false",
        ),
        (
            {"enforcer": "hami-core,mps", "vram_expand_to_host_mem": 50},
            "enforcer: found hami-core, mps, which cannot expand",
        ),
    ],
)
def test_settings_that_leave_no_enforcer_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        Settings(node_name="node-01", **given)
