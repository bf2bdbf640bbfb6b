"""Fixture: a certificate and key for each test."""

from pathlib import Path

import pytest

from tests.support.https import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)
