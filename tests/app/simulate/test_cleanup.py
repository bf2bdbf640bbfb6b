"""What a simulation removes when it ends, however it ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate import sequence
from tensorfusion_dra.app.simulate.command import Options

OPTIONS = Options(
    gpus="1xT4",
    pods=0,
    requests=(),
    tflops_oversell_ratio="",
    vram_expand_to_host_mem="",
    file=None,
    qos="",
    keep=False,
    verbose=False,
)


class Interrupted:
    """A cluster that is told to end once more while it stops."""

    def __init__(self, folder: Path, **_: object) -> None:
        self.folder = folder
        folders.append(folder)

    def stop(self) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), each)


folders: list[Path] = []


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    folders.clear()


def test_further_signals_do_not_stop_the_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sequence, "SimulatedCluster", Interrupted)
    monkeypatch.setattr(sequence, "_run_and_print", interrupted)

    assert sequence.run(OPTIONS, form="text") == 130

    assert [folder.exists() for folder in folders] == [False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
