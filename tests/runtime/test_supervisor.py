"""The supervisor: parts that end, and signals that stop the process."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.runtime import stop_signals
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    found = Supervisor()
    yield found
    found.stopping.set()
    found.join(seconds=5)


def until(event: Event) -> Callable[[], None]:
    def part() -> None:
        event.wait()

    return part


def dies() -> None:
    raise FatalError("store: damaged")


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        (dies, FatalError("store: damaged")),
        (lambda: None, RuntimeError("publish ended by itself")),
        (sys.exit, SystemExit()),
    ],
    ids=["raises", "returns early", "exits"],
)
def test_a_part_that_ends_stops_the_other_parts_and_is_the_cause(
    supervisor: Supervisor, part: Callable[[], None], cause: BaseException
) -> None:
    supervisor.run("lives", until(supervisor.stopping))
    supervisor.run("publish", part)

    assert repr(supervisor.wait()) == repr(cause)
    assert supervisor.stopping.is_set()


def test_a_part_that_ends_while_stopping_is_not_a_cause(supervisor: Supervisor) -> None:
    ended = Event()

    def part() -> None:
        supervisor.stopping.wait()
        ended.set()

    supervisor.run("publish", part)
    supervisor.stopping.set()

    assert ended.wait(PATIENCE_SECONDS)
    supervisor.join(seconds=5)
    assert supervisor.wait() is None


def test_the_first_error_is_the_cause(supervisor: Supervisor) -> None:
    first, second = FatalError("first"), FatalError("second")

    supervisor.fail(first)
    supervisor.fail(second)

    assert supervisor.wait() is first


WAITS: Final = """
from tensorfusion_dra.runtime.supervisor import Supervisor

supervisor = Supervisor()
supervisor.stop_on_signals()
print("waits", flush=True)
cause = supervisor.wait()
print("cause", cause, flush=True)
"""

# A mutex that is locked twice keeps the main thread out of Python, whatever signals arrive.
NEVER_BACK_IN_PYTHON: Final = """
import ctypes, os, threading
from tensorfusion_dra.runtime.supervisor import Supervisor

supervisor = Supervisor()
supervisor.stop_on_signals()

def stopped():
    supervisor.stopping.wait()
    print("stopping", flush=True)
    os._exit(0)

threading.Thread(target=stopped).start()
mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
print("waits", flush=True)
lock(mutex)
"""


def output_after(script: str, number: signal.Signals) -> str:
    """Run a script, send it a signal once it waits, and return its further output."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        try:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    return output


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_without_a_cause(number: signal.Signals) -> None:
    lines = output_after(WAITS, number).splitlines()

    assert lines[-1] == "cause None"
    assert any("stop_requested" in line and number.name in line for line in lines)


@pytest.mark.process
def test_a_signal_is_handled_while_the_main_thread_cannot_run_python() -> None:
    output = output_after(NEVER_BACK_IN_PYTHON, signal.SIGTERM)

    assert output.splitlines()[-1] == "stopping"


def test_a_part_that_does_not_end_is_left_behind_with_a_warning(supervisor: Supervisor) -> None:
    stuck = Event()
    supervisor.run("stuck", until(stuck))
    supervisor.stopping.set()

    with capture_logs() as logs:
        supervisor.join(seconds=0.01)
    stuck.set()

    assert [(line["event"], line["error"]) for line in logs] == [
        ("thread_left_behind", "stuck still runs")
    ]


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


@pytest.mark.process
def test_a_stop_signal_during_imports_ends_a_node_plugin_in_order(folder: Path) -> None:
    process = run(["-c", STOPPED_WHILE_IMPORTING, *node_plugin(folder)])

    assert process.returncode == 0, process.stderr
    assert '"stop_requested"' in process.stderr
    assert '"stopped"' in process.stderr


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.parametrize("number", sorted(stop_signals.STOP_SIGNALS))
def test_a_stop_signal_ends_other_verbs_at_once_under_that_entrypoint(
    number: signal.Signals,
) -> None:
    process = run(["-m", "tensorfusion_dra", "cel", "translate", "true"], number)

    assert process.returncode == -number, process.stderr
    assert process.stdout == ""
