"""GitHub workflows have few rights and time limits, and test every supported version."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))

Document = dict[str, Any]

SUPPORTED_KUBERNETES = ["1.34", "1.35", "1.36", "1.37"]
WRITERS = {
    ("image", "publish"): {"packages", "id-token"},
    ("release", "chart"): {"packages", "id-token"},
    ("release", "publish-package"): {"id-token"},
}
"""The jobs with write permissions, and these permissions."""


class _Loader(yaml.SafeLoader):
    """Loader that keeps the key "on" a string; YAML 1.1 reads it as true."""


_LETTERS_OF_BOOLEANS = "yYnNtTfFoO"
_Loader.yaml_implicit_resolvers = {
    letter: [item for item in resolvers if item[0] != "tag:yaml.org,2002:bool"]
    if letter in _LETTERS_OF_BOOLEANS
    else resolvers
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def workflow(name: str) -> Document:
    path = ROOT / ".github" / "workflows" / f"{name}.yaml"
    loaded: Document = yaml.load(path.read_text(), _Loader)
    return loaded


WORKFLOWS: Mapping[str, Document] = {path.stem: workflow(path.stem) for path in FILES}
JOBS = {
    (name, job): content
    for name, document in WORKFLOWS.items()
    for job, content in document["jobs"].items()
}


def steps() -> Iterator[tuple[str, Document]]:
    for (name, job), content in JOBS.items():
        for step in content["steps"]:
            yield f"{name}/{job}", step


def written(permissions: Mapping[str, str]) -> set[str]:
    return {right for right, level in permissions.items() if level == "write"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_may_only_read_the_repository(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("key", JOBS, ids="/".join)
def test_only_jobs_that_publish_may_write(key: tuple[str, str]) -> None:
    assert written(JOBS[key].get("permissions", {})) == WRITERS.get(key, set())


@pytest.mark.parametrize("key", WRITERS, ids="/".join)
def test_jobs_that_write_run_for_tags_only(key: tuple[str, str]) -> None:
    name, _ = key

    assert WORKFLOWS[name]["on"]["push"] == {"tags": ["v*"]}
    for event in set(WORKFLOWS[name]["on"]) - {"push"}:
        assert JOBS[key]["if"] == "github.event_name == 'push'", event


@pytest.mark.parametrize("key", JOBS, ids="/".join)
def test_every_job_has_a_time_limit(key: tuple[str, str]) -> None:
    assert 0 < int(JOBS[key]["timeout-minutes"]) <= 60


@pytest.mark.parametrize("name", WORKFLOWS)
def test_code_of_forks_never_runs_with_repository_secrets(name: str) -> None:
    assert not {"pull_request_target", "workflow_run"} & set(WORKFLOWS[name]["on"])


def test_actions_are_pinned_by_commit_and_name_their_release() -> None:
    used = [
        line.partition("uses:")[2].strip()
        for path in FILES
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]

    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_scripts_get_values_only_through_variables() -> None:
    scripts = [(place, str(step["run"])) for place, step in steps() if "run" in step]

    assert scripts
    assert [place for place, script in scripts if "${{" in script] == []


def test_checkouts_keep_no_token() -> None:
    checkouts = [
        step["with"]["persist-credentials"]
        for _, step in steps()
        if str(step.get("uses", "")).startswith("actions/checkout@")
    ]

    assert len(checkouts) == len(JOBS) - 1  # publish-package uses the build of another job
    assert set(checkouts) == {"false"}


def test_tests_run_on_every_python_that_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = JOBS["test", "test"]["strategy"]["matrix"]["python"]

    minors = [int(version.removeprefix("3.")) for version in pythons]
    assert f">=3.{minors[0]}" == project["requires-python"]
    assert minors == list(range(minors[0], 15))
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert declared == pythons


def test_end_to_end_tests_run_on_every_supported_kubernetes() -> None:
    include = JOBS["e2e", "kind"]["strategy"]["matrix"]["include"]

    assert [entry["kubernetes"] for entry in include] == SUPPORTED_KUBERNETES


def test_workflows_name_only_existing_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))

    named = {
        target
        for _, step in steps()
        for target in re.findall(r"^make ([\w-]+)", str(step.get("run", "")), re.MULTILINE)
    }
    assert {"demo", "test", "e2e"} <= named
    assert named <= targets


def test_workflows_name_only_existing_scripts() -> None:
    named = {
        script
        for _, step in steps()
        for script in re.findall(r"(?:\bhack|\.ci)/[\w-]+", str(step.get("run", "")))
        if script != "hack/requirements"
    }

    assert {"hack/kind-up", "hack/release-version", ".ci/run"} <= named
    assert [script for script in named if not (ROOT / script).is_file()] == []
