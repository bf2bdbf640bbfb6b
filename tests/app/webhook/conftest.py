"""Fixtures: a webhook process and the API server that it reads."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.support.waiting import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfw-") as name:
        yield Path(name)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tensor_fusion=True) as running:
        yield running


@pytest.fixture
def flags() -> list[str]:
    """The webhook's flags, which a test may set."""
    return []


@pytest.fixture
def webhook(server: ApiServer, folder: Path, flags: list[str]) -> Iterator[SimulatedWebhook]:
    running = SimulatedWebhook(folder, server.kubeconfig(folder / "kubeconfig"), flags)
    try:
        assert eventually(running.is_ready)
        yield running
    finally:
        if running.process.exit_code is None:
            running.process.stop()
