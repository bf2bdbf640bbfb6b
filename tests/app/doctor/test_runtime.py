"""Check of the container runtime's configuration, which is read as the runtime reads it."""

import tomllib
from pathlib import Path

import pytest

from tensorfusion_dra.app.doctor import runtime
from tensorfusion_dra.app.doctor.runtime import Document
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.doctor.finding import Finding, Level, worst
from tensorfusion_dra.core.errors import RetryableError
from tests.app.doctor.here import context
from tests.support.canned_api import served

NODE = "GET /api/v1/nodes/node-01"
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'


def write(folder: Path, path: str, text: str) -> None:
    file = folder / "host" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def cdi_findings(folder: Path, version: str, *, in_pod: bool = False) -> list[Finding]:
    info = {"nodeInfo": {"containerRuntimeVersion": version}}
    with served({NODE: {"metadata": {"name": "node-01"}, "status": info}}) as canned:
        api = Api(canned.kubeconfig(folder / "kubeconfig"))
        root = Path("/") if in_pod else folder / "host"
        here = context(folder, api=api, in_pod=in_pod, host_root=root, cdi_dir="/var/run/cdi")
        return list(runtime.cdi(here))


def test_relative_absolute_and_pattern_imports_of_containerd_are_read(tmp_path: Path) -> None:
    main = 'imports = ["conf.d/*.toml", "/etc/more.toml", "/etc/containerd/config.toml"]\n'
    write(tmp_path, "etc/containerd/config.toml", main + CRI + "enable_cdi = false\n")
    write(tmp_path, "etc/containerd/conf.d/cdi.toml", CRI + "enable_cdi = true\n")
    write(tmp_path, "etc/more.toml", "version = 2\n")

    enabled, _ = cdi_findings(tmp_path, "containerd://1.7.24")

    assert enabled.level is Level.OK
    assert "conf.d/cdi.toml" in enabled.found


def test_an_old_containerd_without_enable_cdi_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 2\n")

    assert worst(cdi_findings(tmp_path, "containerd://1.7.24")) is Level.PROBLEM


def test_a_distributions_own_file_takes_precedence_over_the_usual_one(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", CRI + "enable_cdi = false\n")
    k3s = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    write(tmp_path, k3s, CRI + "enable_cdi = true\n")

    assert worst(cdi_findings(tmp_path, "containerd://1.7.24")) is Level.OK


def test_in_a_pod_the_images_files_are_not_taken_for_the_hosts(tmp_path: Path) -> None:
    (finding,) = cdi_findings(tmp_path, "containerd://1.7.24", in_pod=True)

    assert finding.level is Level.COULD_NOT_LOOK


def test_invalid_toml_is_an_error_with_the_files_path(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = = 2")

    with pytest.raises(RetryableError, match=r"config\.toml: .*expected TOML"):
        cdi_findings(tmp_path, "containerd://2.1.9")


MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/gpu.toml"
OLD = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
NEW = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"


def document(text: str, path: str = MAIN) -> Document:
    return path, tomllib.loads(text)


def judged(reported: str, *documents: Document, cdi_dir: str = "/var/run/cdi") -> list[Finding]:
    _, release = runtime.release_of(reported)
    settings = None
    if documents:
        settings = runtime.containerd_settings(documents, release=release or (2, 0))
    return list(runtime.findings(reported, settings, cdi_dir=cdi_dir))


@pytest.mark.parametrize(
    ("reported", "text", "level"),
    [
        ("containerd://1.7.24", OLD + "enable_cdi = true\n", Level.OK),
        ("containerd://1.7.24", OLD, Level.PROBLEM),
        ("containerd://1.7.24", "version = 2\n", Level.PROBLEM),
        ("containerd://1.7.24", OLD + "enable_cdi = false\n", Level.PROBLEM),
        ("containerd://2.1.9", "version = 3\n", Level.OK),
        ("containerd://2.1.9", NEW, Level.OK),
        ("containerd://2.1.9", NEW + "enable_cdi = true\n", Level.OK),
        ("containerd://2.1.9", NEW + "enable_cdi = false\n", Level.PROBLEM),
        ("containerd://2.1.9", OLD + "enable_cdi = false\n", Level.PROBLEM),
        ("containerd://1.6.33", OLD + "enable_cdi = true\n", Level.PROBLEM),
    ],
)
def test_containerd_has_cdi_on_by_default_only_from_2_0(
    reported: str, text: str, level: Level
) -> None:
    assert worst(judged(reported, document(text))) is level


def test_cure_names_the_section_of_the_release_and_the_file() -> None:
    (old, _), (new, _) = (
        judged("containerd://1.7.24", document(OLD)),
        judged("containerd://2.0.0", document(NEW + "enable_cdi = false\n")),
    )

    assert 'plugins."io.containerd.grpc.v1.cri"' in old.cure
    assert 'plugins."io.containerd.cri.v1.runtime"' in new.cure
    assert MAIN in old.cure


def test_up_to_1_7_a_drop_in_replaces_the_whole_section() -> None:
    files = (document(OLD + "enable_cdi = true\n"), document(OLD + "x = 1\n", DROP_IN))

    before, after = judged("containerd://1.7.24", *files), judged("containerd://2.0.1", *files)

    assert worst(before) is Level.PROBLEM
    assert DROP_IN in before[0].found
    assert worst(after) is Level.OK


@pytest.mark.parametrize(
    ("reported", "level"),
    [
        ("containerd://1.7.24", Level.COULD_NOT_LOOK),
        ("containerd://2.1.9", Level.OK),
        ("containerd://main", Level.OK),
        ("cri-o://1.34.1", Level.OK),
        ("cri-o://1.27.0", Level.PROBLEM),
        ("docker://28.0.0", Level.NOTE),
        ("", Level.NOTE),
    ],
)
def test_runtime_whose_configuration_is_not_visible(reported: str, level: Level) -> None:
    assert [each.level for each in judged(reported)] == [level]


@pytest.mark.parametrize(
    ("folders", "cdi_dir", "level"),
    [
        ('["/etc/cdi", "/var/run/cdi"]', "/var/run/cdi", Level.OK),
        ('["/run/cdi"]', "/var/run/cdi/", Level.OK),
        ('["/etc/cdi"]', "/var/run/cdi", Level.PROBLEM),
        ("[]", "/var/run/cdi", Level.PROBLEM),
        ('["/opt/cdi"]', "/opt/cdi", Level.OK),
    ],
)
def test_runtime_must_read_the_folder_to_which_the_driver_writes(
    folders: str, cdi_dir: str, level: Level
) -> None:
    text = f"{NEW}cdi_spec_dirs = {folders}\n"

    assert worst(judged("containerd://2.1.9", document(text), cdi_dir=cdi_dir)) is level


def test_cdi_dir_outside_the_runtimes_default_folders_is_a_problem() -> None:
    found = judged("containerd://2.1.9", document("version = 3\n"), cdi_dir="/opt/cdi")

    assert worst(found) is Level.PROBLEM
    assert "--cdi-dir" in found[-1].cure
