"""What a release says about itself, and when it is refused."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
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
PROJECT: Final = SCRIPT.loaded(EXAMPLE, is_rehearsal=False)
VERSION: Final = SCRIPT.VERSION


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
        SCRIPT.loaded(file, is_rehearsal=False)


def test_the_projects_own_file_has_the_same_values_as_the_example() -> None:
    own, example = (
        tomllib.loads(file.read_text()) for file in (ROOT / "hack/project.toml", EXAMPLE)
    )

    assert own.keys() == example.keys()
    assert {key for each in own["maintainers"] for key in each} == set(example["maintainers"][0])


def test_a_rehearsal_has_an_image_of_its_own() -> None:
    assert SCRIPT.loaded(EXAMPLE, is_rehearsal=True).image == f"{IMAGE}-rc"


def test_documents_get_the_owners_names_and_keep_none_of_the_words(copy: Path) -> None:
    words = [name for name in SCRIPT.DOCUMENTS if "PROJECT_" in (copy / name).read_text()]
    assert set(words) <= set(SCRIPT.DOCUMENTS)

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
@pytest.mark.parametrize("is_rehearsal", [False, True])
def test_chart_names_the_published_image_by_digest_and_people_and_changes(
    copy: Path, is_rehearsal: bool
) -> None:
    folder = copy / "daemonset/chart"
    SCRIPT.describe_chart(folder, PROJECT, DIGEST, is_rehearsal=is_rehearsal)

    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    noted = {
        name.removeprefix("artifacthub.io/"): yaml.safe_load(value)
        for name, value in chart["annotations"].items()
    }
    assert noted["images"] == [{"name": "tensorfusion-dra", "image": f"{IMAGE}@{DIGEST}"}]
    assert noted["prerelease"] is is_rehearsal
    assert noted["changes"]
    assert {each["kind"] for each in noted["changes"]} <= {"added", "changed", "fixed", "security"}
    assert (chart["home"], chart["sources"]) == (URL, [URL])
    assert chart["maintainers"][0]["email"] == "maintainer@example.com"
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
    lint = [helm.program(), "lint", "--strict", str(folder)]
    subprocess.run(lint, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    rendered = subprocess.run(
        [helm.program(), "template", folder, "--kube-version", helm.KUBE_VERSION],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    ).stdout
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
    tmp_path: Path,
) -> None:
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
    assert yaml.safe_load((tmp_path / "artifacthub-repo.yml").read_text())["owners"]


@pytest.mark.process
def test_release_ends_before_it_builds_if_the_owner_is_not_known(tmp_path: Path) -> None:
    for name in ("hack", "tensorfusion_dra"):
        (tmp_path / name).symlink_to(ROOT / name)
    project = tmp_path / "project.toml"
    project.write_text(EXAMPLE.read_text().replace(URL, ""))

    ended = subprocess.run(
        [ROOT / "hack/release"],
        cwd=tmp_path,
        env=path_guard.environment(
            {
                "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
                "PROJECT": str(project),
                "PYTHON": sys.executable,
            }
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert ended.returncode == 1
    assert (
        ended.stderr
        == f"release-files: {project}: url: found nothing, expected the owner's values\n"
    )


@pytest.mark.process
def test_plugin_finds_the_packages_beside_it_and_refuses_other_pythons(tmp_path: Path) -> None:
    own = f"3.{sys.version_info.minor}"
    package = tmp_path / "lib/all/tensorfusion_dra"
    package.mkdir(parents=True)
    (tmp_path / "lib" / own).mkdir()
    (package / "cli.py").write_text("import compiled\ndef main():\n    return compiled.CODE\n")
    (tmp_path / "lib" / own / "compiled.py").write_text("CODE = 7\n")
    program = tmp_path / "kubectl-tensorfusion"
    shutil.copy(ROOT / "hack/krew/kubectl-tensorfusion", program)
    (tmp_path / "link").symlink_to(program)  # as krew installs it

    def run(*before: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *before, tmp_path / "link"],
            env=path_guard.environment({"PATH": os.defpath}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    assert run().returncode == 7
    older = f"import sys, runpy; sys.version_info = (3, 10, 0); runpy.run_path({str(program)!r})"
    refused = run("-c", older)
    assert refused.returncode == 1
    assert "expected Python 3.11 to 3.14" in refused.stderr
