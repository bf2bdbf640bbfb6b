"""Check of the container runtime's configuration, which is read as the runtime reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.app.doctor import runtime
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.errors import RetryableError
from tests.app.doctor.here import context, worst
from tests.support.canned_api import CannedApi, served

NODE = "GET /api/v1/nodes/node-01"
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.fixture
def canned() -> Iterator[CannedApi]:
    with served({}) as api:
        yield api


def write(folder: Path, path: str, text: str) -> None:
    file = folder / "host" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def cdi_findings(
    canned: CannedApi, folder: Path, version: str, *, in_pod: bool = False
) -> list[Finding]:
    canned.answers[NODE] = {
        "metadata": {"name": "node-01"},
        "status": {"nodeInfo": {"containerRuntimeVersion": version}},
    }
    api = Api(canned.kubeconfig(folder / "kubeconfig"))
    root = Path("/") if in_pod else folder / "host"
    here = context(folder, api=api, in_pod=in_pod, host_root=root, cdi_dir="/var/run/cdi")
    return list(runtime.cdi(here))


def test_relative_absolute_and_pattern_imports_of_containerd_are_read(
    canned: CannedApi, tmp_path: Path
) -> None:
    main = 'imports = ["conf.d/*.toml", "/etc/more.toml", "/etc/containerd/config.toml"]\n'
    write(tmp_path, "etc/containerd/config.toml", main + CRI + "enable_cdi = false\n")
    write(tmp_path, "etc/containerd/conf.d/cdi.toml", CRI + "enable_cdi = true\n")
    write(tmp_path, "etc/more.toml", "version = 2\n")

    enabled, _ = cdi_findings(canned, tmp_path, "containerd://1.7.24")

    assert enabled.level is Level.OK
    assert "conf.d/cdi.toml" in enabled.found


def test_an_old_containerd_without_enable_cdi_is_a_problem(
    canned: CannedApi, tmp_path: Path
) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 2\n")

    assert worst(cdi_findings(canned, tmp_path, "containerd://1.7.24")) is Level.PROBLEM


def test_a_distributions_own_file_takes_precedence_over_the_usual_one(
    canned: CannedApi, tmp_path: Path
) -> None:
    write(tmp_path, "etc/containerd/config.toml", CRI + "enable_cdi = false\n")
    k3s = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    write(tmp_path, k3s, CRI + "enable_cdi = true\n")

    assert worst(cdi_findings(canned, tmp_path, "containerd://1.7.24")) is Level.OK


def test_in_a_pod_the_images_files_are_not_taken_for_the_hosts(
    canned: CannedApi, tmp_path: Path
) -> None:
    (finding,) = cdi_findings(canned, tmp_path, "containerd://1.7.24", in_pod=True)

    assert finding.level is Level.COULD_NOT_LOOK


def test_invalid_toml_is_an_error_with_the_files_path(canned: CannedApi, tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = = 2")

    with pytest.raises(RetryableError, match=r"config\.toml: .*expected TOML"):
        cdi_findings(canned, tmp_path, "containerd://2.1.9")
