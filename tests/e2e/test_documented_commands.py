"""The commands of docs/install.md, use.md and maintain.md, typed on a cluster without the driver.

The blocks are read from the pages; a comment before each says in which way of installing
it runs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core import names
from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import LABEL_NODE_PLUGIN
from tests.support import markdown
from tests.support.markdown import INSTALL, MAINTAIN, ROOT, USE, WAYS, Block

pytestmark = [pytest.mark.documents, pytest.mark.timeout(1200)]

AFTER_USE = ("Upgrade", "Uninstall")
"""The sections of docs/install.md that are read after docs/use.md."""

LEFT_BEHIND = (
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "DeviceClass",
    "ResourceClaimTemplate",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)
"""Kinds of which an uninstallation might leave an object behind, besides slices."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of the pages, who types their commands in the root of a checkout.

    Attributes:
        folder: Looks like the root of the checkout; files that the page has the reader write go
            here instead.
        placeholders: What the reader types for the words in capitals.
    """

    folder: Path
    env: Mapping[str, str]
    placeholders: Mapping[str, str]

    def follow(self, block: Block) -> None:
        """Type the commands of a block, or write its file."""
        text = self._filled(block.text)
        if block.file:
            # The page says to add it to the file.
            file = self.folder / block.file
            before = yaml.safe_load(file.read_text()) if file.exists() else {}
            file.write_text(yaml.safe_dump(_merged(before, yaml.safe_load(text))))
            return
        for command in block.commands():
            self._type(block.place, self._filled(command.line), command.output)

    def run(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Type a command; return how it ended, with both of its outputs in one."""
        print(f"$ {line}", flush=True)
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        print(ended.stdout, flush=True)
        return ended

    def _type(self, place: str, line: str, shown: tuple[str, ...]) -> None:
        print(place)
        ended = self.run(line)
        assert ended.returncode == 0, f"{place}: {line}: exit code {ended.returncode}"
        assert "NotFound" not in ended.stdout
        if shown:
            assert markdown.is_shown(shown, ended.stdout.splitlines()), (
                f"{place}: {line}: expected the output that the page shows"
            )

    def _filled(self, text: str) -> str:
        for word, meant in self.placeholders.items():
            text = text.replace(word, meant)
        return text


def _merged(before: Any, added: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(added, dict):
        return added
    return {
        **before,
        **{
            key: _merged(before[key], value) if key in before else value
            for key, value in added.items()
        },
    }


@pytest.fixture
def reader(bare_cluster: Cluster, kubeconfig: str, tmp_path: Path) -> Iterator[Reader]:
    team = f"e2e-{uuid.uuid4().hex[:8]}"
    bare_cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    folder, programs = tmp_path / "checkout", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name in ("daemonset", "docs", "hack", "tensorfusion_dra"):
        (folder / name).symlink_to(ROOT / name)
    helm = os.environ.get("HELM") or shutil.which("helm")
    assert helm, "helm: found none on PATH and no variable HELM (hack/tool has Go build it)"
    (programs / "helm").symlink_to(Path(helm).resolve())
    # What `pip install .` provides.
    command = programs / "tensorfusion-dra"
    python = shlex.join([sys.executable, "-P", "-m", "tensorfusion_dra"])
    command.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {python} "$@"\n')
    command.chmod(0o755)
    (programs / "kubectl-tensorfusion").symlink_to(command)
    yield Reader(
        folder=folder,
        env={**os.environ, "KUBECONFIG": kubeconfig, "PATH": f"{programs}:{os.environ['PATH']}"},
        placeholders={"TEAM": team},
    )
    bare_cluster.delete("Namespace", team)


@pytest.mark.parametrize("way", WAYS)
def test_commands_of_the_pages_install_use_and_uninstall(
    way: str, bare_cluster: Cluster, reader: Reader
) -> None:
    install = [block for block in markdown.typed_blocks(INSTALL) if way in block.ways]
    use = [
        block
        for page in (USE, MAINTAIN)
        for block in markdown.typed_blocks(page)
        if way in block.ways
    ]
    before = [block for block in install if block.section not in AFTER_USE]
    after = [block for block in install if block.section in AFTER_USE]
    team = reader.placeholders["TEAM"]

    for block in before:
        reader.follow(block)

    bare_cluster.until("slices of every node", lambda: _all_publish(bare_cluster), seconds=60)
    assert bare_cluster.find("ResourceClaimTemplate", names.CLAIM_TEMPLATE, namespace=team), (
        "the claim template"
    )

    place = _card(bare_cluster)
    for block in (*use, *after):
        replace(reader, placeholders={**reader.placeholders, **place}).follow(block)

    bare_cluster.until(
        "nothing to be left behind",
        lambda: not _left_behind(bare_cluster),
        seconds=120,
        diagnose=lambda: "\n".join(_left_behind(bare_cluster)),
    )


def test_image_that_cannot_be_pulled_is_named_by_doctor_and_by_the_uninstallation(
    bare_cluster: Cluster, reader: Reader
) -> None:
    namespace = "tensorfusion-dra"
    release = f"helm {{}} tensorfusion-dra --namespace {namespace}"
    values = (
        "--set nvidia.enabled=false,settings.simulated-gpus=1xT4,image.repository=image.invalid/a"
    )
    chart = f"{release.format('install')} daemonset/chart --create-namespace {values}"
    assert reader.run(chart).returncode == 0
    try:
        found = bare_cluster.until(
            "the doctor to name the image",
            lambda: (
                text
                if "image.invalid/a" in (text := reader.run("tensorfusion-dra doctor").stdout)
                else None
            ),
            seconds=120,
        )
        ended = reader.run(release.format("uninstall"))

        assert re.search(
            "pod tensorfusion-dra/.*: node-plugin: (ErrImagePull|ImagePullBackOff)", found
        )
        assert ended.returncode != 0
        assert "job tensorfusion-dra-image-pull failed: DeadlineExceeded" in ended.stdout
    finally:
        reader.run(f"{release.format('uninstall')} --no-hooks")
        bare_cluster.delete("Namespace", namespace)
        bare_cluster.until(
            "its namespace to be gone",
            lambda: bare_cluster.find("Namespace", namespace) is None,
            seconds=120,
        )


def _card(cluster: Cluster) -> dict[str, str]:
    """Return what a reader types for a node and one of its cards."""
    item = cluster.objects("ResourceSlice", fieldSelector=f"spec.driver={names.DRIVER}")[0]
    device = item["spec"]["devices"][0]["name"]
    return {"NODE/GPU": f"{item['spec']['nodeName']}/{device}", "NODE": item["spec"]["nodeName"]}


def _all_publish(cluster: Cluster) -> bool:
    """Return True if each node has a ready node plugin and slices."""
    (daemonset,) = cluster.objects("DaemonSet", labelSelector=LABEL_NODE_PLUGIN)
    nodes = {node["metadata"]["name"] for node in cluster.objects("Node")}
    slices = cluster.objects("ResourceSlice", fieldSelector=f"spec.driver={names.DRIVER}")
    return daemonset["status"]["numberReady"] == len(nodes) and nodes == {
        item["spec"]["nodeName"] for item in slices
    }


def _left_behind(cluster: Cluster) -> list[str]:
    """Return what is left of an installation."""
    found: list[tuple[str, Json]] = [
        (kind, item)
        for kind in LEFT_BEHIND
        for item in cluster.objects(kind)
        if item["metadata"]["name"].startswith(("tensorfusion-dra", "tensor-fusion"))
    ]
    slices = cluster.objects("ResourceSlice", fieldSelector=f"spec.driver={names.DRIVER}")
    found += [("ResourceSlice", item) for item in slices]
    return [f"{kind} {item['metadata']['name']}" for kind, item in found]
