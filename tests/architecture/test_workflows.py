"""Workflows have few rights and time limits, and test every version; make finds its Python."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))

Document = dict[str, Any]

WRITERS = {
    ("release", "publish"): {"packages", "attestations", "id-token"},
    ("release", "packages"): {"id-token"},
    ("release", "release"): {"contents"},
    ("scan", "code"): {"security-events"},
    ("scan", "repository"): {"security-events"},
    ("scan", "lock"): {"contents", "pull-requests"},
}
"""The jobs with write permissions, and these permissions."""


# As strings: YAML 1.1 would read the key "on" as true.
WORKFLOWS: Mapping[str, Document] = {
    path.stem: yaml.load(path.read_text(), yaml.BaseLoader) for path in FILES
}
JOBS = {
    (name, job): content
    for name, document in WORKFLOWS.items()
    for job, content in document["jobs"].items()
}

STEPS = [
    (f"{name}/{job}", step)
    for (name, job), content in JOBS.items()
    for step in content.get("steps", [])
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_workflow_only_reads_and_runs_no_forks_code_with_secrets_and_names_no_registry(
    path: Path,
) -> None:
    workflow = WORKFLOWS[path.stem]
    hosts = r"pypi\.org|ghcr\.io|docker\.io|quay\.io|gcr\.io|registry\.\w"

    assert workflow["permissions"] == {"contents": "read"}
    assert not {"pull_request_target", "workflow_run"} & set(workflow["on"])
    assert re.findall(hosts, path.read_text()) == []


@pytest.mark.parametrize("key", JOBS, ids="/".join)
def test_only_jobs_that_publish_may_write_and_each_job_has_a_time_limit(
    key: tuple[str, str],
) -> None:
    rights = JOBS[key].get("permissions", {}).items()

    assert {right for right, level in rights if level == "write"} == WRITERS.get(key, set())
    if "uses" not in JOBS[key]:  # the called workflow has them
        assert 0 < int(JOBS[key]["timeout-minutes"]) <= 60


def test_only_a_tag_releases_and_only_the_schedule_proposes_packages() -> None:
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}}
    assert JOBS["scan", "lock"]["if"] == "github.event_name == 'schedule'"


def test_each_job_of_a_release_needs_the_one_before() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    before = {name: job.get("needs", []) for name, job in jobs.items()}

    assert list(before.items()) == [
        ("test", []),
        ("e2e", []),
        ("image", ["test", "e2e"]),
        ("artifacts", "image"),
        ("try", "artifacts"),
        ("publish", "try"),
        ("packages", "publish"),
        ("release", "packages"),
    ]
    assert [name for name, job in jobs.items() if "if" in job] == []
    for name in ("test", "e2e"):
        assert jobs[name]["uses"] == f"./.github/workflows/{name}.yaml"
        assert "workflow_call" in WORKFLOWS[name]["on"]


def test_actions_are_pinned_by_commit_and_name_their_release() -> None:
    used = [
        use
        for path in FILES
        for use in re.findall(r"uses: *(.*)", path.read_text())
        if not use.startswith("./")
    ]

    pinned = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert used
    assert [use for use in used if not pinned.fullmatch(use)] == []


def test_scripts_get_values_only_through_variables() -> None:
    scripts = [(place, str(step["run"])) for place, step in STEPS if "run" in step]

    assert scripts
    assert [place for place, script in scripts if "${{" in script] == []


def test_checkouts_keep_no_token() -> None:
    checkouts = [
        step["with"]["persist-credentials"]
        for _, step in STEPS
        if str(step.get("uses", "")).startswith("actions/checkout@")
    ]

    of_artifacts = {("release", "packages"), ("release", "release")}
    checked_out = [key for key, job in JOBS.items() if "steps" in job and key not in of_artifacts]
    assert checkouts == ["false"] * len(checked_out)


def test_tests_run_on_every_python_that_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = JOBS["test", "test"]["strategy"]["matrix"]["python"]

    minors = [int(version.removeprefix("3.")) for version in pythons]
    assert f">=3.{minors[0]}" == project["requires-python"]
    assert minors == list(range(minors[0], 15))
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])) == pythons


def test_end_to_end_tests_run_on_every_supported_kubernetes() -> None:
    job = JOBS["e2e", "kind"]

    assert job["strategy"]["matrix"]["kubernetes"] == ["1.35", "1.36", "1.37"]
    # The order of the tests is in the script, which developers run as well.
    (step,) = [each for each in job["steps"] if re.search(r"\bhack/|\bmake ", each.get("run", ""))]
    assert step["run"] == 'hack/e2e kind-up --version "$KUBERNETES"'
    assert step["env"] == {"KUBERNETES": "${{ matrix.kubernetes }}"}


def test_workflows_name_only_existing_make_targets_and_scripts() -> None:
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE.read_text(), re.MULTILINE))
    runs = "\n".join(str(step.get("run", "")) for _, step in STEPS)

    made = set(re.findall(r"^make ([\w-]+)", runs, re.MULTILINE))
    scripts = set(re.findall(r"(?:\bhack|\.ci)/[\w-]+", runs)) - {"hack/requirements"}
    assert {"demo", "test", "test-faults"} <= made <= targets
    assert {"hack/e2e", "hack/release-version", ".ci/run"} <= scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


OWN = f"python{sys.version_info.major}.{sys.version_info.minor}"
OWN_FOLDER = f".venv-{OWN.removeprefix('python')}"


def make(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `make --dry-run types`, which prints the command with its interpreter."""
    shutil.copy(MAKEFILE, folder)
    return subprocess.run(
        ["make", "--dry-run", "types", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("version_of_venv", "python", "used"),
    [
        (None, None, ".venv"),
        (None, sys.executable, ".venv"),
        (OWN, sys.executable, ".venv"),
        ("python3.10", None, ".venv"),
        ("python3.10", sys.executable, OWN_FOLDER),
    ],
)
def test_python_of_another_version_has_a_folder_of_its_own(
    tmp_path: Path, version_of_venv: str | None, python: str | None, used: str
) -> None:
    if version_of_venv:
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
        (tmp_path / ".venv/lib" / version_of_venv).mkdir(parents=True)

    ended = make(tmp_path, *([f"PYTHON={python}"] if python else []))

    assert ended.stdout == f"{used}/bin/python -m mypy\n"


@pytest.mark.process
def test_python_that_does_not_start_is_an_error_and_no_other_is_used(tmp_path: Path) -> None:
    ended = make(tmp_path, "PYTHON=/nonexistent/python3")

    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "PYTHON=/nonexistent/python3: expected Python 3.11 or later" in ended.stderr
