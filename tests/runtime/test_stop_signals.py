"""Stop signals that arrive before the process can act on them."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.runtime import stop_signals
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]

Ended = subprocess.CompletedProcess[str]

# The signal arrives during the first import that main() makes for its verb.
STOPPED_WHILE_IMPORTING = """
import importlib.abc, os, signal, sys
from tensorfusion_dra import cli

class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "tensorfusion_dra.app.shared.node_settings":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path, because it holds Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tfs-") as path:
        yield Path(path)


def node_plugin(folder: Path) -> list[str]:
    """Return the arguments of a node plugin whose API server does not answer."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}],"
        " contexts: [{name: a, context: {cluster: a, user: a}}]}"
    )
    paths = {"kubelet-root": "k", "cdi-dir": "cdi", "tensor-fusion-root": "tf"}
    return [
        *("node-plugin", "--node-name", "node-01", "--simulated-gpus", "1xT4"),
        *("--kubeconfig", str(kubeconfig)),
        *(word for flag, name in paths.items() for word in (f"--{flag}", str(folder / name))),
    ]


def run(command: list[str], number: signal.Signals | None = None) -> Ended:
    """Run a Python process until it ends.

    Args:
        number: A signal that is pending and blocked when the process starts.
    """
    python = [sys.executable, *command]
    if number is not None:
        kill = f'kill -{number.value} $$; exec "$@"'
        python = ["env", "--block-signal=INT,TERM", "sh", "-c", kill, "sh", *python]
    return subprocess.run(
        python, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def test_a_stop_signal_during_imports_ends_a_node_plugin_in_order(folder: Path) -> None:
    process = run(["-c", STOPPED_WHILE_IMPORTING, *node_plugin(folder)])

    assert process.returncode == 0, process.stderr
    assert '"stop_requested"' in process.stderr
    assert '"stopped"' in process.stderr


def test_a_stop_signal_before_python_starts_is_kept_if_the_entrypoint_blocks_it(
    folder: Path,
) -> None:
    process = run(["-m", "tensorfusion_dra", *node_plugin(folder)], signal.SIGTERM)

    assert process.returncode == 0, process.stderr
    assert '"stop_requested"' in process.stderr


def test_the_images_entrypoint_blocks_all_stop_signals() -> None:
    (line,) = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("ENTRYPOINT")
    ]

    names = sorted(found.name.removeprefix("SIG") for found in stop_signals.STOP_SIGNALS)
    assert line == f'ENTRYPOINT ["env", "--block-signal={",".join(names)}", "tensorfusion-dra"]'


@pytest.mark.parametrize("number", sorted(stop_signals.STOP_SIGNALS))
def test_a_stop_signal_ends_other_verbs_at_once_under_that_entrypoint(
    number: signal.Signals,
) -> None:
    process = run(["-m", "tensorfusion_dra", "cel", "translate", "true"], number)

    assert process.returncode == -number, process.stderr
    assert process.stdout == ""
