"""A node for each test."""

from pathlib import Path

import pytest

from tests.support.prepared_node import Setup


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)
