"""The table of reasons in docs/limits.md has every reason, with its state."""

import re
from typing import Final

from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.verdict import State
from tests.support import markdown
from tests.support.markdown import ROOT

PAGE: Final = markdown.text(ROOT / "docs" / "limits.md")
OF_NODES: Final = {
    verdict.ENFORCER_ALIVE,
    verdict.HYPERVISOR_MISSING,
    verdict.LIBRARY_INSTALLED,
}
"""Reasons in verdicts about a node, which have no condition."""
ENFORCED: Final = {verdict.LIMITER_ACTIVE, verdict.NO_LIMIT}
NOT_ENFORCED: Final = {
    verdict.SHARED_MEMORY_MISSING,
    verdict.SHARED_MEMORY_REPLACED,
    verdict.HEARTBEAT_STALE,
    verdict.DEVICE_MISSING,
    verdict.LIMITS_DIFFER,
    verdict.LIMITER_MISSING,
    verdict.DAEMON_SILENT,
}


def reasons() -> set[str]:
    """Return every reason that the code has for a share."""
    constants = {name: value for name, value in vars(verdict).items() if name.isupper()}
    return {value for value in constants.values() if isinstance(value, str)} - OF_NODES


def documented() -> dict[str, str]:
    """Return the state of each reason in the table."""
    table = PAGE[PAGE.index("<!-- reasons:") : PAGE.index("<!-- end of reasons")]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))


def test_every_reason_is_documented() -> None:
    assert documented().keys() == reasons()


def test_reasons_have_the_states_of_the_table() -> None:
    for reason, state in documented().items():
        if reason in ENFORCED:
            assert state == State.ENFORCED
        elif reason in NOT_ENFORCED:
            assert state == State.NOT_ENFORCED
        else:
            assert state == State.UNKNOWN
