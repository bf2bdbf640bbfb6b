"""What a release says about itself, and when it is refused."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml

from tests.guard import sitecustomize as path_guard
from tests.support import helm
from tests.support.waiting import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "hack/project.example.toml"
URL: Final = "https://example.com/example/tensorfusion-dra"
IMAGE: Final = "registry.example.com/example/tensorfusion-dra"
DIGEST: Final = f"sha256:{'4' * 64}"
SCRIPT: Final = SimpleNamespace(**runpy.run_path(str(ROOT / "hack/release-files")))
VERSION: Final = SCRIPT.VERSION
TAG: Final = f"v{VERSION}"
PROJECT: Final = SCRIPT.loaded(EXAMPLE, TAG)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the script writes to."""
    for name in (*SCRIPT.DOCUMENTS, "README.md", "pyproject.toml", "hack/simulator/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "hack/simulator/README.md", tmp_path / "hack/simulator")
    shutil.copytree(ROOT / "daemonset/chart", tmp_path / "daemonset/chart")
    return tmp_path


def test_a_file_with_empty_values_is_refused_by_all_their_names(tmp_path: Path) -> None:
    file = tmp_path / "project.toml"
    file.write_text(
        EXAMPLE.read_text().replace("security@example.com", "").replace('"example"', '""')
    )

    with pytest.raises(
        ValueError, match=r"project.toml: contact, maintainers.account: found nothing"
    ):
        SCRIPT.loaded(file, TAG)


def test_the_projects_own_file_has_the_same_values_as_the_example() -> None:
    own, example = (
        tomllib.loads(file.read_text()) for file in (ROOT / "hack/project.toml", EXAMPLE)
    )

    assert own.keys() == example.keys()
    assert {key for each in own["maintainers"] for key in each} == set(example["maintainers"][0])


def test_a_rehearsal_has_an_image_and_addresses_of_its_own() -> None:
    rehearsal = SCRIPT.loaded(EXAMPLE, f"{TAG}-rc1")

    addresses = (f"{IMAGE}-rc", f"{URL}/releases/download/{TAG}-rc1")
    assert (rehearsal.image, rehearsal.downloads) == addresses


def test_documents_get_the_owners_names_and_keep_none_of_the_words(copy: Path) -> None:
    words = [name for name in SCRIPT.DOCUMENTS if "PROJECT_" in (copy / name).read_text()]

    SCRIPT.fill(copy, PROJECT)

    filled = {name: (copy / name).read_text() for name in SCRIPT.DOCUMENTS}
    assert [name for name, text in filled.items() if "PROJECT_" in text] == []
    assert f"cosign verify {IMAGE}" in filled["SECURITY.md"]
    (link,) = yaml.safe_load(filled[".github/ISSUE_TEMPLATE/config.yml"])["contact_links"]
    assert link["url"] == f"{URL}/security/advisories/new"
    if words:  # the owner has not filled them yet
        assert "security@example.com" in filled["CODE_OF_CONDUCT.md"]
        assert filled[".github/CODEOWNERS"].endswith("\n* @example\n")
        assert "Example Maintainer (@example)" in filled["MAINTAINERS.md"]


def test_no_other_document_has_words_to_be_filled() -> None:
    documents = {*ROOT.glob("*.md"), *ROOT.glob("Dockerfile")}
    for folder in (".github", "daemonset", "docs"):
        documents |= {file for file in (ROOT / folder).rglob("*") if file.is_file()}

    found = {file for file in documents if b"PROJECT_" in file.read_bytes()}
    assert {str(file.relative_to(ROOT)) for file in found} <= set(SCRIPT.DOCUMENTS)


@pytest.mark.parametrize("part", [".", "hack/simulator"])
def test_packages_name_people_and_addresses(copy: Path, part: str) -> None:
    SCRIPT.describe_package(copy / part, PROJECT)

    project = tomllib.loads((copy / part / "pyproject.toml").read_text())["project"]
    assert project["maintainers"] == [
        {"name": "Example Maintainer", "email": "maintainer@example.com"}
    ]
    assert project["urls"]["Homepage"] == URL
    assert project["urls"]["Changelog"] == f"{URL}/blob/v{VERSION}/CHANGELOG.md"


def test_every_link_and_picture_of_the_long_description_is_absolute(copy: Path) -> None:
    SCRIPT.describe_package(copy, PROJECT)

    text = (copy / "README.md").read_text()
    assert f"]({URL}/raw/v{VERSION}/docs/how-it-works.svg)" in text
    assert f"]({URL}/blob/v{VERSION}/docs/install.md#quick-start-on-a-gpu-cluster)" in text
    targets = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert [each for each in targets if not each.startswith("https://")] == []


@pytest.mark.process
def test_chart_names_the_published_image_by_digest_and_people_and_changes(copy: Path) -> None:
    folder = copy / "daemonset/chart"

    SCRIPT.describe_chart(folder, PROJECT, DIGEST)

    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    noted = {
        name.removeprefix("artifacthub.io/"): yaml.safe_load(value)
        for name, value in chart["annotations"].items()
    }
    assert noted["images"] == [{"name": "tensorfusion-dra", "image": f"{IMAGE}@{DIGEST}"}]
    assert noted["prerelease"] is False
    kinds = {each["kind"] for each in noted["changes"]}
    assert set() < kinds <= {"added", "changed", "fixed", "security"}
    assert (chart["home"], chart["sources"]) == (URL, [URL])
    assert chart["maintainers"][0]["email"] == "maintainer@example.com"
    values = yaml.safe_load((folder / "values.yaml").read_text())
    assert values["monitoring"]["runbooks"] == f"{URL}/blob/{TAG}/docs/monitoring.md"
    definitions = [
        yaml.safe_load(file.read_text())
        for file in sorted((folder / "tensor-fusion-crds").iterdir())
    ]
    assert [(each["kind"], each["version"], each["name"]) for each in noted["crds"]] == [
        (
            each["spec"]["names"]["kind"],
            each["spec"]["versions"][0]["name"],
            each["metadata"]["name"],
        )
        for each in definitions
    ]
    subprocess.run([helm.program(), "lint", "--strict", folder], check=True, capture_output=True)
    rendered = subprocess.check_output(
        [helm.program(), "template", folder, "--kube-version", helm.KUBE_VERSION]
    )
    containers = helm.containers([each for each in yaml.safe_load_all(rendered) if each])
    assert {each["image"] for each in containers} == {f"{IMAGE}@{DIGEST}"}


def test_changes_are_the_items_of_the_newest_version_without_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "CHANGELOG.md"
    file.write_text(
        "# Changelog\n\n## 1.1.0 (2026-02-01)\n\n### Added\n\nFor users:\n\n"
        "- A [page](docs/use.md)\n"
        "  of two lines.\n\n### Security\n\n- Safer.\n\n### Known limits\n\n- None.\n\n"
        "## 1.0.0 (2026-01-01)\n\n### Fixed\n\n- Earlier.\n"
    )
    monkeypatch.setitem(SCRIPT.changes.__globals__, "CHANGELOG", file)

    assert list(SCRIPT.changes()) == [("added", "A page of two lines."), ("security", "Safer.")]
    notes = SCRIPT.notes(PROJECT, DIGEST)
    assert f"oci://{IMAGE}/charts/tensorfusion-dra --version {VERSION}" in notes
    assert f"{IMAGE}@{DIGEST}" in notes
    assert f"[page]({URL}/blob/v{VERSION}/docs/use.md)" in notes
    assert "Earlier" not in notes


def test_checksums_cover_every_file_and_krew_has_one_archive_for_each_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    run = {
        "documentNamespace": "of-this-run",
        "creationInfo": {"created": "now", "creators": []},
        "relationships": [{"of": "b"}, {"of": "a"}],
    }
    (tmp_path / "image.spdx.json").write_text(json.dumps(run))
    platforms = [("darwin", "arm64"), ("linux", "amd64")]
    for system, architecture in platforms:
        name = f"kubectl-tensorfusion-{VERSION}-{system}-{architecture}.tar.gz"
        (tmp_path / name).write_bytes(b"archive")

    SCRIPT.describe_files(tmp_path, PROJECT, DIGEST)

    manifest: dict[str, Any] = yaml.safe_load((tmp_path / "tensorfusion.yaml").read_text())
    found = manifest["spec"]["platforms"]
    labels = [each["selector"]["matchLabels"] for each in found]
    assert labels == [{"os": system, "arch": architecture} for system, architecture in platforms]
    assert found[0]["uri"].startswith(f"{URL}/releases/download/v{VERSION}/kubectl-tensorfusion-")
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert sums.keys() == {file.name for file in tmp_path.iterdir()} - {"SHA256SUMS"}
    assert {each["sha256"] for each in found} == {sums[name] for name in sums if "kubectl" in name}
    assert json.loads((tmp_path / "image.spdx.json").read_text()) == {
        "documentNamespace": f"{URL}/spdx/image-{VERSION}",
        "creationInfo": {"created": "2026-01-01T00:00:00Z", "creators": []},
        "relationships": [{"of": "a"}, {"of": "b"}],
    }
    assert yaml.safe_load((tmp_path / "artifacthub-repo.yml").read_text())["owners"]


FILES: Final = (
    "hack/release-version",
    "tensorfusion_dra/__init__.py",
    "tensorfusion_dra/app/__init__.py",
    "tensorfusion_dra/app/shared/version.py",
)
DATED: Final = "## 1.2.3 (2026-01-31)"
UNDATED: Final = "## 1.2.3 (unreleased)"


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "heading", "error"),
    [
        ([], "", ""),
        (["--tag", "v1.2.3"], DATED, ""),
        (["--tag", "v1.2.3-rc2"], UNDATED, ""),
        *(
            (["--tag", tag], DATED, f"tag: found {tag}, expected v1.2.3")
            for tag in ("1.2.3", "v1.2.4", "v1.2.4-rc1", "v1.2.3-rc", "")
        ),
        *(
            (["--tag", "v1.2.3"], heading, "expected 1.2.3 and a date in brackets")
            for heading in (UNDATED, "## 1.2.2 (2026-01-31)", "")
        ),
    ],
)
def test_version_is_released_under_its_tag_and_with_a_date_in_the_changelog(
    tmp_path: Path, arguments: list[str], heading: str, error: str
) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    module = tmp_path / "tensorfusion_dra/app/shared/version.py"
    module.write_text(module.read_text().replace(VERSION, "1.2.3"))
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n## 1.2.2\n")

    # -S hides installed packages, because the workflows run the script before installing any.
    ended = script(tmp_path, "release-version", *arguments, python=(sys.executable, "-S"))

    assert (ended.returncode, ended.stdout) == ((1, "") if error else (0, "1.2.3\n"))
    assert error in ended.stderr
    assert bool(ended.stderr) == bool(error)


FAKES: Final = {
    # An image for a registry is a folder with its digest.
    "buildah": """\
case "$*" in
    *"manifest create"*) echo release ;;
    *"manifest add"*) echo "${@: -1}" >&2 ;;
    *"manifest push"*)
        while [ "$1" != --digestfile ]; do shift; done
        printf sha256:%064d 4 >"$2"
        echo "to $4" >&2 ;;
esac
""",
    "syft": """\
for each; do case $each in spdx-json=*) file=${each#spdx-json=} ;; esac; done
echo '{"creationInfo": {}, "relationships": []}' >"$file"
""",
    "helm": """\
case $1 in
    package)
        tar --create --gzip --file "$4/tensorfusion-dra-VERSION.tgz" --directory "${2%/*}" \
            --transform 's/^chart/tensorfusion-dra/' chart ;;
    push) echo "Digest: sha256:5" ;;
esac
""",
    "docker": "exit 1\n",
    # Builds and downloads nothing: hatchling and pip leave wheels with one file.
    "python": """\
wheel() {
    (cd "$(mktemp -d)" && touch --date @1767225600 "$1" && REAL -m zipfile --create "$2" "$1")
}
case "$*" in
    *hatchling*)
        mkdir -p "${@: -1}"
        name=$(sed -n 's/^name = "\\(.*\\)"$/\\1/p' pyproject.toml | head -n 1 | tr - _)
        wheel "$name.py" "${@: -1}/$name-VERSION-py3-none-any.whl"
        touch "${@: -1}/$name-VERSION.tar.gz" ;;
    *"pip download"*)
        mkdir -p "${@: -1}"
        version=$(grep --only-matching '3\\.1[1-4]' <<<"$*" | head -n 1)
        wheel compiled.so "${@: -1}/a-1-cp${version/./}-cp${version/./}-any.whl" ;;
    *twine* | *hack/manifests*) ;;
    *) exec REAL "$@" ;;
esac
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit with the scripts and what they read, and stand-ins for the programs in bin."""
    folder = tmp_path / "checkout"
    for name in ("hack", "daemonset", "tensorfusion_dra", "dra_simulator", ".github"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "benchmark", "gpucheck", "hypervisor"),
        )
    for name in ("pyproject.toml", "LICENSE", ".gitignore", *(f.name for f in ROOT.glob("*.md"))):
        shutil.copy(ROOT / name, folder / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in FAKES.items():
        text = script.replace("REAL", shlex.quote(sys.executable)).replace("VERSION", VERSION)
        (programs / name).write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}")
        (programs / name).chmod(0o755)
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "one"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments],
            cwd=folder,
            check=True,
            timeout=PATIENCE_SECONDS,
            env={"PATH": os.defpath, "GIT_COMMITTER_DATE": "1767225600 +0000"},
        )
    return folder


def script(
    checkout: Path, name: str, *arguments: str | Path, python: Sequence[str] = (), **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script of hack in a checkout, with the stand-ins for programs beside it."""
    programs = checkout.parent / "bin"
    return subprocess.run(
        [*python, checkout / "hack" / name, *arguments],
        env=path_guard.environment(
            {
                "PATH": f"{programs}:{Path(sys.executable).parent}:{os.defpath}",
                "PYTHON": str(programs / "python"),
                "PROJECT": str(EXAMPLE),
                "PYTHONDONTWRITEBYTECODE": "1",
                **variables,
            }
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.process
def test_release_of_one_commit_has_all_artifacts_and_the_same_bytes_twice(checkout: Path) -> None:
    images = checkout.parent / "images"
    for architecture in ("amd64", "arm64"):
        (images / f"layers-{architecture}").mkdir(parents=True)
        (images / f"tensorfusion-dra-{VERSION}-image-{architecture}.tar").touch()

    def build() -> str:
        ended = script(checkout, "release", IMAGES=str(images), TAG=f"{TAG}-rc1")
        assert ended.returncode == 0, ended.stderr
        return (checkout / "dist/release/SHA256SUMS").read_text()

    sums = build()

    assert build() == sums
    plugins = [
        f"kubectl-tensorfusion-{VERSION}-{system}-{architecture}.tar.gz"
        for system in ("darwin", "linux")
        for architecture in ("amd64", "arm64")
    ]
    image = f"tensorfusion-dra-{VERSION}-image"
    assert sorted(line.split()[1] for line in sums.splitlines()) == sorted(
        [
            *plugins,
            *(
                f"{image}-{each}{end}"
                for each in ("amd64", "arm64")
                for end in (".tar", ".spdx.json")
            ),
            *(f"tensorfusion_dra-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl")),
            *(
                f"tensorfusion_dra_simulator-{VERSION}{end}"
                for end in (".tar.gz", "-py3-none-any.whl")
            ),
            *(
                f"{name}.yaml"
                for name in ("nvidia", "simulated", "test", "webhook", "tensorfusion")
            ),
            *("artifacthub-repo.yml", "image.txt", "kubectl-tensorfusion.spdx.json", "notes.md"),
            f"tensorfusion-dra-{VERSION}.tgz",
        ]
    )
    assert (checkout / "dist/release/image.txt").read_text() == f"{IMAGE}-rc@sha256:{4:064d}\n"
    with tarfile.open(checkout / "dist/release" / plugins[0]) as archive:
        names = archive.getnames()
        assert {member.mtime for member in archive} == {1767225600}
    assert "./lib/3.11/compiled.so" in names
    assert "./lib/all/tensorfusion_dra.py" in names


EMPTY: Final = re.sub(r'"[^"]*"', '""', EXAMPLE.read_text())
"""A file of which the owner has filled nothing."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "text", "variables", "error"),
    [
        (
            *("hack/project.toml", EMPTY, {"PROJECT": "hack/project.toml"}),
            "hack/project.toml: url, image, contact, ",
        ),
        ("hack/project.toml", EMPTY, {"TAG": "v9.9.9"}, "tag: found v9.9.9, expected "),
        ("README.md", "changed", {}, "found changes that are not in the commit, expected none"),
    ],
)
def test_release_is_refused_before_anything_is_built(
    checkout: Path, file: str, text: str, variables: dict[str, str], error: str
) -> None:
    (checkout / file).write_text(text)

    ended = script(checkout, "release", **variables)

    assert ended.returncode == 1
    assert error in ended.stderr
    assert not (checkout / "dist").exists()


@pytest.mark.process
def test_push_prints_the_digest_and_pushes_every_architecture(checkout: Path) -> None:
    images = checkout.parent / "images"
    for architecture in ("amd64", "arm64"):
        (images / f"layers-{architecture}").mkdir(parents=True)

    image = script(checkout, "release-push", "image", images, "docker://127.0.0.1:5000/a:1")
    chart = script(checkout, "release-push", "chart", "a.tgz", "oci://127.0.0.1:5000/charts")

    assert image.stdout == f"sha256:{4:064d}"
    assert [line for line in image.stderr.splitlines() if line] == [
        f"dir:{images}/layers-amd64",
        f"dir:{images}/layers-arm64",
        "to docker://127.0.0.1:5000/a:1",
    ]
    assert chart.stdout == "sha256:5\n"
    assert script(checkout, "release-push").returncode == 2


@pytest.mark.process
def test_check_refuses_a_file_that_is_not_as_it_was_built(checkout: Path) -> None:
    release = checkout / "dist/release"
    release.mkdir(parents=True)
    (release / "notes.md").write_text("changed")
    (release / "SHA256SUMS").write_text(f"{'0' * 64}  notes.md\n")

    ended = script(checkout, "release-check")

    assert ended.returncode == 1
    assert "notes.md: FAILED" in ended.stdout


@pytest.mark.process
def test_tool_is_the_program_on_path_or_one_line_says_what_is_missing(checkout: Path) -> None:
    lacking = script(checkout, "tool", "grype", PATH="/usr/bin:/bin")

    assert script(checkout, "tool", "syft").stdout == f"{checkout.parent}/bin/syft\n"
    assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
    unknown = "hack/tool: no grep: expected helm, syft, actionlint or grype\n"
    assert script(checkout, "tool", "grep").stderr == unknown


@pytest.mark.process
def test_upgrade_starts_from_the_commit_that_is_named(checkout: Path) -> None:
    (checkout.parent / "bin/docker").write_text('#!/bin/sh\necho "$@"\n')
    earlier = checkout / "dist/upgrade/chart/templates/of-an-earlier-commit.yaml"
    earlier.parent.mkdir(parents=True)
    earlier.touch()

    ended = script(checkout, "upgrade-from", "HEAD")

    assert ended.returncode == 0, ended.stderr
    assert "build --tag tensorfusion-dra:before dist/upgrade/source" in ended.stdout
    assert (checkout / "dist/upgrade/chart/Chart.yaml").is_file()
    assert not earlier.exists()


@pytest.mark.process
def test_plugin_finds_the_packages_beside_it_and_refuses_other_pythons(tmp_path: Path) -> None:
    own = f"3.{sys.version_info.minor}"
    package = tmp_path / "lib/all/tensorfusion_dra"
    package.mkdir(parents=True)
    (tmp_path / "lib" / own).mkdir()
    (package / "cli.py").write_text(
        "import compiled\ndef main():\n    return compiled.CODE\n"
        "def complete():\n    print('why')\n"
    )
    (tmp_path / "lib" / own / "compiled.py").write_text("CODE = 7\n")
    program = tmp_path / "kubectl-tensorfusion"
    shutil.copy(ROOT / "hack/krew/kubectl-tensorfusion", program)
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "kubectl-tensorfusion"  # as krew installs it
    link.symlink_to(program)
    completion = link.with_name("kubectl_complete-tensorfusion")  # as the page says
    completion.symlink_to(link.name)

    def run(*before: str, program: Path = link) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *before, program],
            env=path_guard.environment({"PATH": os.defpath}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    assert run().returncode == 7
    completed = run(program=completion)
    assert (completed.returncode, completed.stdout) == (0, "why\n")
    older = f"import sys, runpy; sys.version_info = (3, 10, 0); runpy.run_path({str(program)!r})"
    refused = run("-c", older)
    assert refused.returncode == 1
    assert "expected Python 3.11 to 3.14" in refused.stderr
