"""A node for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prepared_node import Setup


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    node = Setup(tmp_path)
    yield node
    node.ledger.close()
