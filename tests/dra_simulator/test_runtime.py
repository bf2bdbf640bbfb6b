"""CDI specs and the containers that a runtime creates from them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_simulator import runtime
from dra_simulator.runtime import Container, ContainerError, DeviceNode, Mount
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError

Json = dict[str, Any]

KIND = "example.com/gpu"


def cdi_spec(*devices: Json, version: str = "0.5.0", **fields: Any) -> Json:
    """Return a CDI spec."""
    return {"cdiVersion": version, "kind": KIND, "devices": list(devices), **fields}


def cdi_device(name: str = "a", **edits: Any) -> Json:
    """Return a device of a spec, which sets a variable unless it has other edits."""
    return {"name": name, "containerEdits": edits or {"env": ["A=1"]}}


def write(folder: Path, *devices: Json, name: str = "spec.json", **fields: Any) -> Path:
    """Write a spec to a file and return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(cdi_spec(*devices, **fields)))
    return path


def container(names: str, *folders: Path) -> Container:
    """Return a container with the devices of these one-letter names."""
    ids = [f"{KIND}={name}" for name in names]
    return runtime.container(ids, folders, env={"HOME": "/", "B": "0"})


def test_spec_edits_apply_once_and_before_those_of_the_devices(tmp_path: Path) -> None:
    shared = {"env": ["ORDER=spec", "SPEC=1"], "mounts": []}
    first, second = cdi_device("a", env=["ORDER=a"]), cdi_device("b", env=["B=1", "SPEC=2"])
    write(tmp_path, first, second, containerEdits=shared)

    made = container("ab", tmp_path)

    # If the spec's edits applied again with device b, ORDER would have the spec's value.
    assert [*made.env.items()] == [("HOME", "/"), ("B", "1"), ("ORDER", "a"), ("SPEC", "2")]


def test_repeated_cdi_id_counts_once(tmp_path: Path) -> None:
    write(tmp_path, cdi_device("a", env=["A=a"]), cdi_device("b", env=["A=b"]))

    assert container("aba", tmp_path).env["A"] == "b"


def test_device_node_and_mount_at_the_same_path_replace_the_earlier(tmp_path: Path) -> None:
    devices = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        node = {"path": "/dev/gpu", "hostPath": f"/{name}", "type": "c", "major": 195, "minor": 0}
        mount = {"hostPath": f"{tmp_path}/{name}", "containerPath": "/lib/x", "options": ["ro"]}
        devices.append(cdi_device(name, deviceNodes=[node], mounts=[mount]))
    write(tmp_path, *devices)

    made = container("ab", tmp_path)

    assert made.device_nodes == (DeviceNode(path="/dev/gpu", host_path="/b", kind="c"),)
    expected = Mount(host_path=f"{tmp_path}/b", container_path="/lib/x", options=("ro",))
    assert made.mounts == (expected,)


def test_device_node_without_type_gets_the_type_of_the_hosts_node(tmp_path: Path) -> None:
    pipe = tmp_path / "gpu0"
    os.mkfifo(pipe)
    nodes = [{"path": "/dev/gpu0", "hostPath": str(pipe), "permissions": "rw"}]
    write(tmp_path, cdi_device(deviceNodes=nodes))

    expected = DeviceNode(path="/dev/gpu0", host_path=str(pipe), kind="p", permissions="rw")
    assert container("a", tmp_path).device_nodes == (expected,)


@pytest.mark.parametrize("create", [lambda _: None, Path.touch, os.mkfifo])
def test_container_with_missing_or_wrong_host_device_is_not_created(
    tmp_path: Path, create: Callable[[Path], None]
) -> None:
    host = tmp_path / "gpu0"
    create(host)
    entry = {"path": "/dev/gpu0", "hostPath": str(host), "type": "c"}
    write(tmp_path, cdi_device(deviceNodes=[entry]))

    with pytest.raises(ContainerError, match=f"CDI host device {host}: "):
        container("a", tmp_path)


@pytest.mark.parametrize(
    ("names", "edits", "fields", "error"),
    [
        (
            "a",
            {"mounts": [{"hostPath": "/nowhere", "containerPath": "/lib/x"}]},
            {},
            "error mounting .*/nowhere.* to rootfs at /lib/x",
        ),
        ("ab", {}, {}, r"unresolvable CDI devices example\.com/gpu=b$"),
        ("a", {}, {"version": "9.0.0"}, "unresolvable .*gpu=a; /.*/spec.json: .*cdiVersion"),
    ],
    ids=["mount source", "missing device", "invalid spec"],
)
def test_container_is_not_created_and_the_error_names_what_is_missing(
    tmp_path: Path, names: str, edits: Json, fields: Json, error: str
) -> None:
    write(tmp_path, cdi_device("a", **edits), **fields)

    with pytest.raises(ContainerError, match=error):
        container(names, tmp_path)


def test_later_folder_overrides_earlier_one(tmp_path: Path) -> None:
    for name in ("etc", "run"):
        write(tmp_path / name, cdi_device(env=[f"FROM={name}"]))

    made = container("a", tmp_path / "etc", tmp_path / "run", tmp_path / "absent")

    assert made.env["FROM"] == "run"


def test_device_in_two_files_of_one_folder_is_not_used(tmp_path: Path) -> None:
    write(tmp_path, cdi_device("a"), cdi_device("b"), name="one.json")
    write(tmp_path, cdi_device("a"), name="two.json")

    found = runtime.cdi_devices([tmp_path])

    assert set(found.devices) == {f"{KIND}=b"}
    assert all("conflicting device" in error for error in found.errors.values())


def test_other_files_are_ignored_and_invalid_ones_are_reported(tmp_path: Path) -> None:
    write(tmp_path, cdi_device("a"))
    good = (
        "cdiVersion: 0.3.0\nkind: example.com/net\n"
        "devices: [{name: n, containerEdits: {env: ['N=1']}}]\n"
    )
    files = {".a.json.tmp": "{", "broken.json": "{", "list.yaml": "- a\n", "good.yaml": good}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    found = runtime.cdi_devices([tmp_path])

    assert set(found.devices) == {f"{KIND}=a", "example.com/net=n"}
    assert {path.name for path in found.errors} == {"broken.json", "list.yaml"}


NODE = {"path": "/dev/x", "type": "c", "major": 1}
MOUNT = {"hostPath": "/x", "containerPath": "/x"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            cdi_spec(cdi_device(), version="0.2.0"),
            "cdiVersion: found '0.2.0', expected one of 0.3.0",
        ),
        (cdi_spec(cdi_device(), version="1.2.0"), "cdiVersion: found '1.2.0'"),
        (
            cdi_spec(cdi_device(), kind="example.com"),
            "kind: found 'example.com', expected vendor/class",
        ),
        (cdi_spec(cdi_device(), kind="1x/gpu"), "kind"),
        (cdi_spec(cdi_device(), kind="example.com/gpu-"), "kind"),
        (cdi_spec(), "invalid spec, no devices"),
        (cdi_spec(cdi_device("a"), cdi_device("a")), "multiple device a"),
        (cdi_spec(cdi_device("-a")), "invalid device name '-a'"),
        (cdi_spec({"name": "a"}), "empty device edits"),
        (cdi_spec(cdi_device(env=[])), "empty device edits"),
        (cdi_spec(cdi_device(), hooks=[]), "spec: unknown field hooks"),
        (cdi_spec({**cdi_device(), "extra": 1}), "device a: unknown field extra"),
        (cdi_spec(cdi_device(devices=[1])), "unknown field devices"),
        (cdi_spec(cdi_device(deviceNodes=[{**NODE, "gpu": 1}])), "deviceNodes: unknown field gpu"),
        (cdi_spec(cdi_device(env=["A"])), "invalid environment variable 'A'"),
        (cdi_spec(cdi_device(env=["=A"])), "invalid environment variable '=A'"),
        (cdi_spec(cdi_device(deviceNodes=[{"path": ""}])), "deviceNodes: empty path"),
        (cdi_spec(cdi_device(deviceNodes=[{**NODE, "type": "x"}])), "invalid type 'x'"),
        (
            cdi_spec(cdi_device(deviceNodes=[{**NODE, "permissions": "rx"}])),
            "invalid permissions 'rx'",
        ),
        (
            cdi_spec(cdi_device(hooks=[{"hookName": "later", "path": "/x"}])),
            "invalid hook name 'later'",
        ),
        (cdi_spec(cdi_device(hooks=[{"hookName": "poststop"}])), "hooks: empty path"),
        (cdi_spec(cdi_device(mounts=[{"hostPath": "/x"}])), "mounts: empty containerPath"),
        (cdi_spec(cdi_device(mounts=[{"containerPath": "/x"}])), "mounts: empty hostPath"),
        (
            cdi_spec(cdi_device(), containerEdits={"env": ["x"]}),
            "spec: invalid environment variable",
        ),
    ],
)
def test_invalid_spec_is_rejected(document: Json, reason: str) -> None:
    with pytest.raises(CdiError, match=reason.replace("(", "\\(")):
        runtime.devices_of(Path("spec.json"), json.dumps(document))


@pytest.mark.parametrize(
    ("needed", "before", "fields"),
    [
        ("0.4.0", "0.3.0", cdi_spec(cdi_device(mounts=[{**MOUNT, "type": "bind"}]))),
        ("0.5.0", "0.4.0", cdi_spec(cdi_device(deviceNodes=[{**NODE, "hostPath": "/x"}]))),
        ("0.5.0", "0.4.0", cdi_spec(cdi_device("0a"))),
        ("0.6.0", "0.5.0", cdi_spec(cdi_device(), annotations={"a": "b"})),
        ("0.6.0", "0.5.0", cdi_spec({**cdi_device(), "annotations": {"a": "b"}})),
        ("0.6.0", "0.5.0", cdi_spec(cdi_device(), kind="example.com/gpu.shared")),
        ("0.7.0", "0.6.0", cdi_spec(cdi_device(additionalGids=[44]))),
        ("0.7.0", "0.6.0", cdi_spec(cdi_device(intelRdt={"closID": "x"}))),
        (
            "1.1.0",
            "1.0.0",
            cdi_spec(cdi_device(netDevices=[{"hostInterfaceName": "x", "name": "y"}])),
        ),
        ("1.1.0", "1.0.0", cdi_spec(cdi_device(intelRdt={"schemata": ["x"]}))),
    ],
)
def test_feature_requires_its_cdi_version(needed: str, before: str, fields: Json) -> None:
    found = runtime.devices_of(Path("s.json"), json.dumps({**fields, "cdiVersion": needed}))
    assert len(found) == 1

    with pytest.raises(CdiError, match=f"which needs {needed}"):
        runtime.devices_of(Path("s.json"), json.dumps({**fields, "cdiVersion": before}))
