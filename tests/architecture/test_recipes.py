"""The recipes of docs/develop.md, followed literally in a copy, add what they say."""

import json
import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import helm, markdown, wheels
from tests.support.markdown import ROOT

PAGE: Final = markdown.text(ROOT / "docs" / "develop.md")
STEP: Final = re.compile(r"^\d\. .*\n(?:(?: .*)?\n)*", re.MULTILINE)
FILE: Final = re.compile(r"in `([\w/]+\.(?:py|md))`")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns(".?*", "__pycache__", "dist", "build", "recordings")
    return Path(shutil.copytree(ROOT, tmp_path / "project", symlinks=True, ignore=ignored))


def steps(recipe: str) -> list[str]:
    return STEP.findall(markdown.marked(PAGE, recipe))


def follow(step: str, copy: Path) -> None:
    """Make the change of a step: a new file, or diffs whose lines are there exactly once."""
    text = textwrap.dedent(step.partition("\n")[2])
    named = FILE.search(step)
    assert named, f"found no file in {step!r}"
    file = copy / named[1]
    diffs, whole = markdown.blocks(text, "diff"), markdown.blocks(text, "python")
    assert diffs or whole
    for content in whole:
        assert not file.exists()
        file.write_text(content, encoding="utf-8")
    for diff in diffs:
        lines = diff.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        before = file.read_text(encoding="utf-8")
        assert before.count(old) == 1, f"{named[1]}: found {before.count(old)} of {old!r}"
        file.write_text(before.replace(old, new), encoding="utf-8")


PUBLISHED: Final = """
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
(device,) = published_devices(gpu(brand="NVIDIA RTX"))
print(device.attributes_as_api()["brand"])
"""


@pytest.mark.process
def test_an_attribute_is_published_and_its_tests_pass_after_the_steps_and_not_before_the_last(
    copy: Path, tmp_path: Path
) -> None:
    surroundings: dict[str, Any] = {"home": tmp_path, "folder": copy, "path": str(copy)}
    (command,) = markdown.commands(markdown.marked(PAGE, "attribute recipe"))
    program, *arguments = shlex.split(command.line)
    assert program == ".venv/bin/python"
    *first, last = steps("attribute recipe")

    for step in first:
        follow(step, copy)
    with pytest.raises(AssertionError, match="documented_room"):
        wheels.python(*arguments, **surroundings)
    follow(last, copy)
    ended = wheels.python("-c", PUBLISHED, **surroundings)
    wheels.python(*arguments, **surroundings)

    assert ended.stdout == "{'string': 'NVIDIA RTX'}\n"


SIXTH: Final = """
import json, tempfile
from pathlib import Path
from urllib.request import urlopen
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.enforcers import registered
from tests.support import helm

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
def test_a_sixth_enforcer_is_its_file_its_line_and_what_is_written_of_it(
    copy: Path, tmp_path: Path
) -> None:
    surroundings: dict[str, Any] = {"home": tmp_path, "folder": copy, "path": str(copy)}
    surroundings["HELM"] = helm.program()
    *changes, written = steps("enforcer recipe")

    for step in changes:
        follow(step, copy)
    for command in markdown.commands(textwrap.dedent(written.partition("\n")[2])):
        wheels.python(command.line, **surroundings)
    ended = wheels.python("-c", SIXTH, **surroundings)
    wheels.python("-m", "pytest", "tests/app/shared/test_node_settings.py", **surroundings)
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
    assert "| `sixth-root=/run/sixth` |" in (copy / "docs" / "settings.md").read_text()
    assert "path: /run/sixth" in (copy / "daemonset" / "install" / "nvidia.yaml").read_text()
    assert said["page"]["sixth"] == "the sixth daemon"
    assert "(nvidia, hami-core, mps, sixth)" in said["hard"]
    assert "hami-core or mps or sixth, which keep equal ones only" in said["containers"]
