"""`simulate --keep` prints how to access the running cluster, and leaves nothing at its end."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_simulator.rest import PODS, Client
from tests.guard import sitecustomize as path_guard
from tests.support import markdown
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process


@dataclass
class Kept:
    """A running `simulate --keep`, with what it printed to look around in the cluster."""

    process: "subprocess.Popen[str]"
    printed: str

    @property
    def kubeconfig(self) -> Path:
        (path,) = re.findall(r"^  export KUBECONFIG=(\S+)$", self.printed, re.MULTILINE)
        return Path(path)


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
        body: bytes = answer.read()
    return body


def typed() -> list[str]:
    """Return the words after `python` of the command that docs/develop.md tells to type."""
    page = markdown.text(markdown.ROOT / "docs" / "develop.md")
    (found,) = re.findall(
        r"^\$ \.venv/bin/python (-m tensorfusion_dra simulate .*?) +#", page, re.M
    )
    return shlex.split(found)


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with subprocess.Popen(
        [sys.executable, *typed()], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        running = Kept(process, "")
        for line in process.stderr:
            running.printed += line
            if "Log of the node plugin" in line:
                break
        yield running
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)


def test_the_printed_kubeconfig_gives_access_to_the_running_cluster(kept: Kept) -> None:
    (url,) = re.findall(r'"server": "(\S+)"', kept.kubeconfig.read_text(encoding="utf-8"))

    pods = Client(url).list(PODS).items
    assert [pod["metadata"]["name"] for pod in pods] == [f"pod-{index}" for index in range(1, 7)]
    assert "  kubectl get pods,resourceclaims -o wide\n" in kept.printed
    assert "  kubectl describe pod pod-1\n" in kept.printed


def test_the_printed_addresses_have_status_page_and_metrics_of_the_node(kept: Kept) -> None:
    (page,) = re.findall(r"^  status page  (http://127\.0\.0\.1:\d+/)$", kept.printed, re.MULTILINE)

    assert get(page).startswith(b"<!doctype html>")
    assert f"  metrics      {page}metrics\n" in kept.printed
    assert b"\ntensorfusion_dra_claims 5.0\n" in get(f"{page}metrics")
    # A view of the last second may be from before the pods.
    assert eventually(lambda: len(json.loads(get(f"{page}status.json"))["shares"]) == 5)


@pytest.mark.parametrize("verb", ["why pod-4", "top"])
def test_the_readme_shows_what_a_verb_prints_of_the_running_cluster(kept: Kept, verb: str) -> None:
    readme = markdown.commands(markdown.text(markdown.ROOT / "README.md"))
    (shown,) = [each for each in readme if each.line.endswith(f"tensorfusion_dra {verb}")]

    printed = subprocess.run(
        [sys.executable, *shlex.split(shown.line)[1:]],
        env={**os.environ, "KUBECONFIG": str(kept.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout

    assert markdown.is_shown(shown.output, printed.splitlines())


def test_an_interrupt_ends_it_and_removes_its_folder(kept: Kept) -> None:
    kubeconfig = kept.kubeconfig

    kept.process.send_signal(signal.SIGINT)
    kept.process.communicate(timeout=PATIENCE_SECONDS)

    assert kept.process.returncode == 0
    assert not kubeconfig.exists()


def test_a_kept_simulation_that_is_terminated_leaves_neither_files_nor_processes() -> None:
    with tempfile.TemporaryDirectory(prefix="tfs-") as folder:
        environment = {**path_guard.environment(), "TMPDIR": folder}
        with subprocess.Popen(
            [
                *("sh", "-c", 'trap "" INT; exec "$@"', "sh"),  # as in the background of a script
                *(sys.executable, "-m", "tensorfusion_dra", "simulate", "--keep", "--pods", "1"),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            assert any("Log of the node plugin" in line for line in process.stderr)
            assert len(processes_with(folder)) == 1

            process.terminate()
            process.wait(60)

        assert (process.returncode, processes_with(folder)) == (0, [])
        assert list(Path(folder).iterdir()) == []


def processes_with(word: str) -> list[str]:
    """Return the command lines of all processes that contain this word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(file.read_text(errors="replace"))
    return [line for line in found if word in line]
