"""`simulate --keep` prints how to access the running cluster."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_simulator.rest import PODS, Client
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

    def get(self, address: str) -> bytes:
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
            body = answer.read()
        assert isinstance(body, bytes)
        return body

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    command = [sys.executable, "-m", "tensorfusion_dra", "simulate", "--keep"]
    with (
        (tmp_path_factory.mktemp("kept") / "out").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        running = Kept(process, "")
        try:
            for line in process.stderr:
                running.printed += line
                if "Log of the node plugin" in line:
                    break
            yield running
        finally:
            if process.poll() is None:
                running.interrupt()


def test_the_printed_kubeconfig_gives_access_to_the_running_cluster(kept: Kept) -> None:
    (url,) = re.findall(r'"server": "(\S+)"', kept.kubeconfig.read_text(encoding="utf-8"))

    pods = Client(url).list(PODS).items
    assert [pod["metadata"]["name"] for pod in pods] == [f"pod-{index}" for index in range(1, 7)]
    assert "  kubectl get pods,resourceclaims -o wide\n" in kept.printed
    assert "  kubectl describe pod pod-1\n" in kept.printed


def test_the_printed_addresses_have_status_page_and_metrics_of_the_node(kept: Kept) -> None:
    (page,) = re.findall(r"^  status page  (http://127\.0\.0\.1:\d+/)$", kept.printed, re.MULTILINE)

    def shares() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(kept.get(f"{page}status.json"))["shares"]
        return found

    assert kept.get(page).startswith(b"<!doctype html>")
    assert f"  metrics      {page}metrics\n" in kept.printed
    assert b"\ntensorfusion_dra_claims 5.0\n" in kept.get(f"{page}metrics")
    # A view of the last second may be from before the pods.
    assert eventually(lambda: len(shares()) == 5)


@pytest.mark.parametrize("verb", ["why pod-4", "top"])
def test_the_readme_shows_what_a_verb_prints_of_the_running_cluster(kept: Kept, verb: str) -> None:
    readme = markdown.commands(markdown.text(markdown.ROOT / "README.md"))
    (shown,) = [each for each in readme if each.line.endswith(f"tensorfusion_dra {verb}")]

    ended = subprocess.run(
        [sys.executable, *shlex.split(shown.line)[1:]],
        env={**os.environ, "KUBECONFIG": str(kept.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert markdown.is_shown(shown.output, ended.stdout.splitlines())


def test_an_interrupt_ends_it_and_removes_its_folder(kept: Kept) -> None:
    kubeconfig = kept.kubeconfig

    kept.interrupt()

    assert kept.process.returncode == 0
    assert not kubeconfig.exists()
