"""hack/e2e: the order of the end-to-end tests, what they need, and the page that describes it."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import markdown
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DEVELOP = ROOT / "docs/develop.md"
CLUSTER_UP = ROOT / "hack/cluster-up"
SCRIPTS = (
    "cluster-up",
    "image",
    "kind-up",
    "release-version",
    "tool",
    "upgrade-from",
    "webhook-cert",
)
PROGRAMS = ("docker", "kind", "kubectl", "make", "openssl")
RECORD = """\
case "$*" in *"--filename -") cat >/dev/null ;; esac
echo "${0##*/} $*" >> "$CALLS"
case "${0##*/} $*" in
    "$FAILS") exit 1 ;;
    "release-version "*) echo 0.1.0 ;;
    "tool helm") echo /found/helm ;;
    "kube-apiserver --version") echo "Kubernetes v1.37.2" ;;
esac
"""
QUESTIONS = ("docker info", "image --check", "release-version", "tool ", "kube-apiserver ")
"""What changes nothing: it says whether the machine has what is needed."""

INSTALL = (
    "kubectl apply --filename daemonset/install/simulated.yaml",
    "kubectl --namespace tensorfusion-dra rollout status --timeout 180s daemonset"
    " --selector app.kubernetes.io/name=tensorfusion-dra",
)
WEBHOOK = (
    "webhook-cert ",
    "kubectl apply --filename -",
    "kubectl --namespace tensorfusion-dra rollout status --timeout 180s"
    " deployment/tensorfusion-dra-webhook",
)
UNINSTALL = (
    "webhook-cert ",
    "kubectl delete --ignore-not-found --filename -",
    "kubectl delete --ignore-not-found --filename daemonset/install/simulated.yaml",
)
WITH_DRIVER = "not documents and not upgrade"
Ended = subprocess.CompletedProcess[str]


def put(file: Path, script: str) -> None:
    """Write a shell script."""
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with hack/e2e, whose other scripts and programs only record that they ran."""
    for folder, programs in (
        ("hack", SCRIPTS),
        ("bin", PROGRAMS),
        ("BINARIES", ["kube-apiserver"]),
    ):
        (tmp_path / folder).mkdir()
        for name in programs:
            put(tmp_path / folder / name, RECORD)
    for name in ("e2e", "usage.sh"):
        shutil.copy(ROOT / "hack" / name, tmp_path / "hack")
    return tmp_path


def typed(checkout: Path, line: str, *, fails: str = "nothing") -> tuple[Ended, list[str]]:
    """Type a command in the checkout; return its end and the calls that change something."""
    calls = checkout / "calls"
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=checkout,
        env={"PATH": path, "CALLS": str(calls), "FAILS": fails},
    )
    lines = calls.read_text().splitlines() if calls.exists() else []
    checks = ("--check", "--dry-run")
    return ended, [
        line for line in lines if not line.startswith(QUESTIONS) and not line.endswith(checks)
    ]


@pytest.mark.parametrize(
    ("command", "fails", "before", "node", "cluster"),
    [
        (
            "hack/e2e kind-up --version 1.37",
            "nothing",
            [
                "docker build --tag tensorfusion-dra:0.1.0 .",
                "docker save --output dist/image.tar tensorfusion-dra:0.1.0",
                "kind-up --name tensorfusion-dra --version 1.37 --archive dist/image.tar",
            ],
            "--node tensorfusion-dra-worker",
            ("kind-up --name tensorfusion-dra", "--down"),
        ),
        (
            "hack/e2e cluster-up --bin BINARIES --images IMAGES --state /s",
            "docker info",
            [
                "make image",
                "cluster-up --state /s --bin {0}/BINARIES --images IMAGES",
                "cluster-up --state /s --load dist/image.tar",
                "cluster-up --state /s --load busybox:1.37",
                *INSTALL,
            ],
            "",
            ("cluster-up --state /s", "--down --clean"),
        ),
    ],
    ids=["kind-up", "cluster-up"],
)
def test_tests_run_in_the_order_in_which_they_need_the_driver_and_the_cluster_is_removed(  # noqa: PLR0917
    command: str,
    fails: str,
    before: list[str],
    node: str,
    cluster: tuple[str, str],
    checkout: Path,
) -> None:
    ended, calls = typed(checkout, command, fails=fails)

    script, down = cluster
    assert (ended.returncode, ended.stderr) == (0, "")
    assert calls == [
        *(line.format(checkout) for line in before),
        *WEBHOOK,
        f"make e2e ARGS={node} -m '{WITH_DRIVER}'",
        *UNINSTALL,
        "make e2e ARGS=-m documents",
        "upgrade-from ",
        f"{script} --load dist/upgrade/image.tar",
        "make e2e ARGS=-m upgrade",
        f"{script} {down}",
    ]


def test_before_1_36_only_tests_that_need_no_extended_resource_run(checkout: Path) -> None:
    _, calls = typed(checkout, "hack/e2e kind-up --version 1.35")

    assert [call for call in calls if call.startswith("make e2e")] == [
        f"make e2e ARGS=--node tensorfusion-dra-worker -m '{WITH_DRIVER} and not extended_resource'"
    ]
    assert "upgrade-from " not in calls


@pytest.mark.parametrize(
    ("flags", "fails", "status"),
    [("", "make e2e ARGS=-m documents", 1), ("--keep", "nothing", 0)],
    ids=["failed", "kept"],
)
def test_cluster_is_left_after_a_failure_or_on_request(
    flags: str, fails: str, status: int, checkout: Path
) -> None:
    ended, calls = typed(checkout, f"hack/e2e kind-up {flags}", fails=fails)

    assert ended.returncode == status
    assert "kind-up --name tensorfusion-dra --down" not in calls
    assert ("To remove it: hack/kind-up --name tensorfusion-dra --down" in ended.stderr) == (
        status != 0
    )
    assert ("upgrade-from " in calls) == (status == 0)


def test_image_that_is_given_is_not_built(checkout: Path) -> None:
    (checkout / "image.tar").touch()

    _, calls = typed(checkout, "hack/e2e kind-up --archive image.tar")

    assert calls[0].endswith("--archive image.tar")


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("tool helm", "hack/e2e: the pages and the upgrade need Helm: HELM=FILE, or helm or go"),
        ("docker info", "hack/e2e: docker: does not run"),
        ("image --check", ""),
    ],
)
def test_what_is_missing_is_said_before_anything_is_built(
    fails: str, said: str, checkout: Path
) -> None:
    (checkout / "bin/kind").unlink()

    ended, calls = typed(checkout, "hack/e2e kind-up", fails=fails)

    assert (ended.returncode, calls) == (1, [])
    assert said in ended.stderr
    assert "hack/e2e: kind: not on PATH" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "no argument: expected kind-up or cluster-up"),
        ("minikube", "minikube: expected kind-up or cluster-up"),
        ("kind-up --name", "--name: expected a value"),
        ("cluster-up --bin", "--bin: expected a value"),
        ("cluster-up --bin ''", "--bin: expected a value"),
        ("cluster-up --state s", "--bin: expected a folder, as in hack/e2e --help"),
    ],
)
def test_bad_arguments_give_one_line(arguments: str, said: str, checkout: Path) -> None:
    ended, calls = typed(checkout, f"hack/e2e {arguments}")

    assert (ended.returncode, ended.stderr, calls) == (2, f"hack/e2e: {said}\n", [])


@pytest.mark.parametrize("option", ["--bin", "--cni-bin", "--state"])
def test_option_of_cluster_up_without_its_value_is_named(option: str, tmp_path: Path) -> None:
    for arguments in (option, f"{option} ''"):
        ended = subprocess.run(
            [CLUSTER_UP, *shlex.split(arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            cwd=tmp_path,
        )

        assert (ended.returncode, ended.stderr) == (2, f"cluster-up: {option}: expected a value\n")


def commands_of_page(*scripts: str) -> list[str]:
    """Return the commands of the page that run one of the scripts."""
    found = [command.line for command in markdown.commands(markdown.text(DEVELOP))]
    lines = [line for line in found if any(f"hack/{script} " in line for script in scripts)]
    assert len(lines) >= len(scripts)
    return lines


@pytest.mark.parametrize("line", commands_of_page("e2e"))
def test_command_of_the_page_runs_all_tests(line: str, checkout: Path) -> None:
    ended, calls = typed(checkout, line)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert len([call for call in calls if call.startswith("make e2e")]) == 3


def cluster_up(folder: Path, arguments: str, others: Mapping[str, str] | None = None) -> Ended:
    """Run hack/cluster-up as root, on a machine that has what it needs besides the programs.

    Args:
        others: Scripts in place of the machine's programs, by name.
    """
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, prints in {"id": "echo 0", "openssl": "", "ip": "", **(others or {})}.items():
        put(bin_folder / name, prints)
    return subprocess.run(
        [CLUSTER_UP, *shlex.split(arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=folder,
        env={"PATH": f"{bin_folder}:{os.environ['PATH']}"},
    )


def programs_of_page() -> list[str]:
    rows = markdown.table(markdown.text(DEVELOP), "binaries")
    return [name for row in rows for name in markdown.codes(row[0])]


def test_page_lists_the_programs_and_images_that_a_cluster_needs(tmp_path: Path) -> None:
    page = markdown.text(DEVELOP)
    refused = cluster_up(tmp_path, "--bin none --cni-bin none --state state --check")

    programs, plugins = re.findall(r": lacks (.*) \(", refused.stderr)
    assert sorted(programs_of_page()) == sorted(programs.split())
    assert [name for name in plugins.split() if f"`{name}`" not in page] == []
    assert re.findall(r"PAUSE=(\S+:\S+)", CLUSTER_UP.read_text()) == re.findall(
        r"`(registry\S+)`", page
    )
    assert refused.returncode == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("github.com/containerd/containerd 1.6.20~ds1 1.6.20", "version 1.6.20~ds1, expected 2 or"),
        ("github.com/containerd/containerd/v2 v2.1.4 75cb2b71", ""),
        ("github.com/containerd/containerd/v2 2.1.9+unknown", ""),
    ],
)
def test_containerd_1_is_refused(version: str, said: str, tmp_path: Path) -> None:
    for name in (*programs_of_page(), "bridge", "host-local", "loopback"):
        put(tmp_path / name, f"echo containerd {version}")

    checked = cluster_up(tmp_path, f"--bin {tmp_path} --cni-bin {tmp_path} --state state --check")

    assert checked.returncode == bool(said)
    assert said in checked.stderr
    assert bool(checked.stderr) == bool(said)


RUN_AND_END = """\
[ "$1" = --version ] || echo "${0##*/} $*" >> calls
[ "${0##*/}" != containerd ] || echo containerd containerd 2.1.4
"""
"""A program that a cluster needs: says its version, or records that it ran and ends."""


def test_images_and_the_sandbox_image_are_there_before_the_kubelet_starts(tmp_path: Path) -> None:
    programs, images = tmp_path / "programs", tmp_path / "images"
    for folder in (programs, images):
        folder.mkdir()
    (images / "a.tar").touch()
    for name in (*programs_of_page(), "bridge", "host-local", "loopback"):
        put(programs / name, f"cd {tmp_path}; {RUN_AND_END}")
    # Called as `mkdir -p`, for the machine's own folders as well.
    in_folder = (
        'shift; for name; do case $(realpath -m "$name") in '
        f'{tmp_path}/*) /bin/mkdir -p "$name" ;; esac; done'
    )

    ended = cluster_up(
        tmp_path,
        f"--bin {programs} --cni-bin {programs} --images {images} --state state --pause a/pause:1",
        {"mkdir": in_folder, "mountpoint": "", "mount": ""},
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    calls = (tmp_path / "calls").read_text().splitlines()
    done = [line.partition("k8s.io ")[2] or line for line in calls]
    assert [line for line in done if "images " in line] == [
        f"images import {images}/a.tar",
        "images ls -q name==a/pause:1",
        "images pull a/pause:1",
    ]
    first = next(line for line in done if line.startswith("kubelet "))
    assert done.index("images pull a/pause:1") < done.index(first)


@pytest.mark.parametrize("line", commands_of_page("cluster-up"))
def test_options_of_cluster_up_on_the_page_are_its_options(line: str, tmp_path: Path) -> None:
    found = re.search(r"hack/cluster-up ([^#)]*)", line)
    assert found

    # Nothing was started in this folder, and the start only checks.
    arguments = found[1].replace("/tmp/cluster", "state")
    ended = cluster_up(tmp_path, arguments + (" --check" if "--bin" in arguments else ""))

    assert "cannot run the cluster" in ended.stderr or "nothing was started there" in ended.stderr


def test_cluster_whose_containerd_has_ended_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    options = f"BIN={tmp_path} CNI_BIN= PAUSE= GATES= NODE= KUBELET_ROOT={tmp_path}/kubelet"
    (state / "options").write_text(options)
    put(tmp_path / "ctr", "exit 1")

    ended = cluster_up(tmp_path, f"--state {state} --down --clean", {"find": "", "umount": ""})

    assert (ended.returncode, ended.stderr) == (0, "")
    assert not state.exists()


@pytest.mark.parametrize(
    ("image", "status", "said", "calls"),
    [
        ("a.tar", 0, "", ["images import a.tar"]),
        ("none.tar", 2, "none.tar: no such file\n", []),
        ("kept/a:1", 0, "", ["images ls -q name==kept/a:1"]),
        (
            "busybox:1.37",
            2,
            "image docker.io/library/busybox:1.37: no file of --images or --load has it,"
            " and containerd cannot pull it: no such host\n",
            [
                "images ls -q name==docker.io/library/busybox:1.37",
                "images pull docker.io/library/busybox:1.37",
            ],
        ),
    ],
)
def test_image_comes_from_a_file_or_is_pulled_unless_it_is_there(
    image: str, status: int, said: str, calls: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.tar").touch()
    (tmp_path / "state/log").mkdir(parents=True)
    options = f"BIN={tmp_path} CNI_BIN= PAUSE= GATES= NODE= KUBELET_ROOT="
    (tmp_path / "state/options").write_text(options)
    put(
        tmp_path / "ctr",
        'shift 4; echo "$*" >> calls\n'
        'case "$*" in *kept*) echo kept/a:1 ;; *pull*) echo no such host >&2; exit 1 ;; esac',
    )

    ended = cluster_up(tmp_path, f"--state state --load {image}")

    made = tmp_path / "calls"
    assert (ended.returncode, ended.stderr) == (status, f"cluster-up: {said}" if said else "")
    assert (made.read_text().splitlines() if made.exists() else []) == calls
