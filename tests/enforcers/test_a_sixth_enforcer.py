"""A sixth enforcer of one file, in a copy of the project: its file and its line, and nothing else.

The copy gets both, and what hack/settings-docs and `make manifests` write. A program in it then
says where the enforcer is known.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import wheels
from tests.support.helm import ROOT, program

ENFORCER: Final = """
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Edits, Enforcer, EnforcerFacts, Needs, Sign
from tensorfusion_dra.core.settings import setting
from tensorfusion_dra.enforcers.declaration import Declaration

SIXTH = Declaration(
    name="sixth",
    path="sixth:Sixth",
    facts=EnforcerFacts(
        keeper="the sixth daemon",
        enforces_hard=True,
        equal_only=True,
        remedy="start the sixth daemon",
    ),
    settings={"sixth_root": setting("/run/sixth", "Folder of the sixth daemon.", is_path=True)},
    pod={
        "folder": {"name": "sixth", "setting": "sixth-root", "about": "The sixth daemon's pipe."},
        "written": "sixth/claims",
    },
)


class Sixth(Enforcer):
    name = SIXTH.name
    facts = SIXTH.facts

    def __init__(self, root):
        self.root = root

    @classmethod
    def from_settings(cls, settings):
        return cls(settings.values["sixth-root"])

    def needs(self, claim):
        return Needs()

    def edits(self, claim, shares):
        return Edits(env={names.ENV_ISOLATION_MODE: shares[0].isolation.value})

    def sign(self):
        return Sign(verdict=verdicts.enforced("SixthAlive", f"the sixth daemon is in {self.root}"))
"""
PROGRAM: Final = """
import json, sys, tempfile
from pathlib import Path
from urllib.request import urlopen
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.enforcers import registered
from tests.support import helm, installation

absent = "/nowhere"
nobody = {
    "node_name": "node-01", "kubelet_root": absent, "tensor_fusion_root": absent,
    "hami_core_library": f"{absent}/lib.so", "mps_root": absent, "sixth_root": "/nowhere/sixth",
}

def chosen(enforcer):
    found = node_parts.node_enforcer(Settings(**nobody, enforcer=enforcer)).of_new_claim()
    return [found.enforcer, found.sign.verdict.text]

def plugin(**settings):
    documents = helm.render({"settings": settings})
    (found,) = [each for each in documents if each["kind"] == "DaemonSet"]
    pod = found["spec"]["template"]["spec"]
    volumes = {each["name"]: [*each["hostPath"].values()] for each in pod["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    (written,) = [
        each["value"] for each in pod["initContainers"][0]["env"] if each["name"] == "WRITTEN"
    ]
    return [volumes.get("sixth"), mounts.get("sixth"), written.split()]

installation.DECLARED.write_text(installation.declared())
with tempfile.TemporaryDirectory(prefix="tft-") as folder:
    cluster = SimulatedCluster(Path(folder), gpus="1xT4")
    cluster.start()
    try:
        cluster.serve_pages()
        cluster.start_plugin()
        cluster.until("published", lambda: bool(cluster.slices()))
        with urlopen(f"{cluster.pages_url}status.json", timeout=60) as page:
            keepers = dict(json.load(page)["keepers"])
    finally:
        cluster.stop()
print(json.dumps({
    "named": chosen("sixth"),
    "auto": chosen("auto"),
    "candidates": Settings(**nobody).candidates,
    "chart": plugin(),
    "chart, named": plugin(enforcer="sixth", **{"sixth-root": "/var/sixth"}),
    "chart, another": plugin(enforcer="hami-core"),
    "page": keepers,
    "hard": registered.HARD_NEEDS,
    "containers": pod_admission.of_containers(registered.names_with("equal_only")),
}))
"""


@pytest.mark.process
def test_a_sixth_enforcer_is_its_file_and_its_line(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("tensorfusion_dra", "dra_simulator", "tests", "daemonset", "docs", "hack"):
        ignored = shutil.ignore_patterns("__pycache__", "recordings", "guide")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", copy)
    enforcers = copy / "tensorfusion_dra" / "enforcers"
    (enforcers / "sixth.py").write_text(ENFORCER)
    registry = enforcers / "registered.py"
    text = registry.read_text()
    line = "        none.DECLARATION,\n"
    assert line in text
    registered = text.replace(line, f"        sixth.SIXTH,\n{line}")
    registry.write_text(registered.replace("import none\n", "import none, sixth\n"))
    surroundings: dict[str, Any] = {"home": tmp_path, "folder": copy, "path": str(copy)}

    wheels.python("hack/settings-docs", **surroundings)
    ended = wheels.python("-c", PROGRAM, HELM=program(), **surroundings)
    said = json.loads(ended.stdout.splitlines()[-1])

    alive = ["sixth", "the sixth daemon is in /nowhere/sixth"]
    assert (said["named"], said["auto"], said["candidates"][-1]) == (alive, alive, "sixth")
    assert said["chart"] == [
        ["/run/sixth", "DirectoryOrCreate"],  # a missing one keeps no pod from starting
        "/run/sixth",
        ["shm", "hami-core/claims", "sixth/claims"],
    ]
    assert said["chart, named"] == [
        ["/var/sixth", "DirectoryOrCreate"],
        "/var/sixth",
        ["sixth/claims"],
    ]
    assert said["chart, another"] == [None, None, ["hami-core/claims"]]
    assert said["page"]["sixth"] == "the sixth daemon"
    assert "(nvidia, hami-core, mps, sixth)" in said["hard"]
    assert "hami-core or mps or sixth, which keep equal ones only" in said["containers"]
