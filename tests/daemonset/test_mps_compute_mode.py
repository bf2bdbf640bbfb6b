"""The compute mode of the cards: changed only by its own value, and put back at the end."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.daemonset import scripts
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process

SIDECAR: Final = scripts.container("mps-exclusive-process", "compute-mode")

NVIDIA_SMI: Final = """#!/bin/sh
# Stand-in: the cards' modes are files. -i CARD -c MODE sets one; --query-gpu lists them.
cd "$CARDS" || exit 9
echo "$*" >>"$CALLS"
case "$1" in
-i)
    case "$4" in
    DEFAULT) mode=Default ;;
    EXCLUSIVE_PROCESS) mode=Exclusive_Process ;;
    PROHIBITED) mode=Prohibited ;;
    *) echo "$4: no such mode" >&2; exit 2 ;;
    esac
    if [ -e "$CARDS.locked" ]; then echo "Insufficient Permissions" >&2; exit 4; fi
    echo "$mode" >"$2" ;;
--query-gpu=uuid,compute_mode) for card in GPU-*; do echo "$card, $(cat "$card")"; done ;;
--query-gpu=compute_mode) cat GPU-* ;;
*) exit 9 ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with the modes of its cards."""

    root: Path

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def modes(self) -> dict[str, str]:
        cards = sorted((self.root / "cards").iterdir())
        return {card.name: card.read_text().strip() for card in cards}

    @property
    def all_exclusive(self) -> bool:
        return set(self.modes.values()) == {"Exclusive_Process"}

    def environment(self) -> dict[str, str]:
        return {
            **scripts.variables(SIDECAR),
            "MPS": str(self.root / "mps"),
            "CARDS": str(self.root / "cards"),
            "CALLS": str(self.root / "calls"),
            "PATH": scripts.path_with(self.root / "bin"),
        }

    def probe(self) -> int:
        line = SIDECAR["startupProbe"]["exec"]["command"]
        return scripts.run(line, self.environment()).returncode

    def sidecar(self) -> scripts.Started:
        return scripts.started(scripts.command(SIDECAR), self.environment(), self.output)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "mps").mkdir()
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "GPU-a").write_text("Default\n")
    (tmp_path / "cards" / "GPU-b").write_text("Prohibited\n")
    scripts.put_program(tmp_path / "bin", "nvidia-smi", NVIDIA_SMI)
    return Node(root=tmp_path)


def test_cards_are_exclusive_until_the_pod_ends_and_get_back_what_they_had(node: Node) -> None:
    before = node.modes
    assert node.probe() == 1

    with node.sidecar() as sidecar:
        assert eventually(lambda: node.all_exclusive), node.output.read_text()
        assert node.probe() == 0
        # Only from here on the script waits, and a signal finds its trap.
        sidecar.send_signal(signal.SIGTERM)
        assert sidecar.wait(PATIENCE_SECONDS) == 0

    assert node.modes == before
    assert not (node.root / "mps" / "compute-modes").exists()


def test_restart_after_a_crash_keeps_the_modes_that_were_found_first(node: Node) -> None:
    before = node.modes
    with node.sidecar() as sidecar:
        assert eventually(lambda: node.all_exclusive), node.output.read_text()
        os.killpg(sidecar.pid, signal.SIGKILL)
        sidecar.wait(PATIENCE_SECONDS)
    assert node.all_exclusive
    (node.root / "calls").unlink()

    with node.sidecar() as sidecar:
        assert eventually(lambda: "-i GPU-b -c EXCLUSIVE_PROCESS" in calls(node))
        sidecar.send_signal(signal.SIGTERM)
        assert sidecar.wait(PATIENCE_SECONDS) == 0

    assert node.modes == before


def calls(node: Node) -> str:
    file = node.root / "calls"
    return file.read_text() if file.exists() else ""


def test_mode_that_cannot_be_set_is_an_error_before_the_daemon_starts(node: Node) -> None:
    (node.root / "cards.locked").touch()

    with node.sidecar() as sidecar:
        assert sidecar.wait(PATIENCE_SECONDS) == 1

    assert "Insufficient Permissions" in node.output.read_text()
    assert node.probe() == 1


def test_node_without_cards_is_an_error(node: Node) -> None:
    scripts.put_program(node.root / "bin", "nvidia-smi", "#!/bin/sh\nexit 0\n")

    with node.sidecar() as sidecar:
        assert sidecar.wait(PATIENCE_SECONDS) == 1

    assert "found no card, expected at least one" in node.output.read_text()
