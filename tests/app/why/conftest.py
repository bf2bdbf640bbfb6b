"""Fixture: a node of the cluster."""

import pytest

from tests.support.gpu_cluster import Cluster, two_cards


@pytest.fixture
def cards(cluster: Cluster) -> list[str]:
    """The names of the two cards of node-01."""
    return cluster.add_node("node-01", *two_cards())
