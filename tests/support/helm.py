"""Rendering of the chart by helm, which has to be on this machine."""

import copy
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import yaml_text
from tests.support.waiting import PATIENCE_SECONDS

Document = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "daemonset" / "chart"
NAMESPACE: Final = "tensorfusion-dra"
KUBE_VERSION: Final = "1.37.0"

_RELEASE: Final = "tensorfusion-dra"


class RefusedValuesError(Exception):
    """helm refuses the values: they do not match values.schema.json, or a template fails."""


def render(
    values: Mapping[str, Any] | None = None, *, kube_version: str = KUBE_VERSION
) -> list[Document]:
    """Return the objects of a release.

    Skips the test on a machine without helm.

    Raises:
        RefusedValuesError: helm refuses the values.
    """
    return copy.deepcopy(_documents(json.dumps(values or {}), kube_version))


def text(values: Mapping[str, Any] | None = None, *flags: str) -> str:
    """Return the objects of a release, with the comments of the templates.

    Args:
        flags: Which objects; by default all but the hooks.

    Raises:
        RefusedValuesError: As in render().
    """
    return _template(json.dumps(values or {}), KUBE_VERSION, *(flags or ("--no-hooks",)))


def notes(values: Mapping[str, Any] | None = None, *, kubeconfig: Path | None = None) -> str:
    """Return the notes that helm prints after an installation.

    Args:
        kubeconfig: Of the cluster that the templates look up; none if None.

    Raises:
        RefusedValuesError: As in render().
    """
    # `helm template` leaves the notes out, and a dry run of `helm install` needs a cluster. So they
    # are included in an object of a copy of the chart.
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(shutil.copytree(CHART, Path(folder) / "chart"))
        (chart / "templates" / "notes.yaml").write_text(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: notes}, data: {notes: "
            '{{ include "tensorfusion-dra/templates/NOTES.txt" . | toJson }}}}\n'
        )
        flags = ["--kube-version", KUBE_VERSION, "--show-only", "templates/notes.yaml"]
        if kubeconfig:
            flags += ["--dry-run=server", "--disable-openapi-validation"]
            flags += ["--kubeconfig", str(kubeconfig)]
        printed = _printed(chart, json.dumps(values or {}), *flags)
    return str(yaml_text.load(printed)["data"]["notes"])


def program() -> str:
    """Return the path of helm; skip the test, or the module, on a machine without it."""
    found = os.environ.get("HELM") or shutil.which("helm")
    if not found:
        pytest.skip(
            "found no helm on PATH and no variable HELM; no package of PyPI brings it "
            "(hack/tool has Go build it)",
            allow_module_level=True,
        )
    return str(Path(found).resolve())


def one(documents: list[Document], kind: str, name: str = "") -> Document:
    """Return the only object of a kind, or the one with this name."""
    (found,) = (
        item
        for item in documents
        if item["kind"] == kind and name in {"", item["metadata"]["name"]}
    )
    return found


def containers(documents: list[Document]) -> Iterator[Document]:
    """Yield the containers of all workloads, with those that run before the others."""
    for item in documents:
        template = item.get("spec", {}).get("template")
        if isinstance(template, dict) and "spec" in template:
            yield from template["spec"].get("initContainers", [])
            yield from template["spec"]["containers"]


@functools.cache
def _documents(values: str, kube_version: str) -> list[Document]:
    return [item for item in yaml_text.load_all(_template(values, kube_version)) if item]


@functools.cache
def _template(values: str, kube_version: str, *flags: str) -> str:
    # Without a version helm assumes the one that it was built with.
    return _printed(CHART, values, "--kube-version", kube_version, *flags)


def _printed(chart: Path, values: str, *flags: str) -> str:
    ended = subprocess.run(
        [program(), "template", _RELEASE, chart, "--namespace", NAMESPACE, "-f", "-", *flags],
        input=values,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if ended.returncode:
        raise RefusedValuesError(ended.stderr.strip())
    return ended.stdout
