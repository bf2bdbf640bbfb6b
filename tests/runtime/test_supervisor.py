"""The supervisor: parts that end, and signals that stop the process."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.runtime import stop_signals
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support.logs import capture_logs
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    found = Supervisor()
    yield found
    found.stopping.set()
    found.join(seconds=PATIENCE_SECONDS)


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
    supervisor.run("publish", until(supervisor.stopping))
    supervisor.stopping.set()

    supervisor.join(seconds=PATIENCE_SECONDS)

    assert supervisor.wait() is None


def test_the_first_error_is_the_cause(supervisor: Supervisor) -> None:
    for text in ("first", "second"):
        supervisor.fail(FatalError(text))

    assert repr(supervisor.wait()) == repr(FatalError("first"))


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


def output_after(script: str, number: signal.Signals) -> list[str]:
    """Run a script, send it a signal once it waits, and return the lines of its further output."""
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
    return output.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_without_a_cause(number: signal.Signals) -> None:
    *logged, last = output_after(WAITS, number)

    assert last == "cause None"
    assert any("stop_requested" in line and number.name in line for line in logged)


@pytest.mark.process
def test_a_signal_is_handled_while_the_main_thread_cannot_run_python() -> None:
    assert output_after(NEVER_BACK_IN_PYTHON, signal.SIGTERM)[-1] == "stopping"


def test_a_part_that_does_not_end_is_left_behind_with_a_warning(supervisor: Supervisor) -> None:
    stuck = Event()
    supervisor.run("stuck", until(stuck))
    supervisor.stopping.set()

    with capture_logs() as logs:
        supervisor.join(seconds=0.01)

    stuck.set()
    (line,) = logs
    assert (line["event"], line["error"]) == ("thread_left_behind", "stuck still runs")


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
def node_plugin() -> Iterator[list[str]]:
    """Yield the arguments of a node plugin whose API server does not answer."""
    # With a short path, because it holds Unix sockets.
    with tempfile.TemporaryDirectory(prefix="tfs-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {}}],"
            " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}],"
            " contexts: [{name: a, context: {cluster: a, user: a}}]}"
        )
        yield [
            *("node-plugin", "--node-name", "node-01", "--simulated-gpus", "1xT4"),
            *("--kubeconfig", str(kubeconfig), "--kubelet-root", f"{folder}/k"),
            *("--cdi-dir", f"{folder}/cdi", "--tensor-fusion-root", f"{folder}/tf"),
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
@pytest.mark.parametrize(
    ("start", "number"),
    [
        (["-c", STOPPED_WHILE_IMPORTING], None),
        # Kept if the entrypoint blocks it
        (["-m", "tensorfusion_dra"], signal.SIGTERM),
    ],
    ids=["during imports", "before Python starts"],
)
def test_an_early_stop_signal_ends_a_node_plugin_in_order(
    node_plugin: list[str], start: list[str], number: signal.Signals | None
) -> None:
    process = run([*start, *node_plugin], number)

    assert process.returncode == 0, process.stderr
    assert re.search('"stop_requested".*"stopped"', process.stderr, re.DOTALL)


def test_the_images_entrypoint_blocks_all_stop_signals() -> None:
    names = sorted(found.name.removeprefix("SIG") for found in stop_signals.STOP_SIGNALS)
    words = ["env", f"--block-signal={','.join(names)}", "tensorfusion-dra"]

    assert f"ENTRYPOINT {json.dumps(words)}" in (ROOT / "Dockerfile").read_text().splitlines()


@pytest.mark.process
@pytest.mark.parametrize("number", sorted(stop_signals.STOP_SIGNALS))
def test_a_stop_signal_ends_other_verbs_at_once_under_that_entrypoint(
    number: signal.Signals,
) -> None:
    process = run(["-m", "tensorfusion_dra", "cel", "translate", "true"], number)

    assert (process.returncode, process.stdout) == (-number, ""), process.stderr
