"""The node plugin's process exposes neither its private files nor secrets in its log."""

import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_simulator.api.faults import ANY, Action, Cut, Expire, Garble, Refuse
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.support.kubelet import PluginClient
from tests.support.node_plugin_process import cluster_with, run_pod, start

pytestmark = pytest.mark.process

TOKEN = "eyJhbGciOiJSUzI1NiJ9.s3cr3t-of-the-node-plugin.c2lnbmF0dXJl"
ECHO = f"GET / HTTP/1.1 Authorization: Bearer {TOKEN} Accept: application/json token={TOKEN}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has a token and logs at level debug."""
    with cluster_with() as running:
        kubeconfig = running.folder / "kubeconfig"
        document = json.loads(kubeconfig.read_text())
        document["users"][0]["user"] = {"token": TOKEN}
        kubeconfig.write_text(json.dumps(document))
        running.plugin_flags.extend(["--log-level", "debug"])
        start(running, "pod-1")
        yield running


def modes(folder: Path) -> dict[str, str]:
    """Return the mode of each file by relative path; paths of folders end in a slash."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": oct(
            stat.S_IMODE(path.lstat().st_mode)
        )
        for path in sorted(folder.rglob("*"))
    }


def test_only_cdi_specs_and_limits_are_readable_by_other_users(cluster: SimulatedCluster) -> None:
    ref = run_pod(cluster, "a")

    private = modes(cluster.kubelet_root / "plugins")
    assert {"/", "/dra-pod-1.sock", f"/claims/{ref.uid}.json"} <= {
        path.removeprefix(names.DRIVER) for path in private
    }
    for path, mode in private.items():
        assert mode == ("0o700" if path.endswith("/") else "0o600")
    assert set(modes(cluster.kubelet_root / "plugins_registry").values()) == {"0o600"}
    assert modes(cluster.cdi_folder) == {f"{names.CDI_FILE_PREFIX}{ref.uid}.json": "0o644"}
    limits = modes(cluster.folder / "tensor-fusion" / "claims")
    assert limits == {f"{ref.uid}.json": "0o444"}


def test_neither_tokens_nor_whole_objects_are_logged(cluster: SimulatedCluster) -> None:
    run_pod(cluster, "b")
    faults, before = cluster.server.faults, len(cluster.spec_files())
    socket = cluster.kubelet_root / "plugins" / names.DRIVER / "dra-pod-1.sock"
    claim_faults: tuple[Action, ...] = (Refuse(403, ECHO), Refuse(500, ECHO), Cut())
    for number, fault in enumerate(claim_faults):
        faults.add("get", "resourceclaims", fault, name=f"a-{number}")
    refs = [ClaimRef(namespace="default", name=f"a-{n}", uid=f"u{n}") for n in range(3)]
    with PluginClient(socket) as kubelet:
        with ThreadPoolExecutor(len(refs)) as side_by_side:
            list(side_by_side.map(kubelet.prepare, refs))
        kubelet.prepare(ClaimRef(namespace="../..", name="\x1b[2J", uid="../../etc"))
    for slice_fault in (Refuse(403, ECHO), Refuse(500, ECHO), Expire(), Garble()):
        faults.add("watch", "resourceslices", slice_fault, times=1)
    faults.add(ANY, "resourceslices", Refuse(500, ECHO), times=3)
    cluster.kubelet.stop()
    cluster.start_kubelet(wipe_slices=True)
    log_file = cluster.log_file_of("pod-1")
    cluster.until("refusals logged", lambda: log_file.read_text().count("<hidden>") >= 3)
    faults.clear()
    cluster.until("back", lambda: bool(cluster.slices()))
    cluster.delete("b")
    cluster.until("unprepared", lambda: len(cluster.spec_files()) < before)
    cluster.stop_plugin("pod-1")

    log = log_file.read_text()

    of_objects = ("managedFields", "apiVersion", "consumedCapacity", "resourceVersion")
    assert [part for part in (TOKEN, "s3cr3t", *of_objects) if part in log] == []
    for line in log.splitlines():
        assert isinstance(json.loads(line), dict)
        assert len(line) < 2000
        assert line.isprintable()
