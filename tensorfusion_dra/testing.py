"""Conformance tests for packages that extend this driver, and builders for their own tests.

Each check calls a provider as the node plugin does, with common and odd cards, and raises an
AssertionError that says what is wrong. They need no GPU, no cluster and no plugin of pytest:

    from tensorfusion_dra import testing

    def test_conforms() -> None:
        testing.check_attributes(rack)
"""

from tensorfusion_dra.conformance.builders import (
    ODD_GPUS,
    claim,
    enforcer_settings,
    gpu,
    node,
    reading,
    share,
)
from tensorfusion_dra.conformance.enforcers import check_enforcer
from tensorfusion_dra.conformance.providers import (
    check_attributes,
    check_capacities,
    check_health_source,
)

__all__ = [
    "ODD_GPUS",
    "check_attributes",
    "check_capacities",
    "check_enforcer",
    "check_health_source",
    "claim",
    "enforcer_settings",
    "gpu",
    "node",
    "reading",
    "share",
]
